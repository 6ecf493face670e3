"""`packhorse serve`: errors have the names of fields, not those of the library's arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from checkpoints import GOLDEN
from serve_room import PACKAGES, Client, make_models, serving, settings_for
from tiny_tokenizer import with_tokenizer

for package in PACKAGES:
    pytest.importorskip(package)

LONG = "the cat sat on the mat " * 9
CUT = "[0] has 56 tokens, the model's limit is 40, and "


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root = tmp_path_factory.mktemp("models")
    folders = make_models(root)
    folders["reader"] = with_tokenizer(GOLDEN / "bert-answers", root / "reader")
    models = [f"{name}={folders[name]}" for name in ("bge-m3", "reranker", "tagger", "reader")]
    with serving(settings_for(*models)) as (found, _):
        yield found


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/embed", {"inputs": LONG}, f"inputs{CUT}truncate=false"),
        ("/v1/embeddings", {"input": LONG}, f"input{CUT}truncate=false"),
        ("/v2/embed", {"texts": [LONG], "truncate": "NONE"}, f'texts{CUT}truncate="NONE"'),
        ("/embed", {"inputs": "a", "dimensions": 99}, "dimensions 99 is not between 1 and 32"),
        (
            "/v1/embeddings",
            {"input": "a", "dimensions": 99},
            "dimensions 99 is not between 1 and 32",
        ),
        (
            "/v2/embed",
            {"texts": ["a"], "output_dimension": 99},
            "output_dimension 99 is not between 1 and 32",
        ),
        ("/embed", {"inputs": [[10**8]]}, "inputs[0] has ids"),
        (
            "/question-answering",
            {"inputs": {"question": "a", "context": "b"}, "parameters": {"max_seq_len": 999}},
            "max_seq_len 999 is not between",
        ),
        (
            "/token-classification",
            {"inputs": "a", "parameters": {"stride": 99, "aggregation_strategy": "simple"}},
            "stride 99 is not between 0 and the model's limit, 40",
        ),
    ],
)
def test_arguments_are_called_as_fields(
    client: Client, path: str, body: dict[str, Any], said: str
) -> None:
    answer = client.post(path, body).json
    error = answer.get("error", answer)
    message = error if isinstance(error, str) else error["message"]
    assert message.startswith(said), message


def test_texts_of_rerankers(client: Client) -> None:
    count = "[0] has 58 tokens, the model's limit is 40, and "
    for path, field, said in (
        ("/rerank", "texts", "truncate=false"),
        ("/v1/rerank", "documents", "truncation=false"),
    ):
        body = {"model": "reranker", "query": "a", field: [LONG]}
        assert f"{field}{count}{said}" in client.post(path, body).body.decode()
