"""`packhorse serve`: OpenAI's protocol, and those of Cohere, Jina and vLLM."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packhorse import TextModel
from packhorse.text import quantize_embeddings
from serve_room import (
    PACKAGES,
    Client,
    serving,
    settings_for,
    wait_until,
)

for package in (*PACKAGES, "llguidance"):
    pytest.importorskip(package)

TEXTS = ["the cat sat on the mat", "a dog"]
CHAT = [{"role": "user", "content": "tr"}]


@pytest.fixture(scope="module")
def client(minilm: Path, folders: dict[str, Path], models: list[TextModel]) -> Iterator[Client]:
    named = [f"reranker={folders['reranker']}", "lm=chance"]
    with serving(settings_for(f"minilm={minilm}", *named)) as (found, _):
        yield found


@pytest.fixture
def lm(client: Client, models: list[TextModel]) -> TextModel:
    return models[0]


@pytest.fixture(scope="module")
def minilm_vectors(minilm: Path) -> Any:
    with TextModel.load(minilm, threads=1) as model:
        return model.embed(TEXTS)


# --- embeddings and models


def test_embeddings(client: Client, minilm_vectors: Any) -> None:
    body = {"input": TEXTS, "model": "minilm"}
    answer = client.post("/v1/embeddings", body).json
    assert [one["index"] for one in answer["data"]] == [0, 1]
    found = np.array([one["embedding"] for one in answer["data"]], np.float32)
    np.testing.assert_array_equal(found, minilm_vectors)
    assert answer["usage"] == {"prompt_tokens": 12, "total_tokens": 12}
    encoded = client.post("/v1/embeddings", {**body, "encoding_format": "base64"}).json
    for one, row in zip(encoded["data"], minilm_vectors, strict=True):
        assert base64.b64decode(one["embedding"]) == row.tobytes()


def test_embeddings_of_fewer_dimensions_and_of_ids(client: Client, minilm_vectors: Any) -> None:
    answer = client.post("/v1/embeddings", {"input": TEXTS[0], "dimensions": 8}).json
    cut = minilm_vectors[0, :8] / np.linalg.norm(minilm_vectors[0, :8])
    np.testing.assert_allclose(answer["data"][0]["embedding"], cut, rtol=1e-6)
    ids = [one["id"] for one in client.post("/tokenize", {"inputs": TEXTS[0]}).json[0]]
    answer = client.post("/embeddings", {"input": [ids]}).json
    found = np.array(answer["data"][0]["embedding"], np.float32)
    np.testing.assert_array_equal(found, minilm_vectors[0])


def test_models(client: Client) -> None:
    listed = client.get("/v1/models").json["data"]
    assert [one["id"] for one in listed] == ["minilm", "reranker", "lm"]
    assert client.get("/v1/models/lm").json == listed[2]
    missing = client.get("/v1/models/no")
    assert (missing.status, missing.json["error"]["code"]) == (404, "model_not_found")


# --- texts that are generated


def test_completion(client: Client, lm: TextModel) -> None:
    body = {"prompt": "tr", "max_tokens": 7, "temperature": 0}
    answer = client.post("/v1/completions", body).json
    expected = lm.generate("tr", max_new_tokens=7, details=True)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (expected.text, "length")
    assert choice["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 7
    assert answer["usage"]["prompt_tokens"] == expected.usage.prompt_tokens
    ids = lm.tokenizer.plain_ids("tr").tolist()
    assert client.post("/v1/completions", {**body, "prompt": ids}).json["choices"] == [choice]


def test_several_prompts_and_several_texts(client: Client, lm: TextModel) -> None:
    body = {"prompt": ["tr", "ue"], "n": 2, "max_tokens": 5, "seed": 1}
    choices = client.post("/v1/completions", body).json["choices"]
    assert [one["index"] for one in choices] == [0, 1, 2, 3]
    texts = lm.generate(["tr", "ue"], n=2, max_new_tokens=5, seed=1, temperature=1.0)
    assert [one["text"] for one in choices] == [text for of_prompt in texts for text in of_prompt]


def joined(events: list[Any]) -> dict[int, str]:
    """The text of each choice of a stream."""
    found: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            text = choice.get("text", choice.get("delta", {}).get("content", ""))
            found[choice["index"]] = found.get(choice["index"], "") + text
    return found


@pytest.mark.parametrize("prompts", ["tr", ["tr", "ue"]])
def test_completion_stream(client: Client, lm: TextModel, prompts: Any) -> None:
    body = {"prompt": prompts, "max_tokens": 9, "n": 2, "seed": 3, "stream": True}
    answer = client.post("/v1/completions", body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    texts = lm.generate(prompts, n=2, max_new_tokens=9, seed=3, temperature=1.0)
    flat = texts if isinstance(prompts, str) else [one for two in texts for one in two]
    assert joined(answer.events) == dict(enumerate(flat))
    ends = [c["finish_reason"] for e in answer.events for c in e["choices"] if c["finish_reason"]]
    assert ends == ["length"] * len(flat)


def test_chat(client: Client, lm: TextModel) -> None:
    body = {"messages": CHAT, "max_completion_tokens": 6, "temperature": 0}
    answer = client.post("/v1/chat/completions", body).json
    expected = lm.chat(CHAT, max_new_tokens=6)
    assert answer["choices"][0]["message"]["content"] == expected
    parts = [{"role": "user", "content": [{"type": "text", "text": "tr"}]}]
    again = client.post("/v1/chat/completions", {**body, "messages": parts}).json
    assert again["choices"] == answer["choices"]
    streamed = client.post(
        "/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}}
    ).events
    assert streamed[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert joined(streamed) == {0: expected}
    assert streamed[-1]["usage"] == answer["usage"]
    assert all(event["usage"] is None for event in streamed[:-1])


def test_stop_is_not_in_the_text(client: Client, lm: TextModel) -> None:
    whole = lm.generate("tr", max_new_tokens=40)
    stop = next(one for one in whole[3:] if one.isascii())
    body = {"prompt": "tr", "max_tokens": 40, "temperature": 0, "stop": [stop]}
    (choice,) = client.post("/v1/completions", body).json["choices"]
    assert (choice["text"], choice["finish_reason"]) == (whole.partition(stop)[0], "stop")
    streamed = client.post("/v1/completions", {**body, "stream": True}).events
    assert joined(streamed) == {0: choice["text"]}


def test_logprobs(client: Client) -> None:
    body = {"prompt": "tr", "max_tokens": 3, "logprobs": 2}
    (choice,) = client.post("/v1/completions", body).json["choices"]
    assert choice["logprobs"]["token_logprobs"] == [0.0, -1.0, -2.0]
    assert len(choice["logprobs"]["tokens"]) == len(choice["logprobs"]["text_offset"]) == 3
    chat = {"messages": CHAT, "max_tokens": 3, "logprobs": True, "top_logprobs": 2}
    content = client.post("/v1/chat/completions", chat).json["choices"][0]["logprobs"]["content"]
    assert [one["logprob"] for one in content] == [0.0, -1.0, -2.0]
    assert [len(one["top_logprobs"]) for one in content] == [2, 2, 2]
    streamed = client.post("/v1/chat/completions", {**chat, "stream": True}).events
    pieces = [c["logprobs"]["content"] for e in streamed for c in e["choices"] if c["logprobs"]]
    assert [one for piece in pieces for one in piece] == content


def test_output_of_a_json_schema(client: Client) -> None:
    schema = {
        "type": "object",
        "properties": {"sure": {"type": "boolean"}},
        "required": ["sure"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"messages": CHAT, "max_tokens": 400, "seed": 2, "response_format": form}
    (choice,) = client.post("/v1/chat/completions", body).json["choices"]
    assert json.loads(choice["message"]["content"])["sure"] in (True, False)
    assert choice["finish_reason"] == "stop"


def test_a_stream_whose_client_goes_away_is_cancelled(client: Client, lm: TextModel) -> None:
    engine: Any = lm.session
    native = engine._engine
    native._pause_s, before = 0.005, native.cancelled
    connection = http.client.HTTPConnection("127.0.0.1", client.port)
    try:
        body = json.dumps({"prompt": "tr", "max_tokens": 3000, "stream": True})
        connection.request("POST", "/v1/completions", body)
        assert connection.getresponse().read(20)
        assert native.stats()["running"] == 1
        connection.close()
        wait_until(lambda: native.stats()["running"] == 0)
        assert native.cancelled == before + 1
    finally:
        native._pause_s = 0.0
    assert client.metric("packhorse_generation_running") == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        (
            "/v1/chat/completions",
            {"messages": CHAT, "tools": [{}]},
            400,
            "tools[0] is {}, expected",
        ),
        ("/v1/chat/completions", {"messages": CHAT, "model": "minilm"}, 400, "not a model that"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages is empty"),
        ("/v1/chat/completions", {"messages": [{"content": "a"}]}, 400, "messages[0]"),
        ("/v1/chat/completions", {"messages": CHAT, "top_logprobs": 2}, 400, "logprobs = true"),
        ("/v1/chat/completions", {"messages": CHAT, "n": 0}, 400, "n is 0"),
        ("/v1/completions", {"prompt": "a", "temperature": -1}, 400, "temperature is -1"),
        ("/v1/completions", {"prompt": "a", "temperature": "hot"}, 400, "temperature"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, 400, "suffix is not supported"),
        (
            "/v1/chat/completions",
            {"messages": CHAT, "echo": True},
            400,
            "echo is not supported, found true",
        ),
        ("/v1/completions", {"prompt": [{}]}, 400, "prompt is"),
        ("/v1/completions", {"prompt": "a", "stop": [""]}, 400, "stop is"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias"),
        ("/v1/completions", {"prompt": "a", "response_format": {"type": "xml"}}, 400, "type is"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, 400, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "model": "gpt"}, 404, "no model 'gpt'"),
        ("/v1/embeddings", {"input": "a " * 300}, 400, "the model's limit is 256"),
        ("/v1/rerank", {"query": "a", "documents": []}, 400, "documents is empty"),
    ],
)
def test_errors(client: Client, path: str, body: Any, status: int, said: str) -> None:
    answer = client.post(path, body)
    assert answer.status == status, answer.body
    assert said in answer.json["error"]["message"]


def test_images_are_refused_by_name(client: Client) -> None:
    content = [{"type": "image_url", "image_url": {"url": "x"}}]
    body = {"messages": [{"role": "user", "content": content}]}
    answer = client.post("/v1/chat/completions", body)
    assert (answer.status, answer.json["error"]["code"]) == (400, "unsupported_parameter")
    assert "image_url" in answer.json["error"]["message"]
    cohere = client.post("/v2/embed", {"images": ["x"], "input_type": "image"})
    assert cohere.status == 400
    assert "'minilm' is not an embedding model of images" in cohere.json["message"]


# --- rerankers and Cohere


@pytest.fixture(scope="module")
def probabilities(folders: dict[str, Path]) -> list[float]:
    with TextModel.load(folders["reranker"], threads=1) as model:
        logits = model.score("a mat", TEXTS).astype(np.float64)
    found: list[float] = (1 / (1 + np.exp(-logits))).tolist()
    return found


def test_rerank(client: Client, probabilities: list[float]) -> None:
    order = sorted(range(2), key=lambda i: -probabilities[i])
    best = [probabilities[i] for i in order]
    body = {"query": "a mat", "documents": TEXTS}
    for path in ("/v1/rerank", "/v2/rerank"):
        results = client.post(path, body).json["results"]
        assert [one["index"] for one in results] == order
        np.testing.assert_allclose([one["relevance_score"] for one in results], best, rtol=1e-6)
        assert len(client.post(path, {**body, "top_n": 1}).json["results"]) == 1
    whole = client.post("/v1/rerank", body).json
    assert whole["results"][0]["document"] == {"text": TEXTS[order[0]]}
    bare = client.post("/v1/rerank", {**body, "return_documents": False}).json["results"][0]
    assert "document" not in bare


def test_scores(client: Client, probabilities: list[float]) -> None:
    for path, first in (("/score", "a mat"), ("/v1/score", ["a mat", "a mat"])):
        answer = client.post(path, {"text_1": first, "text_2": TEXTS}).json
        found = [one["score"] for one in answer["data"]]
        np.testing.assert_allclose(found, probabilities, rtol=1e-6)
    wrong = client.post("/score", {"text_1": ["a", "b", "c"], "text_2": TEXTS})
    assert wrong.status == 400


def test_cohere_embed(client: Client, minilm_vectors: Any) -> None:
    types = ["float", "binary", "ubinary", "base64"]
    body = {"model": "minilm", "texts": TEXTS, "input_type": "search_query"}
    found = client.post("/v2/embed", {**body, "embedding_types": types}).json["embeddings"]
    np.testing.assert_array_equal(np.array(found["float"], np.float32), minilm_vectors)
    for name in ("binary", "ubinary"):
        expected = quantize_embeddings(minilm_vectors, name)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found[name], expected)
    assert base64.b64decode(found["base64"][1]) == minilm_vectors[1].tobytes()
    inputs = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    again = client.post("/v2/embed", {"inputs": inputs, "output_dimension": 8}).json
    cut = minilm_vectors[:, :8] / np.linalg.norm(minilm_vectors[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(again["embeddings"]["float"], cut, rtol=1e-6)
    refused = client.post("/v2/embed", {**body, "embedding_types": ["int8"]})
    assert (refused.status, "int8" in refused.json["message"]) == (400, True)
