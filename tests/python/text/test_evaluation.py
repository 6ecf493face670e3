"""`packhorse.evaluation` and `packhorse evaluate`: the numbers by hand or from the methods
themselves, every kind of model, marks, refusals."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import packhorse
import pytest
from checkpoints import GOLDEN
from command_line import Cli, failed
from packhorse.evaluation import (
    Comparison,
    Measure,
    Spread,
    draw,
    evaluate,
    items,
    read_passages,
    statistics,
)
from packhorse.evaluation.figure import bins_of
from packhorse.evaluation.generators import Generate, Generated
from packhorse_weights import convert
from tiny_tokenizer import NO_TYPES, with_kind, with_tokenizer

for needed in ("typer", "rich", "tokenizers"):
    pytest.importorskip(needed)

TEXTS = [
    "the cat sat on the mat",
    "a dog",
    "who was it?",
    "mark said no",
    "in paris",
    "the dog sat",
]
# Texts whose tokens the tiny language model has.
LETTERS = ["zzz xyx", "lazy fox", "quux", "bold bug", "fuzzy glyph", "a b c d"]
# Golden model -> the task that it is for.
TASKS = {
    "bert-gelu": "embed",
    "bge-m3": "embed",
    "bert-predictions": "embed",
    "bert-splade": "embed_sparse",
    "bert-colbert": "embed_tokens",
    "bert-reranker": "score",
    "bert-sequence": "classify",
    "bert-tokens": "classify_tokens",
    "bert-answers": "answer",
    "generation/llama": "generate",
}


def folder_of(name: str, place: Path) -> Path:
    if name.startswith("generation"):
        return with_kind(GOLDEN / name, place / "model", "bytes", model_max_length=120)
    typed = name.startswith("bert")
    return with_tokenizer(GOLDEN / name, place / name, "bert", {} if typed else NO_TYPES)


def check_page(comparison: Comparison) -> None:
    """docs/accuracy.md has each measure, with the marks of its grades."""
    page = (Path(__file__).parents[3] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    for one in comparison.measures:
        rows = [row for row in page.splitlines() if f"`{one.name}`" in row]
        marks = "" if one.grade is None else f"| {one.close:g} | {one.usable:g} |"
        assert any(marks in row for row in rows), one.name


def values(comparison: Comparison) -> dict[str, float]:
    return {one.name: one.value for one in comparison.measures}


# --- numbers


def test_embeddings_by_hand() -> None:
    """The second text turns by 60 degrees, and lies nearest to the third then."""
    reference = np.array([[1, 0], [0.98, 0.2], [0, 1], [-1, 0.1]], np.float32)
    turned = reference.copy()
    turned[1] = reference[1] @ [[0.5, 3**0.5 / 2], [-(3**0.5) / 2, 0.5]]
    turned[2] *= 2
    cosines = statistics.cosines(turned, reference)
    np.testing.assert_allclose(cosines, [1, 0.5, 1, 1], atol=1e-6)
    assert statistics.neighbour_agreement(turned, reference, 3) == (0.75, 1)
    assert statistics.neighbour_agreement(turned, reference, 1)[1] == 0.75


def test_rank_correlation() -> None:
    """With ties, the value is the one that scipy.stats.spearmanr documents."""
    found = statistics.rank_correlation(np.array([1, 2, 3, 4, 5]), np.array([5, 6, 7, 8, 7]))
    assert found == pytest.approx(0.8207826816681233, abs=1e-12)
    one, two = np.arange(5.0), np.array([3.0, 3, 3, 3, 3])
    assert statistics.rank_correlation(one, -one) == pytest.approx(-1)
    assert statistics.rank_correlation(one, two) == 0
    assert statistics.rank_correlation(two, two) == 1


def test_generators_by_hand() -> None:
    expected = Generated(np.log([0.5, 0.25]), np.array([1, 2]), [[1, 2, 3, 4], [5, 6, 7, 8]])
    found = Generated(np.log([0.25, 0.25]), np.array([1, 3]), [[1, 2, 9, 4], [5, 6, 7, 8]])
    measures, spread = Generate().compare(found, expected)
    numbers = {one.name: one.value for one in measures}
    assert numbers["perplexity_float32"] == pytest.approx(8**0.5)
    assert numbers["perplexity_ratio"] == pytest.approx(2**0.5)
    assert numbers["top_token_same"] == 0.5
    assert numbers["logprob_difference_max"] == pytest.approx(math.log(2))
    assert numbers["greedy_same"] == 0.75
    assert numbers["greedy_first_difference"] == 3
    assert spread.values.shape == (2,)


def test_verdicts() -> None:
    measures = [Measure("a", "A", 0.5), Measure("b", "B", 0.98, "higher", 0.99, 0.9)]
    spread = Spread("nothing", np.zeros(1))
    low = Measure("c", "C", 0.02, "lower", 0.03, 0.05)
    assert Comparison("int8", "cpu", [*measures, low], spread).verdict == "usable"
    assert Comparison("int8", "cpu", [low], spread).verdict == "close"
    wrong = Measure("d", "D", math.nan, "lower", 0.03, 0.05)
    comparison = Comparison("int8", "cpu", [*measures, wrong], spread)
    assert comparison.verdict == "far"
    assert [one.name for one in comparison.reasons] == ["d"]
    assert comparison.as_dict()["measures"] == {"a": 0.5, "b": 0.98, "d": None}
    with pytest.raises(ValueError, match="'e' is not one of a, b, d"):
        comparison.measure("e")


def test_passages_are_in_the_order_of_their_digests() -> None:
    passages = read_passages(2000)
    assert len(passages) == 2000
    assert len({one.text for one in passages}) == 2000
    assert passages[:7] == read_passages(7)
    digests = [hashlib.sha256(one.text.encode()).digest() for one in passages]
    assert digests == sorted(digests)
    named = next(one for one in read_passages(10**6) if one.name == "textwrap.dedent")
    assert "leading whitespace" in named.text


# --- models


@pytest.mark.parametrize("name", TASKS)
def test_every_kind_of_model(name: str, tmp_path: Path) -> None:
    """float32 beside itself is the same in every number; int8 is not."""
    texts = LETTERS if TASKS[name] == "generate" else TEXTS
    found = evaluate(folder_of(name, tmp_path), texts, dtypes=["float32", "int8"], threads=1)
    assert found.task == TASKS[name]
    assert found.count == (1 if name == "bert-reranker" else len(TEXTS))
    same, other = found.comparisons
    assert same.verdict == "close"
    perfect = {"higher": 1, "lower": 0}
    for one in same.measures:
        if not one.name.startswith(("perplexity", "greedy_first")):
            assert one.value == pytest.approx(perfect[one.better], abs=1e-6), one.name
    assert values(other) != values(same)
    check_page(same)
    assert ElementTree.fromstring(draw(found)).tag.endswith("svg")
    assert json.dumps(found.as_dict(), allow_nan=False)


def test_classifier_flips(tmp_path: Path) -> None:
    folder = folder_of("bert-sequence", tmp_path)
    found = evaluate(folder, TEXTS, dtypes=["int8"], threads=1).comparisons[0]
    tables = []
    for dtype in ("float32", "int8"):
        model = packhorse.TextModel.load(folder, dtype=dtype, threads=1)
        labels = model.classify(TEXTS, top_k=None)
        tables.append([{one["label"]: one["score"] for one in row} for row in labels])
    differences = [
        max(abs(a[label] - b[label]) for label in a) for a, b in zip(*tables, strict=True)
    ]
    flips = [max(a, key=a.get) != max(b, key=b.get) for a, b in zip(*tables, strict=True)]
    numbers = values(found)
    assert numbers["label_flips"] == pytest.approx(np.mean(flips))
    assert numbers["probability_difference_max"] == pytest.approx(max(differences), rel=1e-5)
    assert numbers["probability_difference_mean"] == pytest.approx(np.mean(differences), rel=1e-5)
    np.testing.assert_allclose(found.spread.values, differences, rtol=1e-5)


def test_rerankers_take_queries_of_their_own(tmp_path: Path) -> None:
    folder = folder_of("bert-reranker", tmp_path)
    queries = [
        {"query": "the cat", "documents": TEXTS},
        {"query": "a dog", "documents": TEXTS[::-1]},
    ]
    found = evaluate(folder, queries, dtypes=["int8"], threads=1)
    assert found.count == 2
    scores = [
        [
            packhorse.TextModel.load(folder, dtype=dtype, threads=1).score(
                one["query"], one["documents"]
            )
            for one in queries
        ]
        for dtype in ("float32", "int8")
    ]
    numbers = values(found.comparisons[0])
    largest = np.abs(np.concatenate(scores[0]) - np.concatenate(scores[1])).max()
    assert numbers["score_difference_max"] == pytest.approx(largest, rel=1e-5)
    best = [a.argmax() == b.argmax() for a, b in zip(*scores, strict=True)]
    assert numbers["top_1_same"] == np.mean(best)


@pytest.mark.parametrize(
    ("dtype", "cache", "name"),
    [("int8", {}, "int8"), ("float32", {"kv_cache_dtype": "float8"}, "float32, cache in float8")],
)
def test_perplexity(tmp_path: Path, dtype: Any, cache: dict[str, Any], name: str) -> None:
    folder = folder_of("generation/llama", tmp_path)
    found = evaluate(folder, LETTERS, dtypes=[dtype], threads=1, **cache).comparisons[0]
    assert found.dtype == name
    perplexity = []
    for options in ({"dtype": dtype, **cache}, {"dtype": "float32"}):
        with packhorse.TextModel.load(folder, threads=1, kv_tokens=512, **options) as model:
            ids = [model.tokenizer.encode([text], None).ids[0] for text in LETTERS]
            scored = model.session.generate(
                ids, packhorse.Sampling(max_new_tokens=1, prompt_logprobs=0)
            )
        scores = np.concatenate([one.prompt_logprobs.logprobs for one in scored])
        perplexity.append(np.exp(-scores.mean()))
    numbers = values(found)
    assert perplexity[0] != perplexity[1]
    assert numbers["perplexity"] == pytest.approx(perplexity[0], rel=1e-6)
    assert numbers["perplexity_float32"] == pytest.approx(perplexity[1], rel=1e-6)


@pytest.mark.parametrize(
    ("make", "entries", "message"),
    [
        (items.plain_texts, ["a", {"txt": "b"}], r"texts\[1\] has 'txt', expected 'text'"),
        (items.plain_texts, [3], r"texts\[0\] is 3, expected a str or a mapping"),
        (items.texts_and_pairs, [{"text": "a", "text_pair": 1}], r"texts\[0\]: text_pair is 1"),
        (items.queries, ["a", {"query": "b", "documents": ["c", "d"]}], r"texts\[0\] is a text"),
        (items.queries, [{"query": "b", "documents": ["c"]}], r"documents is \['c'\], expected a"),
        (items.questions, [{"question": "b"}], r"texts\[0\]: context is None, expected a str"),
    ],
)
def test_entries_that_do_not_fit(make: Any, entries: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(entries)


def test_queries_of_plain_texts() -> None:
    texts = [f"line {i}\nmore" for i in range(41)]
    found = items.queries(texts)
    assert [(query, len(documents)) for query, documents in found] == [
        ("line 0", 20),
        ("line 20", 20),
    ]
    assert items.questions(["who?\nthe cat"]) == [("who?", "who?\nthe cat")]
    with pytest.raises(ValueError, match="1 texts, expected at least 2: documents of a query"):
        items.queries(["alone"])


def test_refusals(tmp_path: Path) -> None:
    folder = folder_of("bert-gelu", tmp_path)
    with pytest.raises(ValueError, match="task 'guess' is not one of embed, score"):
        evaluate(folder, TEXTS, task="guess")
    with pytest.raises(ValueError, match="classify: this model gives embeddings"):
        evaluate(folder, TEXTS, task="classify", dtypes=["int8"])
    with pytest.raises(ValueError, match="1 texts, expected at least 2"):
        evaluate(folder, TEXTS[:1])
    quantized = convert(folder, tmp_path / "q", quantize="int8")
    with pytest.raises(ValueError, match="holds its weights in int8 alone"):
        evaluate(quantized, TEXTS)
    found = evaluate(quantized, TEXTS, reference=folder, threads=1)
    assert [one.dtype for one in found.comparisons] == ["int8"]
    own = evaluate(folder, TEXTS, dtypes=["int8"], threads=1)
    assert values(found.comparisons[0]) == values(own.comparisons[0])
    assert found.digest == own.digest


def test_progress_counts_all_dtypes(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    folder = folder_of("bert-gelu", tmp_path)
    evaluate(
        folder,
        TEXTS,
        dtypes=["int8", "int8"],
        threads=1,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[0] == (0, None)
    assert seen[-1] == (18, 18)
    assert sorted(done for done, _ in seen) == [done for done, _ in seen]


# --- plots


def test_histograms() -> None:
    bins = bins_of(Spread("", np.array([0.0, 0.5, 0.9, 1.0, math.nan])), 2)
    assert bins == ([1, 3], [0, 0.5, 1])
    assert bins_of(Spread("", np.ones(3)), 5) == ([3], [1, 1])
    assert bins_of(Spread("", np.full(2, math.nan)), 5) == ([], [])


def test_svg_has_a_panel_for_each_dtype(tmp_path: Path) -> None:
    folder = folder_of("bert-gelu", tmp_path)
    found = evaluate(folder, TEXTS, dtypes=["int8", "float32"], threads=1, source="<two> & three")
    root = ElementTree.fromstring(draw(found))
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}g")) == 2
    words = [one.text or "" for one in root.iter(f"{space}text")]
    assert any(word.startswith("int8 on cpu: ") for word in words)
    assert any("<two> & three" in word for word in words)


# --- the command


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join([*TEXTS, ""]), encoding="utf-8")
    return path


def test_command(cli: Cli, lines: Path, tmp_path: Path) -> None:
    folder, svg = folder_of("bert-gelu", tmp_path), tmp_path / "plot.svg"
    asked = ("evaluate", folder, lines, "--dtype", "float32,int8", "--threads", 1)
    shown = cli(*asked, "--svg", svg)
    assert shown.status == 0
    assert "int8 on cpu beside float32 on cpu" in shown.out
    assert f"embed, 6 texts: {lines}" in shown.out
    assert shown.out.count("verdict") == 2
    assert "close to float32" in shown.out
    assert "█" in shown.out
    assert svg.read_text(encoding="utf-8").startswith("<svg")
    found = json.loads(cli(*asked, "--json", "--count", 4).out)
    expected = evaluate(folder, TEXTS[:4], dtypes=["float32", "int8"], threads=1, source=str(lines))
    assert found == expected.as_dict()
    assert found["texts"]["count"] == 4
    assert cli(*asked, "--json").out == cli("evaluate", folder, "-", *asked[3:], "--json",
        stdin=lines.read_bytes()).out.replace('"stdin"', f'"{lines}"')  # fmt: skip


def test_marks(cli: Cli, lines: Path, tmp_path: Path) -> None:
    asked = ("evaluate", folder_of("bert-gelu", tmp_path), lines, "--dtype", "int8")
    assert cli(*asked, "--require", "cosine_min=0.5", "--fail-under", "far").status == 0
    outcome = cli(*asked, "--require", "cosine_min=0.99999999", "--require", "cosine_median=0.9")
    assert outcome.status == 3
    assert "verdict" in outcome.out
    assert outcome.err.count("\n") == 1
    assert "packhorse: int8 cosine_min is 0.9" in outcome.err
    assert "required at least 1" in outcome.err
    outcome = cli(*asked, "--require", "label_flips=0")
    assert outcome.status == 1
    assert "'label_flips' is not one of cosine_min, cosine_1_percent" in outcome.err
    assert failed(cli(*asked, "--require", "cosine_min"), "expected NAME=NUMBER")
    assert failed(cli(*asked, "--fail-under", "good"), "'good' is not one of far, usable, close")
    assert failed(cli(*asked, "--svg", tmp_path / "no" / "x.svg"), "is not a folder")


def test_a_verdict_that_fails(
    cli: Cli, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turned(*_: object) -> Any:
        return np.array([0.97, 1.0])

    monkeypatch.setattr(statistics, "cosines", turned)
    asked = ("evaluate", folder_of("bert-gelu", tmp_path), lines, "--dtype", "int8")
    shown = cli(*asked, "--fail-under", "usable")
    assert shown.status == 0
    assert "usable; try it on the task itself: cosine, smallest" in shown.out
    shown = cli(*asked, "--fail-under", "close")
    assert (shown.status, shown.err) == (3, "packhorse: int8 is usable, required close\n")


def test_json_lines(cli: Cli, tmp_path: Path) -> None:
    folder, path = folder_of("bert-reranker", tmp_path), tmp_path / "queries.jsonl"
    query = {"query": "the cat", "documents": TEXTS}
    path.write_text(json.dumps(query) + "\n\n" + json.dumps(query) + "\n")
    found = json.loads(cli("evaluate", folder, path, "--dtype", "int8", "--json").out)
    assert (found["task"], found["texts"]["count"]) == ("score", 2)
    path.write_text('"a"\n{"query"\n')
    assert failed(cli("evaluate", folder, path), "queries.jsonl, line 2: not JSON")
    path.write_text("[1]\n")
    assert failed(cli("evaluate", folder, path), "line 1: [1], expected a text or an object")


def test_text_that_ships(cli: Cli, tmp_path: Path) -> None:
    folder = folder_of("bert-gelu", tmp_path)
    found = json.loads(cli("evaluate", folder, "--dtype", "int8", "--count", 5, "--json").out)
    assert found["texts"]["source"].startswith("documentation of Python 3.")
    assert found["texts"]["count"] == 5
