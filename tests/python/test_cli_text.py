"""Pairs and texts on the command line: score, classify, and models that need a template."""

from __future__ import annotations

import json
from pathlib import Path

import packhorse
import pytest
from checkpoints import BERT, GOLDEN, TOKENS, with_logit_score
from command_line import Cli, failed
from packhorse_weights import resolve_model
from text_cases import TEMPLATE
from tiny_tokenizer import with_tokenizer

for needed in ("typer", "rich", "tokenizers"):
    pytest.importorskip(needed)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return tmp_path / "lines.txt"


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


def test_classify(cli: Cli, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.cli.lines._CHUNK_BYTES", 8)
    lines = ["the cat", "", "dogs \u00e9", "a mat"]
    text.write_text("\n".join(lines), encoding="utf-8")
    folder = with_tokenizer(GOLDEN / "bert-sequence", tmp_path / "c")
    model = packhorse.TextModel.load(folder)
    shown = cli("classify", folder, text)
    assert (shown.status, shown.err) == (0, "")
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert rows == [{"index": i, **label} for i, label in enumerate(model.classify(lines))]
    rows = [
        json.loads(line)
        for line in cli("classify", folder, text, "--top-k", 2).out.split("\n")[:-1]
    ]
    labels = model.classify(lines, top_k=2)
    assert rows == [{"index": i, "labels": its} for i, its in enumerate(labels)]
    assert failed(cli("classify", BERT, text), "no tokenizer.json")

    folder = with_tokenizer(GOLDEN / "bert-tokens", tmp_path / "t")
    entities = packhorse.TextModel.load(folder).classify_tokens(
        lines, aggregation_strategy="simple"
    )
    rows = [json.loads(line) for line in cli("classify", folder, text).out.splitlines()]
    assert rows == [{"index": i, "entities": its} for i, its in enumerate(entities)]


def test_inspect_and_bench_in_a_template(cli: Cli, tmp_path: Path) -> None:
    """Of a folder that cannot be read without one."""
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
    with pytest.raises(ValueError, match="a spec says itself"):
        packhorse.plan_memory(resolve_model(folder, TOKENS).spec, reranker=TOKENS)
