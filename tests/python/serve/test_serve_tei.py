"""`packhorse serve`: the protocol of text-embeddings-inference, beside what `TextModel` gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packhorse import TextModel
from serve_room import PACKAGES, Client, serving, settings_for

for package in PACKAGES:
    pytest.importorskip(package)

TEXTS = ["the cat sat on the mat", "a dog", "where was paris"]


@pytest.fixture(scope="module")
def client(minilm: Path, folders: dict[str, Path]) -> Iterator[Client]:
    named = [f"{name}={path}" for name, path in folders.items()]
    settings = settings_for(f"minilm={minilm}", *named, max_client_batch_size=8, payload_limit=9999)
    with serving(settings) as (found, _):
        yield found


@pytest.fixture(scope="module")
def model(minilm: Path) -> Iterator[TextModel]:
    with TextModel.load(minilm, threads=1) as found:
        yield found


def load(folders: dict[str, Path], name: str) -> TextModel:
    return TextModel.load(folders[name], threads=1)


def as_float32(content: Any) -> Any:
    return np.array(content, np.float32)


# --- results


def test_embed_gives_the_same_bits(client: Client, model: TextModel) -> None:
    answer = client.post("/embed", {"inputs": TEXTS})
    assert answer.status == 200
    np.testing.assert_array_equal(as_float32(answer.json), model.embed(TEXTS))
    one = client.post("/embed", {"inputs": TEXTS[0]}).json
    np.testing.assert_array_equal(as_float32(one), model.embed(TEXTS[:1]))


def test_embed_takes_ids(client: Client, model: TextModel) -> None:
    ids = [tokens.tolist() for tokens in model.tokenizer.encode(TEXTS, None).ids]
    for given in (ids, ids[0]):
        answer = client.post("/embed", {"inputs": given})
        expected = model.embed(TEXTS if given is ids else TEXTS[:1])
        np.testing.assert_array_equal(as_float32(answer.json), expected)
    answer = client.post("/embed", {"inputs": [[3, 10**6]]})
    assert (answer.status, answer.json["error_type"]) == (422, "Validation")
    assert "expected 0 to 30521" in answer.json["error"]


def test_embed_of_a_model_whose_vectors_are_longer(
    client: Client, folders: dict[str, Path]
) -> None:
    """`normalize` is on by default, as the protocol says."""
    with load(folders, "colbert") as colbert:
        for normalize in (True, False, None):
            body = {"inputs": TEXTS, "model": "colbert", "normalize": normalize}
            found = as_float32(client.post("/embed", body).json)
            expected = colbert.embed(TEXTS, normalize=normalize is not False)
            np.testing.assert_array_equal(found, expected)


def test_embed_without_the_length_of_the_model(client: Client, minilm: Path) -> None:
    """A folder that normalises gives vectors that are not normalised, where that is asked for."""
    with TextModel.load(minilm, threads=1, normalize=False) as plain:
        expected = plain.embed(TEXTS)
        ids = [tokens.tolist() for tokens in plain.tokenizer.encode(TEXTS, None).ids]
    assert np.abs(np.linalg.norm(expected, axis=1) - 1).min() > 0.1
    for inputs in (TEXTS, ids):
        answer = client.post("/embed", {"inputs": inputs, "normalize": False})
        np.testing.assert_array_equal(as_float32(answer.json), expected)
    answer = client.post("/embed", {"inputs": TEXTS, "normalize": False, "dimensions": 16})
    np.testing.assert_array_equal(as_float32(answer.json), expected[:, :16])


def test_dimensions(client: Client, model: TextModel) -> None:
    answer = client.post("/embed", {"inputs": TEXTS, "dimensions": 16})
    expected = model.embed(TEXTS, truncate_dim=16, normalize=True)
    np.testing.assert_array_equal(as_float32(answer.json), expected)


def test_embed_all(client: Client, model: TextModel, folders: dict[str, Path]) -> None:
    answer = client.post("/embed_all", {"inputs": TEXTS})
    ids = model.tokenizer.encode(TEXTS, None).ids
    expected = model.session.run(ids, outputs=["hidden"]).unpack()
    for found, rows in zip(answer.json, expected, strict=True):
        np.testing.assert_array_equal(as_float32(found), rows)
    of_ids = client.post("/embed_all", {"inputs": ids[0].tolist()})
    np.testing.assert_array_equal(as_float32(of_ids.json[0]), expected[0])
    with load(folders, "colbert") as colbert:
        answer = client.post("/embed_all", {"inputs": TEXTS, "model": "colbert"})
        for found, rows in zip(answer.json, colbert.embed_tokens(TEXTS), strict=True):
            np.testing.assert_array_equal(as_float32(found), rows)


@pytest.mark.parametrize("name", ["splade", "bge-m3"])
def test_embed_sparse(client: Client, folders: dict[str, Path], name: str) -> None:
    answer = client.post("/embed_sparse", {"inputs": TEXTS, "model": name})
    with load(folders, name) as sparse:
        for found, (ids, weights) in zip(answer.json, sparse.embed_sparse(TEXTS), strict=True):
            assert [one["index"] for one in found] == ids.tolist()
            np.testing.assert_array_equal(as_float32([one["value"] for one in found]), weights)


def test_rerank(client: Client, folders: dict[str, Path]) -> None:
    body = {"query": "the cat", "texts": TEXTS, "return_text": True}
    found = client.post("/rerank", body).json
    with load(folders, "reranker") as reranker:
        logits = reranker.score("the cat", TEXTS)
    order = np.argsort(-logits)
    assert [one["index"] for one in found] == order.tolist()
    assert [one["text"] for one in found] == [TEXTS[i] for i in order]
    probabilities = 1 / (1 + np.exp(-logits[order].astype(np.float64)))
    np.testing.assert_allclose([one["score"] for one in found], probabilities, rtol=1e-6)
    raw = client.post("/rerank", {**body, "raw_scores": True, "return_text": False}).json
    np.testing.assert_array_equal(as_float32([one["score"] for one in raw]), logits[order])
    assert raw[0].keys() == {"index", "score"}


def test_predict(client: Client, folders: dict[str, Path]) -> None:
    with load(folders, "classifier") as classifier:
        pair = {"text": "a dog", "text_pair": "the cat"}
        expected = classifier.classify([TEXTS[0], pair], top_k=None)
    body = {"inputs": [[TEXTS[0]], ["a dog", "the cat"]], "model": "classifier"}
    assert client.post("/predict", body).json == expected
    one = client.post("/predict", {"inputs": TEXTS[0], "model": "classifier"})
    assert one.json == expected[0]
    pair = client.post("/predict", {"inputs": ["a dog", "the cat"], "model": "classifier"})
    assert pair.json == expected[1]
    raw = client.post("/predict", {**body, "raw_scores": True}).json
    scores = np.array([one["score"] for one in raw[0]])
    powers = np.exp(scores - scores.max())
    np.testing.assert_allclose(
        powers / powers.sum(), [one["score"] for one in expected[0]], rtol=1e-5
    )


def test_similarity(client: Client, model: TextModel) -> None:
    inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
    found = client.post("/similarity", {"inputs": inputs}).json
    vectors = model.embed(TEXTS).astype(np.float64)
    np.testing.assert_allclose(found, vectors[1:] @ vectors[0], atol=1e-6)


def test_tokenize_and_decode(client: Client, model: TextModel) -> None:
    text = "Hello, Wörld"
    (tokens,) = client.post("/tokenize", {"inputs": text}).json
    assert [one["id"] for one in tokens] == model.tokenizer.encode([text], None).ids[0].tolist()
    assert [one["text"] for one in tokens] == ["[CLS]", "Hello", ",", "Wörld", "[SEP]"]
    assert (tokens[0]["special"], tokens[0]["start"], tokens[-1]["stop"]) == (True, None, None)
    assert (tokens[3]["special"], tokens[3]["start"], tokens[3]["stop"]) == (False, 7, 12)
    (plain,) = client.post("/tokenize", {"inputs": [text], "add_special_tokens": False}).json
    assert plain == tokens[1:-1]
    ids = [one["id"] for one in tokens]
    assert client.post("/decode", {"ids": ids}).json == ["hello, world"]
    whole = client.post("/decode", {"ids": [ids], "skip_special_tokens": False}).json
    assert whole == ["[CLS] hello, world [SEP]"]


def test_root_is_what_the_first_model_is_made_for(client: Client, model: TextModel) -> None:
    found = as_float32(client.post("/", {"inputs": TEXTS}).json)
    np.testing.assert_array_equal(found, model.embed(TEXTS))


def test_info(client: Client) -> None:
    found = client.get("/info").json
    assert found["model_id"] == "minilm"
    assert found["max_input_length"] == 256
    assert found["model_type"] == {"embedding": {"pooling": "mean"}}
    reranker = client.get("/info?model=reranker").json["model_type"]["reranker"]
    assert reranker["label2id"] == {"relevance": 0}


# --- what comes with a result


def test_headers(client: Client) -> None:
    answer = client.post("/embed", {"inputs": TEXTS}, headers={"x-request-id": "mine-17"})
    assert answer.headers["x-request-id"] == "mine-17"
    assert answer.headers["x-compute-type"] == "cpu"
    assert answer.headers["x-compute-characters"] == str(sum(map(len, TEXTS)))
    assert answer.headers["x-compute-tokens"] == "17"
    for name in ("total", "tokenization", "queue", "inference"):
        assert answer.headers[f"x-{name}-time"].isdigit()
    strange = client.post("/embed", {"inputs": "a"}, headers={"x-request-id": "a b\u00e9"})
    assert len(strange.headers["x-request-id"]) == 22  # one of the server's own


def test_metrics_have_the_names_of_the_protocol(client: Client) -> None:
    names = ("te_request_count", "te_request_success", "te_embed_count", "te_embed_success")
    before = {name: client.metric(name) for name in (*names, "te_predict_count")}
    failures = client.metric("te_request_failure")
    client.post("/embed", {"inputs": TEXTS})
    client.post("/rerank", {"query": "a", "texts": TEXTS})
    client.post("/embed", {"inputs": ""})
    for name, more in zip((*names, "te_predict_count"), (2, 2, 3, 3, 3), strict=True):
        assert client.metric(name) == before[name] + more, name
    assert client.metric("te_request_failure") == failures + 1
    assert client.metric("te_queue_size") == 0
    text = client.get("/metrics").body.decode()
    for name in ("te_request_duration", "te_request_input_length", "te_batch_next_tokens"):
        assert f"# TYPE {name} histogram" in text
        assert f'{name}_bucket{{le="+Inf"}}' in text
    assert "# TYPE te_request_count counter" in text
    assert "_created" not in text


def test_health(client: Client) -> None:
    for path in ("/health", "/ping", "/ready"):
        assert client.get(path).status == 200
    assert client.ask("HEAD", "/health").status == 200


# --- errors


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "said"),
    [
        ("/embed", b"{", 400, "Validation", "not JSON"),
        ("/embed", b'{"inputs": "\xff"}', 400, "Validation", "not JSON"),
        ("/embed", [], 422, "Validation", "JSON list, expected an object"),
        ("/embed", {}, 422, "Validation", "inputs is missing"),
        ("/embed", {"inputs": 3}, 422, "Validation", "inputs is 3"),
        ("/embed", {"inputs": ["a", 3]}, 422, "Validation", "expected a text"),
        ("/embed", {"inputs": [-1]}, 422, "Validation", "expected a text"),
        ("/embed", {"inputs": ""}, 400, "Empty", "inputs is empty"),
        ("/embed", {"inputs": []}, 400, "Empty", "inputs is empty"),
        ("/embed", {"inputs": ["a"] * 9}, 413, "Validation", "9 items, at most 8"),
        ("/embed", {"inputs": "a " * 300}, 413, "Validation", "the model's limit is 256"),
        ("/embed", {"inputs": "a " * 9999}, 413, "Validation", "at most 9999 are taken"),
        ("/embed", {"inputs": "a", "truncate": "yes"}, 422, "Validation", "true or false"),
        ("/embed", {"inputs": "a", "truncation_direction": "Left"}, 422, "Validation", "direction"),
        ("/embed", {"inputs": "a", "prompt_name": "q"}, 422, "Validation", "prompts"),
        ("/embed", {"inputs": "a", "dimensions": 999}, 422, "Validation", "between 1 and 384"),
        ("/embed", {"inputs": "a", "model": "no"}, 404, "NotFound", "no model 'no'"),
        ("/embed", {"inputs": "a", "model": "reranker"}, 424, "Backend", "not an embedding model"),
        ("/embed", b'{"inputs": "\\ud800"}', 400, "Validation", "not JSON"),
        ("/rerank", {"query": "a", "texts": []}, 400, "Empty", "texts is empty"),
        ("/rerank", {"query": "a", "texts": [1]}, 422, "Validation", "list of texts"),
        ("/rerank", {"texts": ["a"]}, 422, "Validation", "query is missing"),
        ("/rerank", {"query": "a", "texts": ["b"], "model": "minilm"}, 424, "Backend", "reranker"),
        ("/predict", {"inputs": ["a", "b", "c"]}, 422, "Validation", "pair"),
        ("/predict", {"inputs": [["a", "b", "c"]]}, 422, "Validation", "pair"),
        ("/predict", {"inputs": "a", "model": "minilm"}, 424, "Backend", "classifier"),
        ("/embed_sparse", {"inputs": "a", "model": "minilm"}, 424, "Backend", "sparse"),
        ("/similarity", {"inputs": {"sentences": ["a"]}}, 422, "Validation", "source_sentence"),
        ("/decode", {"ids": ["a"]}, 422, "Validation", "ids"),
        ("/tokenize", {"inputs": [1]}, 422, "Validation", "inputs"),
        ("/nowhere", {}, 404, "NotFound", "no route"),
    ],
)
def test_errors(client: Client, path: str, body: Any, status: int, kind: str, said: str) -> None:
    answer = client.post(path, body)
    assert (answer.status, answer.json["error_type"]) == (status, kind), answer.body
    assert said in answer.json["error"]


def test_an_answer_that_would_be_too_large(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.serve.protocols.tei._MOST_NUMBERS", 10_000)
    assert client.post("/embed_all", {"inputs": "a cat"}).status == 200
    answer = client.post("/embed_all", {"inputs": ["a cat " * 20] * 8})
    assert answer.status == 413
    assert "send fewer texts" in answer.json["error"]


def test_other_methods_are_refused(client: Client) -> None:
    answer = client.get("/embed")
    assert answer.status == 405
    assert answer.headers["allow"] == "POST"


def test_long_texts_are_cut_where_that_is_asked_for(client: Client, model: TextModel) -> None:
    long = "a cat " * 200
    answer = client.post("/embed", {"inputs": long, "truncate": True})
    np.testing.assert_array_equal(as_float32(answer.json), model.embed([long]))
    assert answer.headers["x-compute-tokens"] == "256"
