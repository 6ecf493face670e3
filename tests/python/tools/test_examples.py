"""The Python examples: what they compute, beside sentence-transformers where it is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoints import GOLDEN
from text_cases import MINILM_TEXTS, TEXTS
from tiny_tokenizer import with_tokenizer

pytest.importorskip("tokenizers")
sys.path.append(str(Path(__file__).parents[3] / "examples"))
import compare_sentence_transformers as example
import sample


@pytest.fixture
def reranker(tmp_path: Path) -> Path:
    return with_tokenizer(GOLDEN / "bert-reranker", tmp_path / "m")


def run_example(
    monkeypatch: pytest.MonkeyPatch, folder: Path, texts: tuple[str, ...], *options: str
) -> int:
    """Runs an example. Returns its exit status."""
    file = folder.parent / "lines.txt"
    file.write_text("\n".join(texts) + "\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["compare", str(folder), "--file", str(file), *options])
    with pytest.raises(SystemExit) as stop:
        example.main()
    return int(stop.value.code or 0)


def test_compare_embeddings(minilm: Path) -> None:
    pytest.importorskip("sentence_transformers")
    result = example.compare(minilm, MINILM_TEXTS)
    assert (result.kind, result.texts, result.other_ids) == ("embeddings", 4, [])
    assert result.max_difference < 2e-6
    assert result.min_cosine is not None
    assert result.min_cosine > 0.999999


def test_models_in_packages(minilm: Path, smollm2: Path) -> None:
    assert sample.find_model() == minilm
    assert sample.find_language_model() == smollm2


def test_compare_scores(reranker: Path) -> None:
    pytest.importorskip("sentence_transformers")
    result = example.compare(reranker, TEXTS)
    assert (result.kind, result.texts, result.other_ids) == ("scores", 6, [])
    assert result.max_difference < 5e-6
    assert result.min_cosine is None


def test_compare_sparse_vectors(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    folder = with_tokenizer(GOLDEN / "bert-splade", tmp_path / "m")
    kind = '{"model_type": "SparseEncoder"}'
    (folder / "config_sentence_transformers.json").write_text(kind)
    result = example.compare(folder, TEXTS)
    assert (result.kind, result.other_ids) == ("sparse vectors", [])
    assert result.max_difference < 1e-5


def test_compare_finds_what_differs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reranker: Path
) -> None:
    """The other library makes other ids of one text and adds 0.01 to every score."""
    model = example.packhorse.TextModel.load(reranker)
    honest = example.ours(model, "scores")

    def other_ids(texts: object) -> list[list[int]]:
        return [[*ids, 7] if i == 1 else ids for i, ids in enumerate(honest.token_ids(texts))]

    added = {"amount": 0.01}
    peer = example.Runner(other_ids, lambda texts: honest.run(texts) + np.float32(added["amount"]))
    monkeypatch.setattr(example, "theirs", lambda *_: peer)
    assert run_example(monkeypatch, reranker, TEXTS[2:5], "--speed", "--tolerance", "1") == 1
    shown = capsys.readouterr().out
    assert "the same for 2 of 3" in shown
    assert "not for text 1" in shown
    assert "largest difference   1.0e-02" in shown
    assert "times as long" in shown

    peer = peer._replace(token_ids=honest.token_ids)
    assert run_example(monkeypatch, reranker, TEXTS[2:5]) == 1  # the tolerance is 1e-4
    added["amount"] = 1e-5
    assert run_example(monkeypatch, reranker, TEXTS[2:5]) == 0


def test_demo_counts_padding() -> None:
    pytest.importorskip("rich")
    import demo

    lengths = [1, 9] * 32
    assert demo.padded_lengths(lengths) == [9] * 64
    assert demo.padded_lengths(sorted(lengths)) == [1] * 32 + [9] * 32


def test_same_bits() -> None:
    import same_bits

    random = np.random.default_rng(0)
    crowd = [random.integers(0, 60, n).tolist() for n in (1, 65)]
    model = GOLDEN / "generation" / "llama"
    found = list(same_bits.check(model, random.integers(0, 60, 200).tolist(), crowd, threads=1))
    assert len(found) == 12
    assert all(equal for _, equal, _ in found), found
    remarks = {what: remark for what, _, remark in found}
    assert remarks["greedy, from the prefix cache"] == "192 cached tokens"
    assert remarks["greedy, after preemption"] != "0 in the session"
