"""Structured output: whatever is drawn among the allowed tokens has the form asked for."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from fake_engine import byte_level, fake_session, session_of_chance, text_model_of_chance
from packhorse import TextModel
from packhorse.text import TextTokenizer
from packhorse.text.generation.structured import _schema_text
from packhorse_weights.generation_files import GenerationFiles
from tokenizers import Tokenizer, decoders, models, normalizers

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ada", 'Zoë "Z"', "日本"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def byte_fallback() -> Tokenizer:
    tokens = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), *'{}[]":,', "true", "Ada", "▁"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


@pytest.fixture(scope="module", params=[byte_level, byte_fallback])
def model(request: pytest.FixtureRequest) -> TextModel:
    return text_model_of_chance(request.param())


@pytest.mark.parametrize("seed", range(8))
def test_json_of_a_schema(model: TextModel, seed: int) -> None:
    made = model.generate("x", schema=SCHEMA, seed=seed, temperature=1.0, details=True)
    found = json.loads(made.text)
    assert made.finish_reason == "stop"
    assert list(found) == ["name", "age", "tags"]
    assert found["name"] in SCHEMA["properties"]["name"]["enum"]  # type: ignore[index]
    assert type(found["age"]) is int
    assert 0 <= found["age"] <= 120
    assert len(found["tags"]) <= 3
    assert all(type(tag) is bool for tag in found["tags"])


def test_special_tokens_that_the_model_has_no_logit_of(tmp_path: Path) -> None:
    """A padding token that the vocabulary lacks: its table was never made larger."""
    made = byte_level()
    made.add_special_tokens(["</s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "<pad>"}')
    tokenizer = TextTokenizer.load(tmp_path)
    end = tokenizer.id_of("</s>")
    assert (tokenizer.id_of("<pad>"), end) == (made.get_vocab_size(), made.get_vocab_size() - 1)
    session = session_of_chance(made.get_vocab_size(), end)
    model = TextModel(session, tokenizer, files=GenerationFiles((end,)))
    assert model.generate("x", choices=["true"]) == "true"
    assert len(model.generate("x", stop="<pad>", max_new_tokens=4, details=True).ids) == 4
    with pytest.raises(ValueError, match="has token '<pad>'"):
        model.generate("x <pad>")


def test_results_differ_by_seed_alone(model: TextModel) -> None:
    texts = [model.generate("x", schema=json.dumps(SCHEMA), seed=seed) for seed in (1, 2, 3, 1)]
    assert texts[0] == texts[3]
    assert len(set(texts)) > 1


def test_each_sequence_has_a_mask_of_its_own(model: TextModel) -> None:
    texts = model.generate(["x", "y"], schema=SCHEMA, n=3, seed=5)
    assert all(json.loads(text) for several in texts for text in several)
    assert len(set(texts[0])) > 1
    assert texts[0] == texts[1]


@pytest.mark.parametrize("regex", [r"[0-9]{3}-[a-f]{2,5}", r"(cat|dog)s?", r"é+日?x"])
def test_regex(model: TextModel, regex: str) -> None:
    for seed in range(5):
        text = model.generate("x", regex=regex, seed=seed, max_new_tokens=200)
        assert re.fullmatch(regex, text)


def test_choices(model: TextModel) -> None:
    choices = ['a "quoted" text', "line\nbreak", "日本", "back\\slash"]
    made = model.generate(["x"] * 4, choices=choices, seed=2)
    assert made[0] == made[3]
    assert {model.generate("x", choices=choices, seed=i) for i in range(30)} == set(choices)


def test_a_class_of_pydantic(model: TextModel) -> None:
    class Person:
        """Has what the package pydantic gives its classes."""

        @staticmethod
        def model_json_schema() -> dict[str, Any]:
            return SCHEMA

    assert json.loads(model.generate("x", schema=Person, seed=1))["age"] <= 120


def test_objects_of_classes_are_closed() -> None:
    """Classes that say themselves what else they take stay open; a schema is taken as it is."""
    inner = {"type": "object", "properties": {"properties": {"type": "string"}}}
    open_one = {"type": "object", "additionalProperties": {"type": "integer"}}

    class Written:
        @staticmethod
        def model_json_schema() -> dict[str, Any]:
            return {
                "$defs": {"Inner": inner, "Free": {**inner, "additionalProperties": True}},
                "type": "object",
                "properties": {
                    "one": {"$ref": "#/$defs/Inner"},
                    "many": {"type": "array", "items": inner},
                    "either": {"anyOf": [inner, {"type": "null"}]},
                    "counts": open_one,
                },
            }

    found = json.loads(_schema_text(Written))
    closed = {**inner, "additionalProperties": False}
    assert found["additionalProperties"] is False
    assert found["$defs"] == {"Inner": closed, "Free": {**inner, "additionalProperties": True}}
    assert found["properties"]["many"]["items"] == closed
    assert found["properties"]["either"]["anyOf"] == [closed, {"type": "null"}]
    assert found["properties"]["counts"] == open_one
    assert json.loads(_schema_text(inner)) == inner


def test_a_text_that_its_length_cuts_ends_with_a_whole_character(model: TextModel) -> None:
    for length in range(1, 10):  # a token is a byte, or, of one tokenizer, a character of its own
        given: dict[str, Any] = {"regex": "(€|é){20}", "max_new_tokens": length, "seed": length}
        made = model.generate("x", details=True, temperature=1.0, **given)
        assert (len(made.ids), made.finish_reason) == (length, "length")
        assert set(made.text) <= {"€", "é"}
        stream = model.generate("x", stream=True, temperature=1.0, **given)
        assert "".join(stream) == made.text


def test_a_stream(model: TextModel) -> None:
    assert json.loads("".join(model.generate("x", schema=SCHEMA, stream=True, seed=1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema": {"type": "objec"}}, "schema: .*objec"),
        ({"schema": '{"type": '}, "schema is not valid JSON"),
        ({"schema": 5}, "schema is 5, expected a JSON schema"),
        ({"schema": {"type": object}}, "schema cannot be written as JSON"),
        ({"schema": {"type": "string", "pattern": "(a"}}, "schema: "),
        ({"regex": "(a"}, "regex: .*invalid regex"),
        ({"regex": 5}, "regex is 5, expected a text"),
        ({"choices": []}, r"choices is \[\], expected a list of texts"),
        ({"choices": "abc"}, "choices is 'abc', expected a list of texts"),
        ({"choices": ["a", ""]}, "choices is .*not empty"),
        ({"schema": {}, "regex": "a"}, "schema and regex were given, expected one of them"),
    ],
)
def test_forms_that_are_refused(model: TextModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.generate("x", **options)


def test_a_tokenizer_that_llguidance_does_not_know(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours = TextTokenizer.load(tmp_path)
    session = fake_session(lambda *_: [], 2, eos_ids=[1])
    model = TextModel(session, ours, files=GenerationFiles((1,)))
    with pytest.raises(ValueError, match="llguidance cannot read this model's tokenizer"):
        model.generate("a", regex="a")


LOOP = {"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"schema": LOOP}, "no text has this form"),
        ({"regex": "a{1000000}"}, "too many expressions"),
        ({"regex": "((a{100}){100}){100}"}, "too many expressions"),
        ({"regex": "(?=a)b"}, "look-ahead"),
        ({"regex": "["}, "unclosed character class"),
        ({"regex": "a" * 300_000}, "regex has 300000 characters, at most 262144"),
        ({"schema": {"enum": ["x" * 300_000]}}, "schema has 3000.. characters"),
        ({"choices": ["x" * 300_000]}, "choices has 3000.. characters"),
        ({"schema": {"type": "integer", "minimum": 5, "maximum": 4}}, "minimum"),
    ],
)
def test_forms_that_cannot_be_are_refused_at_once(
    model: TextModel, form: dict[str, Any], message: str
) -> None:
    begin = time.monotonic()
    with pytest.raises(ValueError, match=message) as raised:
        model.generate("x", max_new_tokens=4, **form)
    assert time.monotonic() - begin < 5
    said = str(raised.value)
    assert len(said) < 400
    for inner in ("<state>", "backtrace", "compute_time", ".rs", "/root", "grm_prefix", "\n"):
        assert inner not in said


GRAMMAR = """root ::= ("Ada" | "true") " "? [0-9]{2}"""


@pytest.mark.parametrize("grammar", [GRAMMAR, 'start: ("Ada" | "true") " "? /[0-9]{2}/'])
def test_a_grammar_of_either_kind(model: TextModel, grammar: str) -> None:
    for seed in range(4):
        text = model.generate("x", grammar=grammar, seed=seed, temperature=1.0)
        assert re.fullmatch("(Ada|true) ?[0-9]{2}", text), text


@pytest.mark.parametrize("grammar", ["", "root ::= (", "root ::= other", "x" * 17_000, 3])
def test_grammars_that_are_refused(model: TextModel, grammar: Any) -> None:
    with pytest.raises(ValueError, match="^grammar"):
        model.generate("x", grammar=grammar)
