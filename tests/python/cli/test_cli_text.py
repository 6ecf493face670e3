"""Pairs and texts on the command line: score, classify, and models that need a template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import BERT, GOLDEN, TOKENS, with_logit_score
from command_line import Cli, Outcome, failed
from packhorse_weights import resolve_model
from text_cases import TEMPLATE
from tiny_tokenizer import with_kind, with_tokenizer

for needed in ("typer", "rich", "tokenizers"):
    pytest.importorskip(needed)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return tmp_path / "lines.txt"


def rows_of(shown: Outcome) -> list[dict[str, Any]]:
    assert (shown.status, shown.err) == (0, "")
    return [json.loads(line) for line in shown.out.splitlines()]


def test_score(cli: Cli, text: Path, tmp_path: Path) -> None:
    reranker = with_tokenizer(GOLDEN / "bert-reranker", tmp_path / "m")
    lines = ["the cat", "", "dogs", "a mat " * 30]
    text.write_text("\n".join(lines))
    shown = cli("score", reranker, "who", text)
    assert (shown.status, shown.err) == (0, "packhorse: lines cut short at 40 tokens: 1\n")
    rows = [json.loads(line) for line in shown.out.splitlines()]
    scores = packhorse.TextModel.load(reranker).score("who", lines)
    assert rows == [{"index": i, "score": score} for i, score in enumerate(scores.tolist())]
    classifier = with_tokenizer(GOLDEN / "bert-sequence", tmp_path / "c")
    assert failed(cli("score", classifier, "who", text), "gives texts 3 labels")
    refused = cli("score", reranker, "who", text, "--instruction", "find it")
    assert failed(refused, "instruction: this model takes none")
    squashed = packhorse.TextModel.load(reranker).score("who", lines, activation="sigmoid")
    shown = cli("score", reranker, "who", text, "--activation", "sigmoid")
    found = [json.loads(line)["score"] for line in shown.out.splitlines()]
    assert found == squashed.tolist() != scores.tolist()


def test_the_best_of_scored_lines(cli: Cli, text: Path, tmp_path: Path) -> None:
    reranker = with_tokenizer(GOLDEN / "bert-reranker", tmp_path / "m")
    lines = ["the cat", "dogs", "a mat", "who was it?", "the cat"]
    text.write_text("\n".join(lines))
    scores = packhorse.TextModel.load(reranker).score("who", lines).tolist()
    order = sorted(range(len(lines)), key=lambda i: -scores[i])
    rows = rows_of(cli("score", reranker, "who", text, "--top-k", 3, "--text"))
    assert rows == [{"index": i, "text": lines[i], "score": scores[i]} for i in order[:3]]
    assert [row["index"] for row in rows_of(cli("score", reranker, "who", text, "--top-k", 9))] == (
        order
    )


def test_score_in_a_template(cli: Cli, text: Path, tmp_path: Path) -> None:
    folder = with_tokenizer(GOLDEN / "llama-answers", tmp_path / "m")
    text.write_text("the cat\ndogs")
    template = tmp_path / "template.json"
    template.write_text(json.dumps(TEMPLATE))
    model = packhorse.TextModel.load(folder, reranker=TEMPLATE)
    scores = model.score("who", ["the cat", "dogs"], instruction="mark")
    expected = [{"index": i, "score": score} for i, score in enumerate(scores.tolist())]
    asked = ("who", text, "--instruction", "mark")
    shown = cli("score", folder, *asked, "--reranker", template)
    assert [json.loads(line) for line in shown.out.splitlines()] == expected
    assert cli("convert", folder, tmp_path / "c", "--reranker", template).status == 0
    assert cli("score", tmp_path / "c", *asked).out == shown.out
    assert failed(cli("score", folder, "who", text, "--reranker", "qwen4"), "known: qwen3")


LINES = ["the cat", "", "dogs \u00e9", "a mat"]


@pytest.fixture
def lines(text: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of lines that is read in several chunks."""
    monkeypatch.setattr("packhorse.cli.lines._CHUNK_BYTES", 8)
    text.write_text("\n".join(LINES), encoding="utf-8")
    return text


def test_classify(cli: Cli, lines: Path, tmp_path: Path) -> None:
    folder = with_tokenizer(GOLDEN / "bert-sequence", tmp_path / "c")
    model = packhorse.TextModel.load(folder)
    rows = rows_of(cli("classify", folder, lines))
    assert rows == [{"index": i, **label} for i, label in enumerate(model.classify(LINES))]
    assert rows_of(cli("classify", folder, lines, "--top-k", 1)) == rows
    rows = rows_of(cli("classify", folder, lines, "--top-k", 2))
    labels = model.classify(LINES, top_k=2)
    assert rows == [{"index": i, "labels": its} for i, its in enumerate(labels)]
    assert failed(cli("classify", BERT, lines), "no tokenizer.json")
    rows = rows_of(cli("classify", folder, lines, "--text"))
    assert [row["text"] for row in rows] == LINES
    sums = model.classify(LINES, activation="none")
    rows = rows_of(cli("classify", folder, lines, "--activation", "none"))
    assert rows == [{"index": i, **label} for i, label in enumerate(sums)]
    for option in (("--strategy", "simple"), ("--stride", 5)):
        refused = cli("classify", folder, lines, *option)
        assert failed(refused, option[0], "labels texts, not tokens")


def test_classify_pairs(cli: Cli, text: Path, tmp_path: Path) -> None:
    folder = with_tokenizer(GOLDEN / "bert-sequence", tmp_path / "c")
    pairs = [("the cat", "sat"), ("", "dogs"), ("a mat", "")]
    text.write_text("\n".join("\t".join(pair) for pair in pairs))
    found = packhorse.TextModel.load(folder).classify(pairs)
    rows = rows_of(cli("classify", folder, text, "--pairs"))
    assert rows == [{"index": i, **label} for i, label in enumerate(found)]
    text.write_text("one\ttwo\nthree")
    assert failed(cli("classify", folder, text, "--pairs"), "line 2 has 0 tabs, expected one")
    tagger = with_tokenizer(GOLDEN / "bert-tokens", tmp_path / "t")
    assert failed(cli("classify", tagger, text, "--pairs"), "--pairs: this model labels tokens")


def test_entities(cli: Cli, lines: Path, tmp_path: Path) -> None:
    folder = with_tokenizer(GOLDEN / "bert-tokens", tmp_path / "t")
    model = packhorse.TextModel.load(folder)
    for strategy in ("none", "first", "average", "max", "simple"):
        entities = model.classify_tokens(LINES, aggregation_strategy=strategy)
        rows = rows_of(cli("classify", folder, lines, "--strategy", strategy))
        assert rows == [{"index": i, "entities": its} for i, its in enumerate(entities)]
    assert rows_of(cli("classify", folder, lines)) == rows
    assert failed(cli("classify", folder, lines, "--strategy", "last"), "'last' is not one of")
    lines.write_text("the cat sat on the mat in paris " * 12)
    asked = ("classify", folder, lines, "--strategy", "max", "--stride", 5)
    entities = model.classify_tokens(lines.read_text(), aggregation_strategy="max", stride=5)
    assert rows_of(cli(*asked)) == [{"index": 0, "entities": entities}]
    for option in (("--top-k", "1"), ("--activation", "none")):
        refused = cli("classify", folder, lines, *option)
        assert failed(refused, option[0], "this model labels tokens")


def test_answer(cli: Cli, lines: Path, tmp_path: Path) -> None:
    folder = with_tokenizer(GOLDEN / "bert-answers", tmp_path / "a")
    model = packhorse.TextModel.load(folder)
    asked = ("answer", folder, "who sat", lines)
    answers = model.answer(["who sat"] * len(LINES), LINES)
    assert rows_of(cli(*asked)) == [{"index": i, **its} for i, its in enumerate(answers)]
    options = {"max_answer_length": 2, "stride": 3, "allow_none": True}
    answers = model.answer(["who sat"] * len(LINES), LINES, top_k=3, **options)
    named = ("--max-answer-length", 2, "--stride", 3, "--allow-none")
    rows = rows_of(cli(*asked, "--top-k", 3, *named))
    assert rows == [{"index": i, "answers": its} for i, its in enumerate(answers)]
    classifier = with_tokenizer(GOLDEN / "bert-sequence", tmp_path / "c")
    assert failed(cli("answer", classifier, "who sat", lines), "answer: this model")


def test_fill_mask(cli: Cli, text: Path, tmp_path: Path) -> None:
    folder = with_kind(GOLDEN / "bert-predictions", tmp_path / "m", "words")
    masked = ["the [MASK] sat", "[MASK] [MASK]"]
    text.write_text("\n".join(masked))
    model = packhorse.TextModel.load(folder, max_predictions=2)
    for top_k in (5, 2):
        rows = rows_of(cli("fill-mask", folder, text, "--top-k", top_k))
        found = model.fill_mask(masked, top_k=top_k)
        found[0] = found[0] if isinstance(found[0][0], list) else [found[0]]  # a text with one mask
        assert rows == [{"index": i, "masks": its} for i, its in enumerate(found)]
    refused = cli("fill-mask", folder, text, "--max-masks", 1)
    assert failed(refused, "line 2 has 2 [MASK], expected 1 to 1")
    other = with_tokenizer(GOLDEN / "bert-sequence", tmp_path / "c")
    assert failed(cli("fill-mask", other, text), "fill_mask: this model gives texts 3 labels")


@pytest.mark.parametrize("name", ["bert-splade", "bge-m3"])
def test_embed_sparse(cli: Cli, lines: Path, tmp_path: Path, name: str) -> None:
    folder = with_tokenizer(GOLDEN / name, tmp_path / "s")
    model = packhorse.TextModel.load(folder)
    rows = rows_of(cli("embed-sparse", folder, lines, "--prompt", "the "))
    found = model.embed_sparse(LINES, prompt="the ")
    assert [row["index"] for row in rows] == list(range(len(LINES)))
    for row, (ids, weights) in zip(rows, found, strict=True):
        assert row["ids"] == ids.tolist()
        np.testing.assert_array_equal(np.array(row["weights"], np.float32), weights)
    assert failed(cli("embed-sparse", with_tokenizer(BERT, tmp_path / "m"), lines), "embed_sparse")


def test_embed_tokens(cli: Cli, lines: Path, tmp_path: Path) -> None:
    folder = with_tokenizer(GOLDEN / "bert-colbert", tmp_path / "v")
    rows = rows_of(cli("embed-tokens", folder, lines))
    found = packhorse.TextModel.load(folder).embed_tokens(LINES)
    for row, vectors in zip(rows, found, strict=True):
        np.testing.assert_array_equal(np.array(row["vectors"], np.float32), vectors)
    refused = cli("embed-tokens", folder, lines, "--prompt-name", "query")
    assert failed(refused, "'query' is not one of this model's prompts: it has none")


def test_inspect_and_bench_in_a_template(cli: Cli, tmp_path: Path) -> None:
    """The folder cannot be read without a template."""
    folder = with_logit_score("qwen3-answers", tmp_path / "m", 61, 7)
    template = tmp_path / "template.json"
    template.write_text(json.dumps(TOKENS))
    for command in (("inspect", folder), ("bench", folder, "--seconds", "0.1")):
        assert failed(cli(*command), "reads pairs in a template")
        shown = cli(*command, "--reranker", template)
        assert shown.status == 0
        assert str(folder) in shown.out
    plan = packhorse.plan_memory(folder, reranker=TOKENS)
    assert plan == packhorse.Session.load(folder, reranker=TOKENS).memory_plan
    assert "logits" in {buffer.name for buffer in plan.arena.buffers}
    with pytest.raises(ValueError, match="a spec says all of this itself"):
        packhorse.plan_memory(resolve_model(folder, TOKENS).spec, reranker=TOKENS)
