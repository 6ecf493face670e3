"""Classifiers of checkpoints, and pairs scored by cross-encoders."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import GOLDEN, edited
from hypothesis import given
from hypothesis import strategies as st
from packhorse.pairs import join_pairs
from packhorse_weights import CheckpointError, convert, resolve_model

IDENTITY = "torch.nn.modules.linear.Identity"
SIGMOID = "torch.nn.modules.activation.Sigmoid"
QUERY = [7, 8, 9]
DOCUMENTS = [[20, 21], [], [30], [40, 41, 42, 43, 44, 45], list(range(50, 90))]
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [],
    "pair": [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 1}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 1}},
    ],
    "special_tokens": {
        "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
        "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]},
    },
}
BERT_PAIR = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
ROBERTA_PAIR = {"type": "RobertaProcessing", "sep": ["</s>", 3], "cls": ["<s>", 2]}


def with_tokenizer(folder: Path, processor: Any) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps({"post_processor": processor}))
    return folder


def update(changes: dict[str, Any], config: dict[str, Any]) -> None:
    config.update(changes)


def classifier_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = resolve_model(folder).spec["heads"]["classifier"]
    return found


def test_labels_come_from_the_config(tmp_path: Path) -> None:
    three = ["negative", "neutral", "positive"]
    assert classifier_of(GOLDEN / "bert-sequence") == {"input": "pooler", "labels": three}
    assert packhorse.Session.load(GOLDEN / "bert-sequence", max_tokens=8).labels == three
    assert packhorse.Session.load(GOLDEN / "bert-gelu", max_tokens=8).labels == []
    assert classifier_of(GOLDEN / "roberta-answers")["labels"] == ["start", "end"]
    for change, labels in (
        ({"id2label": None, "num_labels": 3}, ["LABEL_0", "LABEL_1", "LABEL_2"]),
        ({"id2label": {"2": "c", "0": "a", "1": "b"}}, ["a", "b", "c"]),
    ):
        folder = edited(GOLDEN / "bert-sequence", tmp_path / labels[0], partial(update, change))
        assert classifier_of(folder)["labels"] == labels


def test_an_encoder_alone_has_no_classifier(tmp_path: Path) -> None:
    """Whatever class the config names: what counts is what the file holds."""

    def without(tensors: dict[str, Any]) -> None:
        del tensors["classifier.weight"], tensors["classifier.bias"]

    folder = edited(GOLDEN / "bert-sequence", tmp_path / "m", tensors=without)
    session = packhorse.Session.load(folder, max_tokens=8)
    with pytest.raises(ValueError, match="'logits' was asked for.*: hidden, embedding, pooled"):
        session.run([[1]], outputs=["logits"])
    assert session.run([[1]]).hidden.shape == (1, 40)


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("bert-sequence", {"id2label": {"1": "a", "2": "b"}}, "id2label.*from 0 on"),
        ("bert-sequence", {"id2label": ["a"]}, "id2label"),
        ("bert-sequence", {"id2label": {"0": "a"}}, r"classifier.weight has shape \[3, 40\].*\[1,"),
        (
            "bert-reranker",
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}},
            "activation_fn 'torch.nn.modules.activation.Tanh' is not supported.*Sigmoid",
        ),
        ("deberta-v3-sequence", {"pooler_hidden_size": 16}, "pooler_hidden_size = 16"),
        ("deberta-v3-sequence", {"pooler_hidden_act": "selu"}, "pooler_hidden_act 'selu'"),
        ("modernbert-sequence", {"classifier_pooling": "max"}, "classifier_pooling 'max'"),
        ("modernbert-sequence", {"classifier_activation": "elu"}, "classifier_activation 'elu'"),
        ("modernbert-sequence", {"classifier_bias": True}, "head.dense.bias"),
    ],
)
def test_refused_heads(model: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = edited(GOLDEN / model, tmp_path / "m", lambda config: config.update(changes))
    with pytest.raises(CheckpointError, match=message):
        resolve_model(folder)


@pytest.mark.parametrize(
    ("fields", "score"),
    [
        ({}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, "identity"),
        ({"sentence_transformers": {"activation_fn": SIGMOID}}, "sigmoid"),
        ({"sbert_ce_default_activation_function": IDENTITY}, "identity"),
    ],
)
def test_score_functions(fields: dict[str, Any], score: str, tmp_path: Path) -> None:
    def edit(config: dict[str, Any]) -> None:
        del config["sentence_transformers"]
        config.update(fields)

    folder = edited(GOLDEN / "bert-reranker", tmp_path / "m", edit)
    assert classifier_of(folder)["score"] == score
    session = packhorse.Session.load(with_tokenizer(folder, TEMPLATE), max_tokens=200)
    logits = session.run(
        packhorse.pack([[2, *QUERY, 3, 20, 3]], type_ids=[[0, 0, 0, 0, 0, 1, 1]]), ["logits"]
    ).logits[:, 0]
    expected = 1 / (1 + np.exp(-logits.astype(np.float64))) if score == "sigmoid" else logits
    np.testing.assert_allclose(session.score(QUERY, [[20]]), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "processor", "between", "second_type"),
    [
        ("bert-reranker", TEMPLATE, [3], 1),
        ("bert-reranker", BERT_PAIR, [3], 1),
        ("bert-reranker", {"type": "Sequence", "processors": [{"type": "X"}, TEMPLATE]}, [3], 1),
        ("xlm-roberta-reranker", ROBERTA_PAIR, [3, 3], 0),
        ("mpnet-sequence", TEMPLATE, [3], 0),  # no types, whatever the tokenizer says
        ("modernbert-reranker", TEMPLATE, [3], 0),
    ],
)
def test_pairs(
    model: str, processor: Any, between: list[int], second_type: int, tmp_path: Path
) -> None:
    folder = with_tokenizer(edited(GOLDEN / model, tmp_path / "m"), processor)
    session = packhorse.Session.load(folder, max_tokens=100, max_sequences=3)
    found = session.score(QUERY, DOCUMENTS)
    assert found.dtype == np.float32
    assert found.shape == (len(DOCUMENTS),)
    for score, document in zip(found, DOCUMENTS, strict=True):
        first = [2, *QUERY, *between]
        types = [0] * len(first) + [second_type] * (len(document) + 1)
        batch = packhorse.pack([[*first, *document, 3]], type_ids=[types] if second_type else None)
        logit = session.run(batch, outputs=["logits"]).logits[0, 0]
        identity = model == "bert-reranker"
        np.testing.assert_allclose(
            score, logit if identity else 1 / (1 + np.exp(-logit)), rtol=1e-6, atol=1e-7
        )
    assert len(set(found.tolist())) == len(DOCUMENTS)
    assert session.score(QUERY, []).shape == (0,)
    converted = packhorse.Session.load(convert(folder, tmp_path / "converted"), max_tokens=100)
    np.testing.assert_array_equal(converted.score(QUERY, DOCUMENTS), found)


def test_pairs_as_the_tokenizer_joins_them(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {str(i): i for i in range(100)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="2 $A 3", pair="2 $A 3 $B:1 3:1", special_tokens=[("2", 2), ("3", 3)]
    )
    folder = edited(GOLDEN / "bert-reranker", tmp_path / "m")
    tokenizer.save(str(folder / "tokenizer.json"))
    session = packhorse.Session.load(folder, max_tokens=200)
    query = " ".join(map(str, QUERY))
    pairs = tokenizer.encode_batch([(query, " ".join(map(str, d))) for d in DOCUMENTS])
    batch = packhorse.pack([pair.ids for pair in pairs], type_ids=[pair.type_ids for pair in pairs])
    expected = session.run(batch, outputs=["logits"]).logits[:, 0]
    np.testing.assert_array_equal(session.score(QUERY, DOCUMENTS), expected)


def test_long_documents_are_cut(tmp_path: Path) -> None:
    folder = with_tokenizer(edited(GOLDEN / "bert-reranker", tmp_path / "m"), TEMPLATE)
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 12}')
    session = packhorse.Session.load(folder, max_tokens=200)
    score = partial(session.score, truncation="only_second")
    for found in (session.score, score):
        long, cut = found(QUERY, [list(range(20, 60)), list(range(20, 26))])
        assert long == cut  # 12 - 3 special tokens - 3 of the query = 6
    assert score(range(9), [[20]]) == score(range(9), [[]])
    with pytest.raises(ValueError, match="query has 10 tokens, a pair at most 12 with 3 special"):
        score(range(10), [[20]])
    assert session.score(range(10), [[20]]) == session.score(range(8), [[20]])
    assert session.score(range(10), [range(20, 30)]) == session.score(range(4), [range(20, 25)])
    with pytest.raises(ValueError, match="truncation 'only_first' is not longest_first or"):
        session.score(QUERY, [[20]], truncation="only_first")  # type: ignore[arg-type]


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 12))
def test_pairs_are_cut_as_tokenizers_does(query: int, document: int, room: int) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(room)
    expected = tokenizer.encode("a " * query, "b " * document).ids
    pair = {"tokens": ["query", "document"], "types": [0, 0]}
    (found,), _ = join_pairs({"pair": pair}, room, [0] * query, [[1] * document], "longest_first")
    assert found.tolist() == expected


def test_models_that_score_nothing(tmp_path: Path) -> None:
    for model, message in (
        ("bert-gelu", "gives embeddings"),
        ("bert-sequence", "gives texts 3 labels .* expected .* with one label: use classify"),
        ("bert-tokens", "gives tokens 9 labels"),
        ("bert-reranker", "no tokenizer.json"),
    ):
        session = packhorse.Session.load(GOLDEN / model, max_tokens=64)
        with pytest.raises(ValueError, match=message):
            session.score(QUERY, DOCUMENTS)
    single = {**TEMPLATE, "pair": [{"Sequence": {"id": "A", "type_id": 0}}]}
    for i, processor in enumerate((None, single, {"type": "ByteLevel"})):
        folder = with_tokenizer(edited(GOLDEN / "bert-reranker", tmp_path / str(i)), processor)
        session = packhorse.Session.load(folder, max_tokens=64)
        with pytest.raises(ValueError, match="no tokenizer.json that says how pairs are joined"):
            session.score(QUERY, DOCUMENTS)


@pytest.mark.parametrize(
    "processor",
    [
        {"type": "BertProcessing"},
        {"type": "BertProcessing", "sep": "x", "cls": ["[CLS]", "2"]},
        {**TEMPLATE, "special_tokens": {}},
        {**TEMPLATE, "pair": [{**part, "Sequence": 1} for part in TEMPLATE["pair"]]},
        {**TEMPLATE, "pair": [7]},
        {**TEMPLATE, "pair": [{"Sequence": {"id": "C", "type_id": 0}}]},
    ],
)
def test_hostile_post_processors(processor: Any, tmp_path: Path) -> None:
    folder = with_tokenizer(edited(GOLDEN / "bert-reranker", tmp_path / "m"), processor)
    with pytest.raises(CheckpointError, match="post_processor"):
        resolve_model(folder)


def test_run_many_with_types(tmp_path: Path) -> None:
    session = packhorse.Session.load(GOLDEN / "bert-sequence", max_tokens=10, max_sequences=3)
    rows = [[5, 6, 7, 8], [9], [10] * 8, [], [11, 12]]
    types = [[0, 0, 1, 1], [1], [1] * 8, [], [0, 1]]
    many = session.run_many(rows, ["hidden", "logits"], type_ids=types)
    whole = packhorse.Session.load(GOLDEN / "bert-sequence", max_tokens=100).run(
        packhorse.pack(rows, type_ids=types), ["hidden", "logits"]
    )
    np.testing.assert_array_equal(many.hidden, whole.hidden)
    np.testing.assert_array_equal(many.logits, whole.logits)
    assert not many.logits[3].any()
    with pytest.raises(ValueError, match="type_ids has 1 rows, sequences have 5"):
        session.run_many(rows, type_ids=[[0]])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("pair", 7, "'pair' is 7"),
        ("pair", {"tokens": [2, "query", 3], "types": [0, 0, 0]}, "expected 'tokens', ids with"),
        ("pair", {"tokens": ["query", "document"], "types": [0]}, "expected 'tokens', ids with"),
        ("pair", {"tokens": ["query", "document", True], "types": [0, 0, 0]}, "expected 'tokens'"),
        ("score", "softmax", "'heads.classifier.score' is 'softmax', expected"),
    ],
)
def test_hostile_specs_of_pairs(field: str, value: Any, message: str, tmp_path: Path) -> None:
    source = with_tokenizer(edited(GOLDEN / "bert-reranker", tmp_path / "m"), TEMPLATE)
    spec_file = convert(source, tmp_path / "converted") / "packhorse.json"
    spec = json.loads(spec_file.read_text())
    (spec["heads"]["classifier"] if field == "score" else spec)[field] = value
    spec_file.write_text(json.dumps(spec))
    session = packhorse.Session.load(tmp_path / "converted", max_tokens=64)
    with pytest.raises(ValueError, match=message):
        session.score(QUERY, DOCUMENTS)
