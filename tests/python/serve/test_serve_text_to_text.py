"""`packhorse serve`: translations, summaries and completions of models with an encoder, beside what
`TextModel` gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from packhorse import TextModel
from serve_room import PACKAGES, Client, serving, settings_for
from text_to_text_models import make_folder

for package in PACKAGES:
    pytest.importorskip(package)

TEXTS = ["the cat sat on the mat", "Hello world. It's 9, or 10! " * 8, " "]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "marian": make_folder(root / "marian", "marian", num_beams=2),
        "mbart": make_folder(root / "mbart", "mbart"),
    }


@pytest.fixture(scope="module")
def client(paths: dict[str, Path], minilm: Path) -> Iterator[Client]:
    named = [f"{name}={path}" for name, path in paths.items()]
    settings = settings_for(*named, f"minilm={minilm}", kv_tokens=4096, max_client_batch_size=8)
    with serving(settings) as (found, _):
        yield found


@pytest.fixture(scope="module")
def models(paths: dict[str, Path]) -> Iterator[dict[str, TextModel]]:
    loaded = {name: TextModel.load(path, kv_tokens=4096) for name, path in paths.items()}
    yield loaded
    for one in loaded.values():
        one.close()


def test_translations(client: Client, models: dict[str, TextModel]) -> None:
    answer = client.post("/translate", {"inputs": TEXTS})
    assert answer.status == 200, answer.json
    expected = models["marian"].translate(TEXTS)
    assert [one["translation_text"] for one in answer.json] == expected
    answer = client.post("/translate", {"inputs": TEXTS[0]})
    assert answer.json == {"translation_text": expected[0]}
    parameters = {"src_lang": "de", "tgt_lang": "fr", "generate_parameters": {"num_beams": 3}}
    answer = client.post(
        "/translate", {"model": "mbart", "inputs": TEXTS, "parameters": parameters}
    )
    expected = models["mbart"].translate(TEXTS, source="de", target="fr", num_beams=3)
    assert [one["translation_text"] for one in answer.json] == expected


def test_summaries(client: Client, models: dict[str, TextModel]) -> None:
    body = {"inputs": TEXTS, "parameters": {"split": "sentences"}}
    answer = client.post("/summarize", body)
    expected = models["marian"].summarize(TEXTS, split="sentences")
    assert [one["summary_text"] for one in answer.json] == expected


def test_completions(client: Client, models: dict[str, TextModel]) -> None:
    body = {"prompt": TEXTS[:1], "max_tokens": 12}
    answer = client.post("/v1/completions", body)
    assert answer.status == 200, answer.json
    made = models["marian"].generate(TEXTS[0], details=True)
    assert answer.json["choices"][0]["text"] == made.text
    assert answer.json["usage"]["prompt_tokens"] == made.usage.prompt_tokens
    sampled = client.post("/v1/completions", {**body, "temperature": 1, "seed": 3})
    expected = models["marian"].generate(
        TEXTS[0], temperature=1, seed=3, num_beams=1, max_new_tokens=12
    )
    assert sampled.json["choices"][0]["text"] == expected


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"inputs": "a", "model": "minilm"}, 422, ""),
        (
            {"inputs": "a", "parameters": {"tgt_lang": "fr"}},
            422,
            "tgt_lang is 'fr', but this model's",
        ),
        ({"inputs": "a", "model": "mbart"}, 422, "tgt_lang is None, expected one of"),
        ({"inputs": 5}, 422, "inputs"),
        ({"inputs": "a", "no_such_field": 1}, 422, "no_such_field is not supported"),
        ({"inputs": ["a"] * 9}, 422, "inputs"),
        ({"inputs": "a", "parameters": {"split": "words"}}, 422, "split is"),
        ({"inputs": "a", "parameters": {"truncation": "x"}}, 422, "truncation is not supported"),
        (
            {"inputs": "a", "parameters": {"generate_parameters": {"num_beams": 0}}},
            422,
            "generate_parameters.num_beams is 0",
        ),
    ],
)
def test_refused(client: Client, body: dict[str, object], status: int, message: str) -> None:
    answer = client.post("/translate", body)
    assert answer.status in (status, 400, 413, 424), answer.json
    assert message in str(answer.json)
    assert client.post("/translate", {"inputs": "a"}).status == 200
