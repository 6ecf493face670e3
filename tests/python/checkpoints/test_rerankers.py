"""Generative rerankers: the logits of two tokens after the last one, pairs in a template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import GOLDEN, TOKENS, edited, with_logit_score
from packhorse_weights import CheckpointError, convert, resolve_model
from packhorse_weights.reranker import TEMPLATES
from text_cases import ANSWERS, PAIRS, TEMPLATE
from tiny_tokenizer import NO_TYPES, add_tokenizer, vocabulary, with_tokenizer

EXPECTED = json.loads((GOLDEN / "text.json").read_text())["answers"]
TOLERANCE = 5e-6


def logits_of(folder: Path, reranker: Any, golden: Any) -> np.ndarray:
    session = packhorse.Session.load(folder, max_tokens=512, reranker=reranker)
    assert session.outputs["logits"] == (False, 1)
    return session.run((golden["ids"], golden["cu_seqlens"]), outputs=["logits"]).logits[:, 0]


def load(name: str, folder: Path, **options: Any) -> packhorse.TextModel:
    model, config, _ = ANSWERS[name]
    with_tokenizer(GOLDEN / model, folder, "bert", config)
    return packhorse.TextModel.load(folder, reranker=TEMPLATE, **options)


# --- the logits


@pytest.mark.parametrize("model", ["qwen3-answers", "llama-answers"])  # tied, and not
@pytest.mark.parametrize("no", [7, None])
def test_logits(model: str, no: int | None, tmp_path: Path) -> None:
    golden = np.load(GOLDEN / model / "golden.npz")
    expected = golden["last_logits"][:, 61] - (0 if no is None else golden["last_logits"][:, no])
    found = logits_of(GOLDEN / model, {**TOKENS, "no": no}, golden)
    np.testing.assert_allclose(found, expected, atol=5e-5)
    converted = convert(GOLDEN / model, tmp_path / "converted", reranker={**TOKENS, "no": no})
    golden_again = {name: golden[name] for name in ("ids", "cu_seqlens")}
    np.testing.assert_array_equal(logits_of(converted, None, golden_again), found)
    # One row of the layer over the vocabulary is all that is kept of it.
    tensors = resolve_model(converted).names
    assert [name for name in tensors if "lm_head" in name] == []
    assert resolve_model(converted).spec["heads"]["classifier"] == {
        "input": "last",
        "bias": False,
        "labels": ["61"],
        "score": "sigmoid",
    }


def test_logits_of_an_empty_sequence() -> None:
    session = packhorse.Session.load(GOLDEN / "llama-answers", reranker=TOKENS)
    logits = session.run([[5, 6], [], [7]], outputs=["logits"]).logits
    assert logits[1, 0] == 0 != logits[0, 0]


# --- of text


@pytest.mark.parametrize("name", ANSWERS)
def test_scores_as_the_model_card(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    model = load(name, tmp_path / "m", max_tokens=160, max_sequences=2)
    instruction = ANSWERS[name][2]
    found = model.score_pairs(iter(PAIRS), instruction=instruction)
    np.testing.assert_allclose(found, EXPECTED[name], atol=TOLERANCE)
    assert len(set(found.tolist())) > 3
    assert model.num_truncated > 0
    for (query, document), score in zip(PAIRS, found, strict=True):
        assert model.score(query, [document], instruction=instruction) == [score]
    converted = convert(tmp_path / "m", tmp_path / "converted", reranker=TEMPLATE)
    again = packhorse.TextModel.load(converted).score_pairs(PAIRS, instruction=instruction)
    np.testing.assert_array_equal(again, found)
    assert model.score("who", []).shape == (0,)


def test_instruction_and_prompt(tmp_path: Path) -> None:
    """The caller's instruction counts more than the model's default prompt."""
    pytest.importorskip("tokenizers")
    model = load("qwen3", tmp_path / "m")
    asked = model.score("who", ["a cat"], instruction="mark")
    assert asked != model.score("who", ["a cat"])
    assert model.score("who", ["a cat"], instruction="") != asked
    prompts = {"prompts": {"ask": "mark"}, "default_prompt_name": "ask"}
    (tmp_path / "m" / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    model = packhorse.TextModel.load(tmp_path / "m", reranker=TEMPLATE)
    np.testing.assert_array_equal(model.score("who", ["a cat"]), asked)


def test_classifiers_in_a_template(tmp_path: Path) -> None:
    """A model that has been made a classifier of one label keeps its layer."""
    pytest.importorskip("tokenizers")
    folder = with_tokenizer(GOLDEN / "qwen3-reranker", tmp_path / "m", "bert")
    model = packhorse.TextModel.load(folder, reranker=TEMPLATE, max_length=100)
    body = "of: mark who: a dog what: the cat"
    tokenizer = model.tokenizer
    ids = [tokenizer.plain_ids(TEMPLATE["prefix"]), tokenizer.encode([body], None).ids[0]]
    row = np.concatenate([*ids, tokenizer.plain_ids(TEMPLATE["suffix"])])
    logit = packhorse.Session.load(folder).run([row], outputs=["logits"]).logits[0, 0]
    found = model.score("a dog", ["the cat"], instruction="mark")
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-logit)), rtol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_cut_on_the_side_that_the_files_say(side: str, tmp_path: Path) -> None:
    """Cutting on the left takes the instruction and the query away first."""
    pytest.importorskip("tokenizers")
    folder = with_tokenizer(GOLDEN / "llama-answers", tmp_path / "m", "bert", NO_TYPES)
    add_tokenizer(folder, truncation_side=side, model_input_names=["input_ids"])
    model = packhorse.TextModel.load(folder, reranker=TEMPLATE, max_length=40)
    frame = [model.tokenizer.plain_ids(TEMPLATE[name]) for name in ("prefix", "suffix")]
    document = "the cat sat on the mat " * 5
    body = model.tokenizer.plain_ids(f"of: mark who: a dog what: {document}")
    room = 40 - sum(ids.size for ids in frame) - 2
    kept = body[-room:] if side == "left" else body[:room]
    row = np.concatenate([frame[0], [2], kept, [3], frame[1]])
    logit = model.session.run([row], outputs=["logits"]).logits[0, 0]
    found = model.score("a dog", [document], instruction="mark")
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-logit)), rtol=1e-5)


def test_braces_in_texts_mean_nothing(tmp_path: Path) -> None:
    from packhorse.text.tasks.template import Template

    template = Template("", "{query}|{document}|{x}|{instruction}", "", "")
    assert template.write("{document}", "{query}", "{x}") == "{document}|{query}|{x}|{x}"


def test_template_of_qwen3() -> None:
    """The texts that the model card of Qwen3-Reranker puts around a pair."""
    texts = TEMPLATES["qwen3"]
    whole = texts["prefix"] + texts["text"] + texts["suffix"]
    assert whole.count("<|im_start|>") == 3
    assert whole.count("<|im_end|>") == 2
    assert whole.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert "{instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>" in whole


# --- sentence-transformers' own module


def test_logit_score(tmp_path: Path) -> None:
    golden = np.load(GOLDEN / "qwen3-answers" / "golden.npz")
    folder = with_logit_score("qwen3-answers", tmp_path / "m", 61, 7)
    expected = golden["last_logits"][:, 61] - golden["last_logits"][:, 7]
    np.testing.assert_allclose(logits_of(folder, TOKENS, golden), expected, atol=5e-5)
    with pytest.raises(CheckpointError, match="LogitScore: this model reads pairs in a template"):
        resolve_model(folder)
    with pytest.raises(CheckpointError, match=r"\[61, 8\] are \[61, 8\], LogitScore has \[61, 7\]"):
        resolve_model(folder, {**TOKENS, "no": 8})


# --- refused


@pytest.mark.parametrize(
    ("reranker", "message"),
    [
        ("qwen4", "reranker 'qwen4' is not known; known: qwen3"),
        ("qwen3", "no tokenizer.json that says the id of 'yes'"),
        ({**TOKENS, "text": "{query}"}, "'text' is '{query}': expected {document} once, .* 0 time"),
        ({**TOKENS, "text": "{query}{query}{document}"}, "expected {query} once, found it 2 times"),
        ({**TOKENS, "prefix": "of {query}"}, "'prefix' has {query}, expected in 'text' alone"),
        ({**TOKENS, "prefix": "{document}"}, "'prefix' has {document}, expected in 'text'"),
        ({**TOKENS, "suffix": "{instruction}!"}, "'suffix' has {instruction}, expected in 'text'"),
        ({**TOKENS, "suffix": 7}, "'suffix' is 7, expected text"),
        ({**TOKENS, "prompt": ""}, "'prompt' is not a field of a template"),
        ({**TOKENS, "yes": None}, "'yes' is None, expected a token or its id"),
        ({**TOKENS, "yes": True}, "'yes' is True, expected a token or its id"),
        ({**TOKENS, "yes": 100}, "the token 100 is not one of the 100 of"),
        ({**TOKENS, "no": -1}, "the token -1 is not one of"),
    ],
)
def test_refused_templates(reranker: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        resolve_model(GOLDEN / "qwen3-answers", reranker)


def test_refused_tokens(tmp_path: Path) -> None:
    folder = with_tokenizer(GOLDEN / "qwen3-answers", tmp_path / "m")
    with pytest.raises(CheckpointError, match="the token 'yes' is not one of the 100 of"):
        resolve_model(folder, "qwen3")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = [[token, 0.0] for token in vocabulary()]  # the form of Unigram
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    spec = resolve_model(folder, {**TOKENS, "yes": "cat", "no": "[MASK]"}).spec
    assert spec["heads"]["classifier"]["labels"] == ["cat"]
    for row in ([], [["cat"], 0.0], "cat", [7, 0.0]):
        tokenizer["model"]["vocab"][5] = row
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        with pytest.raises(CheckpointError, match=r"vocab\[5\] is .*, expected \[token, score\]"):
            resolve_model(folder, {**TOKENS, "yes": "cat"})


@pytest.mark.parametrize(
    "model",
    ["bert-gelu", "bert-sequence", "bert-tokens", "bert-reranker", "qwen3", "qwen2-tokens"],
)
def test_refused_models(model: str) -> None:
    with pytest.raises(CheckpointError, match="expected a causal language model or a classifier"):
        resolve_model(GOLDEN / model, TOKENS)


def test_refused_checkpoints(tmp_path: Path) -> None:
    untied = edited(
        GOLDEN / "qwen3-answers", tmp_path / "a", lambda c: c.update(tie_word_embeddings=False)
    )
    with pytest.raises(CheckpointError, match="no tensor lm_head.weight, and tie_word_embeddings"):
        resolve_model(untied, TOKENS)

    def widen(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"] = tensors["model.layers.0.mlp.gate_proj.weight"]

    other = edited(GOLDEN / "qwen3-answers", tmp_path / "b", tensors=widen)
    with pytest.raises(CheckpointError, match=r"lm_head.weight has shape \[.*, 32\], config.json"):
        resolve_model(other, TOKENS)
    converted = convert(GOLDEN / "qwen3-answers", tmp_path / "c")
    with pytest.raises(CheckpointError, match="converted already"):
        resolve_model(converted, TOKENS)


def test_refused_calls(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    model = load("llama", tmp_path / "m")
    for call, message in (
        (
            lambda: model.score("a", ["b"], truncation="only_second"),
            "'only_second': this model.s template",
        ),
        (lambda: model.score("a", [7]), r"texts\[0\] is \('a', 7\), expected a query and a doc"),
        (lambda: model.score_pairs(["ab"]), r"texts\[0\] is 'ab', expected a query"),
        (lambda: model.score("a", ["b"], max_length=21), "21 leaves no room beside 22 special"),
        (
            lambda: model.score("a", ["b " * 40], truncation=False),
            r"texts\[0\] has \d+ tokens, max",
        ),
        (lambda: model.session.score([5], [[6]]), "pairs in a template of text: TextModel.score"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    plain = with_tokenizer(GOLDEN / "bert-reranker", tmp_path / "plain")
    with pytest.raises(ValueError, match="instruction: this model takes none"):
        packhorse.TextModel.load(plain).score("a", ["b"], instruction="c")
    fields = {**TEMPLATE, "text": "{query} {document}"}
    without = packhorse.TextModel.load(tmp_path / "m", reranker=fields)
    assert without.score("a", ["b"]).shape == (1,)
    with pytest.raises(ValueError, match="instruction: this model's template has no {instruction}"):
        without.score("a", ["b"], instruction="c")
    bare = packhorse.TextModel.load(tmp_path / "m")
    with pytest.raises(ValueError, match="a generative reranker is loaded with reranker="):
        bare.score("a", ["b"])


@pytest.mark.parametrize("template", [7, {}, {"prefix": "", "text": "", "suffix": ""}])
def test_hostile_specs(template: Any, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    load("llama", tmp_path / "m")
    folder = convert(tmp_path / "m", tmp_path / "converted", reranker=TEMPLATE)
    spec = json.loads((folder / "packhorse.json").read_text()) | {"template": template}
    (folder / "packhorse.json").write_text(json.dumps(spec))
    with pytest.raises(ValueError, match="'template' is .*, expected texts: prefix, text"):
        packhorse.TextModel.load(folder).score("a", ["b"])
