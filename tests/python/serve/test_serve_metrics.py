"""`packhorse serve`: metrics of texts that are generated, and the table of all metrics."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from adapted_model import adapted_texts
from serve_room import PACKAGES, Client, serve_chance, serving, settings_for

for package in PACKAGES:
    pytest.importorskip(package)

DOCS = Path(__file__).parents[3] / "docs" / "serve_operation.md"
ASKED = {"prompt": "the cat sat", "max_tokens": 20}
PAUSE_S = 0.002  # between tokens
TOKEN, FIRST = "packhorse_time_per_output_token_seconds", "packhorse_time_to_first_token_seconds"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    model, _ = adapted_texts(tmp_path_factory.mktemp("adapted"))
    with serving(settings_for(f"lm={model}", kv_tokens=512)) as (found, _):
        yield found


class Growth:
    """Growth of metrics since this was made."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._names = [f"{name}_{part}" for name in (TOKEN, FIRST) for part in ("count", "sum")]
        self._before = self._read()

    def _read(self) -> dict[str, float]:
        return {name: self._client.metric(name) for name in self._names}

    def __getitem__(self, name: str) -> float:
        return self._read()[name] - self._before[name]


def test_seconds_of_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """One observation of each prompt, of the engine's pace: also of those that are read together,
    and whatever the number of texts."""
    loaded = serve_chance(monkeypatch)
    with serving(settings_for("lm=chance")) as (client, _):
        session: Any = loaded[0].session
        session._engine._pause_s = PAUSE_S
        for more, prompts in (
            ({}, 1),
            ({"stream": True}, 1),
            ({"n": 3}, 1),
            ({"prompt": ["tr", "ue"]}, 2),
        ):
            growth, begin = Growth(client), time.monotonic()
            assert client.post("/v1/completions", {**ASKED, **more}).status == 200
            seconds = time.monotonic() - begin
            assert growth[f"{TOKEN}_count"] == prompts
            assert 0.5 * PAUSE_S < growth[f"{TOKEN}_sum"] / prompts < seconds / 10
            assert growth[f"{FIRST}_count"] == 1
            assert 0 < growth[f"{FIRST}_sum"] < seconds


def test_prompts_are_measured_while_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends before the prompt in front of it, too."""
    loaded = serve_chance(monkeypatch)
    with serving(settings_for("lm=chance")) as (client, _):
        session: Any = loaded[0].session
        session._engine._pause_s = PAUSE_S
        asked = {**ASKED, "prompt": ["tr", "ue"], "logprobs": 0, "return_tokens_as_token_ids": True}
        choices = client.post("/v1/completions", asked).json["choices"]
        first, second = (
            [int(name.removeprefix("token_id:")) for name in one["logprobs"]["tokens"]]
            for one in choices
        )
        end = next(one for one in second[6:12] if one not in [*first, *second[:6]])
        growth = Growth(client)
        client.post("/v1/completions", {**asked, "stop_token_ids": [end]})
        assert growth[f"{TOKEN}_count"] == 2


def test_a_text_of_one_token_says_nothing_of_others(client: Client) -> None:
    growth = Growth(client)
    client.post("/v1/completions", {**ASKED, "max_tokens": 1})
    assert (growth[f"{TOKEN}_count"], growth[f"{FIRST}_count"]) == (0, 1)


def test_the_cache_of_each_model(client: Client) -> None:
    text = client.get("/metrics").body.decode()
    of_pages = {
        name: float(value)
        for name, value in re.findall(r'packhorse_generation_(pages\w*){model="lm"} (\S+)', text)
    }
    total = of_pages.pop("pages")
    assert set(of_pages) == {"pages_used", "pages_cached", "pages_free"}
    assert sum(of_pages.values()) == total > 0


def test_names_of_clients_make_no_labels(client: Client) -> None:
    """A label has the names that the server gave, however many others clients ask for."""
    for route in ("/v1/completions", "/v1/embeddings", "/embed", "/nowhere"):
        body = {"model": "made up", "prompt": "a", "input": "a", "inputs": "a"}
        assert client.post(route, body).status in (404, 400)
    text = client.get("/metrics").body.decode()
    assert "made up" not in text
    assert "nowhere" not in text


def test_the_table_in_the_docs_has_every_metric(client: Client) -> None:
    table = DOCS.read_text("utf-8").partition("### Metrics")[2].partition("\n#")[0]
    documented = set(re.findall(r"`((?:te|packhorse)_\w+)`", table))
    text = client.get("/metrics").body.decode()
    served = set(re.findall(r"^# TYPE ((?:te|packhorse)_\w+)", text, re.MULTILINE))
    assert documented == served
