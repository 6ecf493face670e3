"""TextModel: what a model has no head for, and what is no text, pair or token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import packhorse
import pytest
from checkpoints import GOLDEN
from tiny_tokenizer import SPECIAL, make_tokenizer, with_tokenizer

pytest.importorskip("tokenizers")

# Each is called with a text without a mask: a missing head is found first.
CALLS: dict[str, Any] = {
    "score": lambda model: model.score("a", ["b"]),
    "classify": lambda model: model.classify("a"),
    "classify_tokens": lambda model: model.classify_tokens("a"),
    "answer": lambda model: model.answer("a", "b"),
    "fill_mask": lambda model: model.fill_mask("a"),
    "embed_sparse": lambda model: model.embed_sparse("a"),
    "embed_tokens": lambda model: model.embed_tokens("a"),
}
# Model -> what it gives, and the methods that fit.
FITTING = {
    "bert-gelu": ("gives embeddings", ()),
    "bert-sequence": ("texts 3 labels", ("classify",)),
    "bert-reranker": ("texts 1 label ", ("score", "classify")),
    "bert-tokens": ("tokens 9 labels", ("classify_tokens",)),
    "bert-answers": ("the start and the end of answers", ("answer",)),
    "bert-predictions": ("has the head of a masked language model", ("fill_mask",)),
    "bert-splade": ("model and a head of sparse vectors", ("fill_mask", "embed_sparse")),
    "bert-colbert": ("has a head of vectors for late interaction", ("embed_tokens",)),
    "bge-m3": ("has a head of sparse vectors and", ("embed_sparse", "embed_tokens")),
}


def load(name: str, folder: Path, **options: Any) -> packhorse.TextModel:
    return packhorse.TextModel.load(with_tokenizer(GOLDEN / name, folder / name), **options)


@pytest.mark.parametrize("name", FITTING)
def test_heads(name: str, tmp_path: Path) -> None:
    model = load(name, tmp_path)
    gives, fitting = FITTING[name]
    named = " or ".join(fitting) or "embed"
    for method, call in CALLS.items():
        if method not in fitting:
            with pytest.raises(ValueError, match=f"^{method}: .*{gives}.*: use {named}$"):
                call(model)
        elif method == "fill_mask":
            with pytest.raises(ValueError, match=r"load\(path, max_predictions=64\)"):
                call(model)
        else:
            call(model)
    assert model.embed("a").ndim == 1


@pytest.mark.parametrize(
    ("name", "call", "message"),
    [
        ("bert-sequence", lambda m: m.classify("a", top_k=0), "top_k is 0"),
        ("bert-tokens", lambda m: m.classify_tokens([("a", "b")]), "is .*, expected a text$"),
        ("bert-tokens", lambda m: m.classify_tokens("a", aggregation_strategy="last"), "'last'"),
        ("bert-tokens", lambda m: m.classify_tokens("a", stride=3), "none"),
        (
            "bert-tokens",
            lambda m: m.classify_tokens("a", aggregation_strategy="max", stride=40),
            "stride 40 is not between 0 and max_length, 40",
        ),
        (
            "bert-tokens",
            lambda m: m.classify_tokens("a " * 99, aggregation_strategy="max", stride=38),
            r"texts\[0\]: 2 special tokens; at max_length 40 no room",
        ),
        ("bert-reranker", lambda m: m.score_pairs(["query", "document"]), r"texts\[0\] is 'query'"),
        ("bert-reranker", lambda m: m.score_pairs(("query", "document")), r"texts\[0\] is 'query'"),
        ("bert-reranker", lambda m: m.score_pairs(["qd"]), r"texts\[0\] is 'qd', expected a query"),
        ("bert-reranker", lambda m: m.score_pairs([("a", "b"), "cd"]), r"texts\[1\] is 'cd'"),
        (
            "bert-reranker",
            lambda m: m.score_pairs([("a", "b", "c")]),
            r"texts\[0\] is \('a', 'b', ",
        ),
        ("bert-reranker", lambda m: m.score("a", [7]), r"texts\[0\] is \('a', 7\), expected"),
        ("bert-reranker", lambda m: m.score(["a"], ["b"]), r"query is \['a'\], expected a str"),
        ("bert-answers", lambda m: m.answer(["ab"], [("c", "d")]), r"texts\[0\] is \('ab', \('c'"),
    ],
)
def test_refused(name: str, call: Any, message: str, tmp_path: Path) -> None:
    model = load(name, tmp_path)
    with pytest.raises(ValueError, match=message):
        call(model)


def test_pairs_of_ids(tmp_path: Path) -> None:
    session = load("bert-reranker", tmp_path).session
    for query, documents, message in (
        ("ab", [[5]], "query has shape"),
        ([5], ["ab"], r"documents\[0\] has shape"),
        ([5], [5, 6], r"documents\[0\] has shape"),
    ):
        with pytest.raises(ValueError, match=message):
            session.score(query, documents)


def test_tokens_beyond_the_table(tmp_path: Path) -> None:
    model = "the {} of the model"
    for name, call in (
        ("bert-gelu", lambda m: m.embed([model.format("cat"), model.format("zebra")])),
        ("bert-answers", lambda m: m.answer(["who"] * 2, ["cat", "a zebra"])),
        ("bert-predictions", lambda m: m.fill_mask(["the [MASK]", "a zebra [MASK]"])),
    ):
        folder = with_tokenizer(GOLDEN / name, tmp_path / name)
        tokenizer = make_tokenizer()
        tokenizer.add_special_tokens(list(SPECIAL.values()))
        tokenizer.add_tokens(["yak", "emu", "zebra"])  # 98 to 100
        tokenizer.save(str(folder / "tokenizer.json"))
        loaded = packhorse.TextModel.load(folder, max_predictions=2 * (name == "bert-predictions"))
        with pytest.raises(
            ValueError, match=r"texts\[1\] has token 'zebra' \(id 100\); .* table has 100 entries"
        ):
            call(loaded)


def test_lone_surrogates(tmp_path: Path) -> None:
    model = load("bert-answers", tmp_path)
    message = r"texts\[1\] has a lone surrogate, '\\ud83d', at position {}"
    for context, place in (("a \ud83d b", 2), ("a cat " * 30000 + "\ud83d", 180000)):
        with pytest.raises(ValueError, match=message.format(place)):
            model.answer(["who"] * 2, ["cat", context])
    with pytest.raises(ValueError, match=message.format(0)):
        model.embed(["a", "\ud83d"])
