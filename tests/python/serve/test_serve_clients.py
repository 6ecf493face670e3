"""`packhorse serve`: the requests that the real clients send (tests/golden/make_serve_requests.py)
are answered as the description says."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from checkpoints import GOLDEN
from serve_room import PACKAGES, Client, make_models, serve_chance, serving, settings_for
from tool_models import agent

for package in (*PACKAGES, "llguidance", "soundfile"):
    pytest.importorskip(package)

RECORDED = {
    path.stem: json.loads(path.read_text("utf-8"))["requests"]
    for path in sorted((GOLDEN / "serve_requests").glob("*.json"))
}
CASES = [(name, i) for name, requests in RECORDED.items() for i in range(len(requests))]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        serve_chance(monkeypatch, agent=agent)
        folders = make_models(tmp_path_factory.mktemp("models"))
        chosen = ("colbert", "classifier", "reranker", "filler")
        named = [f"{name}={folders[name]}" for name in chosen]
        named += ["lm=chance", "agent=agent", f"whisper={GOLDEN / 'speech' / 'whisper'}"]
        with serving(settings_for(*named, api_key=("secret",))) as (found, _):
            yield found


def test_all_three_were_recorded() -> None:
    assert list(RECORDED) == ["cohere", "huggingface_hub", "openai"]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_recorded_request(client: Client, name: str, number: int) -> None:
    request: dict[str, Any] = RECORDED[name][number]
    body = request.get("body")
    if "form" in request:
        body = base64.b64decode(request["form"])
    answer = client.ask(request["method"], request["path"], body, request["headers"])
    assert answer.status == 200, answer.body  # the client of the tests validates the rest
    if isinstance(body, dict) and body.get("stream"):
        assert len(answer.events) >= 2
