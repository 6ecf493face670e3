"""TextModel: scores, labels, entities and answers, beside those of the usual libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import GOLDEN
from text_cases import CLASSIFIERS, PAIRS, RERANKERS, TEXTS, TOKEN_CLASSIFIERS
from tiny_tokenizer import make_tokenizer, with_tokenizer

pytest.importorskip("tokenizers")

EXPECTED = json.loads((GOLDEN / "text.json").read_text())
TOLERANCE = 5e-6  # for float32 logits whose sums are some units


def load(case: Any, folder: Path, **options: Any) -> packhorse.TextModel:
    model, pair, config = case
    return packhorse.TextModel.load(with_tokenizer(GOLDEN / model, folder, pair, config), **options)


def check_labels(found: list[Any], expected: list[Any]) -> None:
    assert [one["label"] for one in found] == [one["label"] for one in expected]
    scores = [one["score"] for one in expected]
    np.testing.assert_allclose([one["score"] for one in found], scores, atol=TOLERANCE)


# --- score


@pytest.mark.parametrize("name", RERANKERS)
def test_scores_as_cross_encoder(name: str, tmp_path: Path) -> None:
    model = load(RERANKERS[name], tmp_path / "m", max_tokens=80, max_sequences=2)
    found = model.score_pairs(pair for pair in PAIRS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, EXPECTED["scores"][name], atol=TOLERANCE)
    assert model.num_truncated == 3
    for (query, document), score in zip(PAIRS, found, strict=True):
        assert model.score(query, [document]) == [score]


def test_score(tmp_path: Path) -> None:
    model = load(RERANKERS["bert"], tmp_path / "m")
    documents = [document for _, document in PAIRS]
    calls: list[Any] = []
    found = model.score("who", documents, progress=lambda *done: calls.append(done))
    assert calls == [(6, 6)]
    np.testing.assert_array_equal(found, model.score_pairs([("who", one) for one in documents]))
    np.testing.assert_array_equal(found, model.score("who", iter(documents)))
    assert model.score("who", []).shape == (0,)
    assert model.score("who", documents[3]) == found[3]
    assert type(model.score("who", documents[3])) is float
    # Session.score joins and cuts ids in the same way.
    tokenizer = make_tokenizer()
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in ("who", *documents)]
    np.testing.assert_array_equal(model.session.score(ids[0], ids[1:]), found)


def test_score_truncation(tmp_path: Path) -> None:
    model = load(RERANKERS["bert"], tmp_path / "m")
    query, document = "the cat " * 10, "dog " * 30
    cut = model.score(query, [document], truncation="only_second")
    assert cut == model.score(query, ["dog " * 17])
    assert cut != model.score(query, [document])
    with pytest.raises(ValueError, match=r"texts\[0\] has 53 tokens, max_length is 40"):
        model.score(query, [document], truncation=False)
    with pytest.raises(ValueError, match=r"texts\[0\]: .*too short .*\(max_length 20, only_sec"):
        model.score(query, [document], truncation="only_second", max_length=20)
    assert model.score(query, [document], truncation=False, max_length=60).shape == (1,)


def test_score_takes_the_models_prompt(tmp_path: Path) -> None:
    folder = with_tokenizer(GOLDEN / "bert-reranker", tmp_path / "m")
    plain = packhorse.TextModel.load(folder)
    config = {
        "prompts": {"ask": "what is "},
        "default_prompt_name": "ask",
        "activation_fn": "torch.nn.modules.activation.Sigmoid",  # wins over config.json's
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    logit = plain.score("what is paris", ["a cat"])
    found = packhorse.TextModel.load(folder).score("paris", ["a cat"])
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-logit)), rtol=1e-6)


# --- classify


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_labels_as_transformers(name: str, tmp_path: Path) -> None:
    model = load(CLASSIFIERS[name], tmp_path / "m", max_tokens=80, max_sequences=2)
    expected = EXPECTED["labels"][name]
    pairs = [{"text": one, "text_pair": two} for one, two in PAIRS]
    for texts, kind in ((TEXTS, "texts"), (pairs, "pairs")):
        found = model.classify(texts, top_k=None)
        for text, labels, right in zip(texts, found, expected[kind], strict=True):
            if text != {"text": "who", "text_pair": ""}:  # the pipeline takes this for a text alone
                check_labels(labels, right)
    best = model.classify(list(TEXTS))
    check_labels(best, expected["best"])
    assert model.classify(TEXTS[0]) == best[0]
    assert model.classify(pairs[0]) == model.classify(pairs)[0]
    assert model.classify({"text": TEXTS[0]}) == best[0]
    assert model.classify(TEXTS[0], top_k=2) == model.classify(TEXTS, top_k=None)[0][:2]
    assert model.classify([]) == []


@pytest.mark.parametrize(
    ("named", "activation"),
    [
        ("torch.nn.modules.linear.Identity", "none"),
        ("torch.nn.modules.activation.Sigmoid", "sigmoid"),
        ("torch.nn.modules.activation.Softmax", "softmax"),
    ],
)
@pytest.mark.parametrize("file", ["config.json", "config_sentence_transformers.json"])
def test_pairs_have_the_activation_that_a_file_names(
    named: str, activation: Any, file: str, tmp_path: Path
) -> None:
    case = CLASSIFIERS["bert"]
    changes = {"sentence_transformers": {"activation_fn": named}} if file == "config.json" else {}
    folder = with_tokenizer(GOLDEN / case[0], tmp_path / "m", case[1], changes)
    if file != "config.json":
        (folder / file).write_text(json.dumps({"activation_fn": named}))
    model = packhorse.TextModel.load(folder)
    mixed = [TEXTS[0], PAIRS[0], list(PAIRS[3])]
    assert model.classify(mixed, top_k=None) == [
        model.classify(TEXTS[0], top_k=None),
        *model.classify([PAIRS[0], PAIRS[3]], top_k=None, activation=activation),
    ]


def test_pairs_of_an_unknown_activation_are_refused(tmp_path: Path) -> None:
    named = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}
    folder = with_tokenizer(GOLDEN / "bert-sequence", tmp_path / "m", "bert", named)
    model = packhorse.TextModel.load(folder)
    with pytest.raises(ValueError, match="activation.Tanh' for scores of pairs.* give activation="):
        model.classify(PAIRS)
    assert model.classify(TEXTS[0])["label"]
    assert model.classify(PAIRS, activation="none")


@pytest.mark.parametrize("text", [{}, {"text_pair": "b"}, {"text": "a", "pair": "b"}])
def test_what_is_not_the_form_of_the_pipeline(text: dict[str, str], tmp_path: Path) -> None:
    model = load(CLASSIFIERS["bert"], tmp_path / "m")
    with pytest.raises(ValueError, match=r'texts\[1\] is .* expected {"text": .*"text_pair"'):
        model.classify(["a", text])


def test_converted(tmp_path: Path) -> None:
    """A converted classifier keeps its kind of problem, and all files that text needs."""
    from packhorse_weights import convert

    model = load(CLASSIFIERS["bert-multi"], tmp_path / "m")
    converted = packhorse.TextModel.load(convert(tmp_path / "m", tmp_path / "converted"))
    assert converted.max_length == 40
    assert converted.classify(TEXTS, top_k=None) == model.classify(TEXTS, top_k=None)
    assert converted.session.config["heads"]["classifier"]["problem"] == "multi_label"


# --- classify_tokens


@pytest.mark.parametrize("name", TOKEN_CLASSIFIERS)
@pytest.mark.parametrize("strategy", ["none", "simple"])
def test_entities_as_transformers(name: str, strategy: str, tmp_path: Path) -> None:
    model = load(TOKEN_CLASSIFIERS[name], tmp_path / "m", max_tokens=80, max_sequences=2)
    found = model.classify_tokens(iter(TEXTS), aggregation_strategy=strategy)
    expected = EXPECTED["entities"][name][strategy]
    assert [len(entities) for entities in found] == [len(entities) for entities in expected]
    for text, entities, right in zip(TEXTS, found, expected, strict=True):
        for entity, its in zip(entities, right, strict=True):
            # Theirs is made of tokens, ours is the text itself.
            assert entity.pop("word") == text[entity["start"] : entity["end"]]
            assert its.pop("word")
            np.testing.assert_allclose(entity.pop("score"), its.pop("score"), atol=TOLERANCE)
            assert entity == its
    assert sum(map(len, found)) > 20
    assert model.classify_tokens("") == []
    alone = model.classify_tokens(TEXTS[3], aggregation_strategy=strategy)
    assert alone == model.classify_tokens(TEXTS, aggregation_strategy=strategy)[3]


def test_ignored_labels(tmp_path: Path) -> None:
    model = load(TOKEN_CLASSIFIERS["bert"], tmp_path / "m")
    tokens = model.classify_tokens(TEXTS[2], ignore_labels=())
    tokenizer = make_tokenizer()
    tokenizer.no_padding()
    tokenizer.no_truncation()
    assert len(tokens) == len(tokenizer.encode(TEXTS[2], add_special_tokens=False).ids)
    names = {entity["entity"] for entity in tokens}
    some = model.classify_tokens(TEXTS[2], ignore_labels=list(names)[:1])
    assert {entity["entity"] for entity in some} == names - set(list(names)[:1])


def test_problems_of_hostile_specs(tmp_path: Path) -> None:
    from packhorse_weights import CheckpointError, convert

    folder = with_tokenizer(
        GOLDEN / "bert-sequence", tmp_path / "m", config={"problem_type": "ranking"}
    )
    with pytest.raises(CheckpointError, match="problem_type 'ranking' is not supported; supp"):
        packhorse.TextModel.load(folder)
    load(CLASSIFIERS["bert-multi"], tmp_path / "good")
    spec_file = convert(tmp_path / "good", tmp_path / "converted") / "packhorse.json"
    spec_file.write_text(spec_file.read_text().replace("multi_label", "many"))
    with pytest.raises(ValueError, match="'heads.classifier.problem' is 'many', expected"):
        packhorse.TextModel.load(tmp_path / "converted").classify("a")
