"""Translations and summaries: texts beside those of the session itself, long texts, streams,
refusals."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import GOLDEN
from packhorse import Sampling
from packhorse.text.translation.sentences import cut, split_sentences
from text_to_text_models import SETTINGS, make_folder
from tiny_tokenizer import add_tokenizer

pytest.importorskip("tokenizers")

TEXTS = ["the cat sat on the mat", "hello world", "The Quick brown fox jumps over the lazy dog."]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: Any) -> Any:
    made: dict[str, Path] = {}

    def folder(model: str, tokenizer: str | None = None, **settings: Any) -> Path:
        key = json.dumps([model, tokenizer, settings])
        if key not in made:
            to = tmp_path_factory.mktemp("models") / model
            made[key] = make_folder(to, model, tokenizer, **settings)
        return made[key]

    return folder


@pytest.fixture(scope="module")
def models(folders: Any) -> Any:
    loaded: dict[Path, packhorse.TextModel] = {}

    def model(*names: str, **settings: Any) -> packhorse.TextModel:
        path = folders(*names, **settings)
        if path not in loaded:
            loaded[path] = packhorse.TextModel.load(path, kv_tokens=4096)
        return loaded[path]

    yield model
    for one in loaded.values():
        one.close()


def by_session(
    model: packhorse.TextModel, texts: list[str], start: list[int], ends: Any, **options: Any
) -> list[str]:
    """Texts of the session, of sources whose tokens were put together here."""
    tokenizer = model.tokenizer
    generation = model._generation
    assert generation is not None
    assert generation.sources is not None
    before, after = ends
    sources = [
        np.array([*before, *row, *after], np.int32) for row in generation.sources.pieces(texts)
    ]
    sampling = Sampling(**SETTINGS, **options)
    found = model.generation_session.generate([start] * len(texts), sampling, sources=sources)
    return [tokenizer.decode(one.ids, skip_special=True) for one in found]


def test_a_model_of_one_direction(models: Any) -> None:
    model = models("marian")
    start, end = 99, model.tokenizer.id_of("</s>")
    expected = by_session(model, TEXTS, [start], ([], [end]))
    assert model.translate(TEXTS) == expected
    assert model.translate(TEXTS[0], source="en", target="de") == expected[0]
    assert model.generate(TEXTS) == expected
    assert model.translate([]) == []
    with pytest.raises(ValueError, match="target is 'fr', but this model's is 'de' alone"):
        model.translate("hello", target="fr")


def test_beams_and_several(models: Any) -> None:
    model = models("marian")
    expected = by_session(model, TEXTS, [99], ([], [0]), num_beams=4, length_penalty=0.7)
    found = model.translate(TEXTS, num_beams=4, length_penalty=0.7)
    assert found == expected
    several = model.translate(TEXTS, n=3, num_beams=4, length_penalty=0.7, details=True)
    assert [one[0].text for one in several] == expected
    for one in several:
        assert [made.score for made in one] == sorted((made.score for made in one), reverse=True)


@pytest.mark.parametrize(
    ("name", "tokenizer", "target", "sides"),
    [
        ("m2m-100", "m2m-100", "__fr__", ("__de__", "")),
        ("m2m-100", "nllb", "fra_Latn", ("deu_Latn", "")),
        ("mbart", "mbart-50", "fr_XX", ("de_DE", "")),
        ("mbart", "mbart", "fr_XX", ("", "de_DE")),
    ],
)
def test_languages(
    models: Any, name: str, tokenizer: str, target: str, sides: tuple[str, str]
) -> None:
    """Tokens of languages around sources, and at the beginning of translations."""
    model = models(name, tokenizer)
    number = model.tokenizer.id_of
    end = number("</s>")
    first, last = sides
    ends = ([number(first)] if first else []), [end, *([number(last)] if last else [])]
    files = model._generation.files
    if tokenizer == "mbart":
        expected = by_session(model, TEXTS, [number(target)], ends)
    else:
        start, bos = [files.decoder_start], number(target)
        expected = by_session(model, TEXTS, start, ends, forced_bos_token_id=bos)
    assert model.translate(TEXTS, source="de", target="fr") == expected
    assert model.translate(TEXTS[1], source="de", target="fr") == expected[1]
    others = model.translate(TEXTS, source="de", target="cs")
    assert others != expected


def test_a_target_must_be_named(models: Any) -> None:
    model = models("m2m-100", "nllb")
    with pytest.raises(ValueError, match="target is None, expected one of ace_Arab, "):
        model.translate(TEXTS, source="de")
    with pytest.raises(
        ValueError, match="source is 'xx', which is no language of this model; it has 202"
    ):
        model.translate(TEXTS, source="xx", target="fr")
    source, target = model._to_text.languages()
    assert target == (source.codes, None, True)
    assert len(source.codes) == 202
    assert source.default == "deu_Latn"
    plain = model.generate(TEXTS)  # without a target: what the decoder itself begins with
    files = model._generation.files
    number = model.tokenizer.id_of
    ends = [number("deu_Latn")], [number("</s>")]
    assert plain == by_session(model, TEXTS, [files.decoder_start], ends)


def test_tasks_that_the_files_name(folders: Any, tmp_path: Path) -> None:
    """T5 is told what to do by the beginning of a text."""
    folder = make_folder(tmp_path / "t5", "t5")
    config = json.loads((folder / "config.json").read_text())
    config["task_specific_params"] = {
        "summarization": {"prefix": "the cat: ", "max_length": 13, "num_beams": 3},
        "translation_en_to_de": {"prefix": "hello ", "max_length": 9, "num_beams": 2},
    }
    (folder / "config.json").write_text(json.dumps(config))
    with packhorse.TextModel.load(folder, kv_tokens=2048) as model:
        end = [1]
        told = [f"the cat: {text}" for text in TEXTS]
        found = model.summarize(TEXTS)
        assert found == by_session(model, told, [0], ([], end), num_beams=3)
        found = model.translate(TEXTS, source="en", target="de")
        told = [f"hello {text}" for text in TEXTS]
        assert found == by_session(model, told, [0], ([], end), num_beams=2)
        assert model.translate(TEXTS, source="EN", target="De") == found
        source, target = model._to_text.languages()
        assert (source.codes, source.default, source.required) == (["en"], None, False)
        assert target == (["de"], None, False)
        with pytest.raises(
            ValueError,
            match="and target 'en', .* name no such task .they have translat",
        ):
            model.translate("x", source="de", target="en")
        folder = packhorse_convert(folder, tmp_path / "converted")
        with packhorse.TextModel.load(folder, kv_tokens=2048) as other:
            assert other.summarize(TEXTS) == model.summarize(TEXTS)


def packhorse_convert(folder: Path, to: Path) -> Path:
    from packhorse_weights import convert

    return convert(folder, to)


# --- long texts


def _words(texts: Any) -> list[int]:
    return [len(text.split()) for text in texts]


def test_texts_cut_by_sentences() -> None:
    text = "  One two. Three four five!\nSix.  Seven eight nine ten eleven twelve? End\n\n "
    found = cut(text, 5, _words)
    assert found.parts == [
        "One two. Three four five!",
        "Six.",
        "Seven eight nine ten eleven",
        "twelve?",
        "End",
    ]
    assert found.join(found.parts) == text
    each = cut(text, 5, _words, each=True)
    assert each.parts[:2] == ["One two.", "Three four five!"]
    assert each.join(each.parts) == text
    assert cut("One two. Three.", 5, _words).parts == ["One two. Three."]
    assert cut(" \n", 5, _words).join([]) == " \n"
    characters = cut("abcdefghij", 3, lambda texts: [len(one) for one in texts])
    assert "".join(characters.parts) == "abcdefghij"
    assert max(map(len, characters.parts)) <= 3
    assert cut("", 3, _words).join([]) == ""


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("A b. C d.", ["A b.", "C d."]),
        ("Dr. Who met J. Smith. He left.", ["Dr. Who met J. Smith.", "He left."]),
        ("It is 3.14 long. ok", ["It is 3.14 long. ok"]),
        ('He said "Go!" Then he went.', ['He said "Go!"', "Then he went."]),
        ("\u4f60\u597d\u3002\u518d\u89c1\uff01", ["\u4f60\u597d\u3002", "\u518d\u89c1\uff01"]),
        ("Wait\u2026 What?! Yes", ["Wait\u2026", "What?!", "Yes"]),
        ("z.B. dieser Satz. Und noch einer", ["z.B. dieser Satz.", "Und noch einer"]),
        ("", []),
        ("...", ["..."]),
    ],
)
def test_sentences(line: str, sentences: list[str]) -> None:
    found, spaces = split_sentences(line)
    assert found == sentences
    assert len(spaces) == max(0, len(found) - 1)


def test_long_texts_are_put_together_again(models: Any) -> None:
    model = models("marian")
    text = "\n".join(["The cat sat. The dog said: hello world! " * 4, "", "End of it. " * 3])
    split = cut(text, 69, lambda t: [r.size for r in model._generation.sources.pieces(t)])
    assert len(split.parts) > 2
    assert model.translate(text) == split.join(model.translate(split.parts))
    made = model.translate(text, details=True)
    assert made.text == model.translate(text)
    assert made.usage.new_tokens == len(made.ids)
    assert model.translate([text, TEXTS[0], " \n"]) == [made.text, model.translate(TEXTS[0]), " \n"]
    alone = model.translate("Hello cat. The mat.", split="sentences")
    assert alone == " ".join(model.translate(["Hello cat.", "The mat."]))
    with pytest.raises(
        ValueError, match=r"texts\[0\]: the source has \d+ tokens, expected at most"
    ):
        model.translate([text], split="never")
    with pytest.raises(ValueError, match="split 'words' is not one of long, sentences, never"):
        model.translate(text, split="words")


# --- streams, prefixes, refusals


def test_streams(models: Any) -> None:
    model = models("marian", num_beams=4)
    text = "The cat sat. The dog said: hello world! " * 5 + "\nEnd."
    stream = model.translate(text, stream=True)
    pieces = list(stream)
    assert "".join(pieces) == model.translate(text, num_beams=1)
    assert stream.result.text == "".join(pieces)
    assert "".join(model.generate("the cat", stream=True, num_beams=1)) == model.generate(
        "the cat", num_beams=1
    )
    with model.translate(text, stream=True) as stream:
        next(stream)
    with pytest.raises(ValueError, match="num_beams must be 1"):
        model.translate(text, stream=True, num_beams=2)
    with pytest.raises(ValueError, match="stream=True takes one text"):
        model.translate([text], stream=True)


def test_translations_that_begin_as_asked(models: Any) -> None:
    model = models("m2m-100", "m2m-100")
    found = model.translate(TEXTS, source="de", target="fr", target_prefix="the cat")
    number = model.tokenizer.id_of
    prefix = model._generation.sources.pieces(["the cat"], target=True)[0].tolist()
    start = [model._generation.files.decoder_start, number("__fr__"), *prefix]
    rest = by_session(model, TEXTS, start, ([number("__de__")], [number("</s>")]))
    for text, one in zip(found, rest, strict=True):
        assert text.startswith("the cat")
        assert text.removeprefix("the cat").strip() == one.strip()


def test_refused(models: Any, tmp_path: Path) -> None:
    model = models("marian")
    with pytest.raises(TypeError, match="translate.. got an unexpected keyword argument 'into'"):
        model.translate("a", into="fr")
    with pytest.raises(ValueError, match="texts.1. is 5"):
        model.translate(["a", 5])
    with pytest.raises(ValueError, match="makes texts of texts|generat"):
        model.embed("a")
    assert model.translate(TEXTS[0])  # it still works


def test_models_without_an_encoder(tmp_path: Path) -> None:
    folder = add_tokenizer(Path(shutil.copytree(GOLDEN / "generation" / "llama", tmp_path / "llm")))
    with packhorse.TextModel.load(folder, kv_tokens=512) as model:
        for method in (model.translate, model.summarize):
            with pytest.raises(ValueError, match="this model has no encoder beside its decoder"):
                method("a")


def test_vocabulary_maps_are_refused_by_name(models: Any) -> None:
    model = models("marian")
    for call in (model.translate, model.summarize):
        with pytest.raises(ValueError, match="use_vmap: maps of vocabularies .* by allowed_ids"):
            call(TEXTS, use_vmap=True)
    assert len(model.translate(TEXTS)) == 3


def test_attention(models: Any, folders: Any) -> None:
    """Weights of the last layer beside float64; a text in parts has those of its parts."""
    import reference_text_to_text
    from packhorse_weights import inspect_checkpoint

    model = models("marian")
    checkpoint = inspect_checkpoint(folders("marian"))
    tensors = {
        ours: checkpoint.tensors[theirs].data.astype(np.float64)
        for ours, theirs in checkpoint.names.items()
    }
    plain = model.translate(TEXTS, details=True, num_beams=2, n=2, max_new_tokens=9)
    found = model.translate(
        TEXTS, details=True, num_beams=2, n=2, max_new_tokens=9, return_attention=True
    )
    assert found == [
        [replace(one, source_ids=other.source_ids) for one, other in zip(*pair, strict=True)]
        for pair in zip(plain, found, strict=True)
    ]
    assert plain[0][0].attention is None
    for one in (one for several in found for one in several):
        target = np.array([99, *one.ids[:-1]])
        source = np.array(one.source_ids)
        weights = reference_text_to_text.weights_over_source(
            checkpoint.spec, tensors, source, target
        )
        np.testing.assert_allclose(one.attention, weights[-1].mean(0), atol=1e-5)
    parts = model.translate(
        "Hello there. And more.", split="sentences", details=True, return_attention=True
    )
    assert parts.attention.shape == (len(parts.ids), len(parts.source_ids))
    alone = model.translate("Hello there.", details=True, return_attention=True)
    rows, columns = alone.attention.shape
    np.testing.assert_array_equal(parts.attention[:rows, :columns], alone.attention)
    assert not parts.attention[:rows, columns:].any()
    empty = model.translate(["", TEXTS[0]], details=True, return_attention=True)
    assert empty[0].text == ""
    np.testing.assert_array_equal(
        empty[1].attention, model.translate(TEXTS[0], details=True, return_attention=True).attention
    )


@pytest.mark.parametrize("name", ["marian", "t5", "mbart"])
def test_attention_of_beams(models: Any, name: str) -> None:
    """Weights of each layer, of the hypotheses that were chosen, beside transformers'."""
    golden = np.load(GOLDEN / "source_attention.npz")
    texts = ("the cat sat on the mat", "", "The Quick brown fox jumps over the lazy dog.")
    model = models(name)
    layers = golden[f"{name}/0/attention"].shape[1]
    for layer in (*range(layers), -1):
        found = model.generate(
            texts,
            num_beams=4,
            n=2,
            details=True,
            return_attention=True,
            attention_layer=layer,
        )
        for i, both in enumerate(found):
            for j, one in enumerate(both):
                beams = golden[f"{name}/{i}/beams"][j]
                assert one.source_ids == golden[f"{name}/{i}/source"].tolist()
                assert one.ids == beams[beams >= 0].tolist()
                expected = golden[f"{name}/{i}/attention"][j, layer, : len(one.ids)]
                np.testing.assert_allclose(one.attention, expected, atol=2e-5)


def test_attention_of_an_adapter(tmp_path: Path) -> None:
    """The tokens are read again by the adapter that wrote them."""
    folder = make_folder(tmp_path / "m2m", "m2m-100")
    adapter = GOLDEN / "text_to_text_adapters" / "m2m-100"
    call: dict[str, Any] = {"details": True, "return_attention": True, "source": "de"}
    with packhorse.TextModel.load(folder, kv_tokens=2048, max_adapters=1) as model:
        model.generation_session.add_adapter("mine", adapter)
        found = model.translate(TEXTS, target="fr", adapter="mine", **call)
        plain = model.translate(TEXTS, target="fr", **call)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copyfile(adapter / file, folder / file)  # it becomes part of the model
    with packhorse.TextModel.load(folder, kv_tokens=2048) as model:
        expected = model.translate(TEXTS, target="fr", **call)
    for one, other, without in zip(found, expected, plain, strict=True):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.attention, other.attention, atol=1e-5)
        assert np.abs(one.attention[0] - without.attention[0]).max() > 1e-3


def test_attention_refusals(models: Any) -> None:
    model = models("marian")
    with pytest.raises(ValueError, match="without details results are texts"):
        model.translate("hello", return_attention=True)
    with pytest.raises(ValueError, match="expected False with stream=True"):
        model.translate("hello", return_attention=True, stream=True)
    with pytest.raises(ValueError, match="return_attention is 3, expected True or False"):
        model.translate("hello", return_attention=3, details=True)
    for call in (model.translate, model.summarize, model.generate):
        for layer in (2, -3, 1.0, True, "last"):
            with pytest.raises(
                ValueError, match="attention_layer is .*, expected one of the 2 layers .* 0 to 1"
            ):
                call("hello", details=True, return_attention=True, attention_layer=layer)
        with pytest.raises(ValueError, match="attention_layer is 1, but return_attention is not"):
            call("hello", details=True, attention_layer=1)
        with pytest.raises(ValueError, match="without details results are texts"):
            call("hello", return_attention=True)
        with pytest.raises(ValueError, match="expected False with stream=True"):
            call("hello", return_attention=True, stream=True)
        assert call("hello", details=True, return_attention=False).attention is None
    with pytest.raises(TypeError, match="return_attention"):
        model.chat([{"role": "user", "content": "hello"}], return_attention=True)


def test_white_space_has_all_that_is_asked_for(models: Any) -> None:
    asked: dict[str, Any] = {"details": True, "return_attention": True, "logprobs": 2}
    blank, said = models("marian").translate([" ", TEXTS[0]], **asked)
    assert blank.text == " "
    assert (blank.ids, blank.source_ids, blank.logprobs, blank.top_logprobs) == ([], [], [], [])
    assert blank.attention.shape == (0, 0)
    assert said.attention.shape == (len(said.ids), len(said.source_ids))
    (plain,) = models("marian").translate([" "], details=True)
    assert (plain.attention, plain.source_ids, plain.logprobs) == (None, None, None)


def test_wrong_types_are_named(models: Any) -> None:
    for options, message in (
        ({"source": 3}, "source is 3, expected the code of a language"),
        ({"target": b"de"}, "target is b'de', expected the code of a language"),
        ({"num_beams": "4"}, "num_beams is '4', expected a whole number"),
        ({"stop_ids": 2.5}, "stop_ids is 2.5, expected"),
        ({"target_prefix": "a\ud800"}, "target_prefix has a lone surrogate"),
    ):
        for model in (models("marian"), models("t5")):
            with pytest.raises(ValueError, match=message):
                model.translate(TEXTS[0], **options)
    with pytest.raises(ValueError, match=r"prompts\[1\] is None, expected a text"):
        models("t5").generate([TEXTS[0], None])
    with pytest.raises(ValueError, match="source is None and target 'fr', but this model is told"):
        models("t5").translate(TEXTS[0], target="fr")


def test_streams_heed_no_beams_of_the_files(models: Any) -> None:
    model = models("marian", num_beams=3)
    greedy = model.generate(TEXTS[0], num_beams=1)
    assert model.generate(TEXTS[0]) != greedy
    assert "".join(model.generate(TEXTS[0], stream=True)) == greedy
    assert "".join(model.translate(TEXTS[0], stream=True)) == greedy


def test_a_closed_model_takes_no_empty_list(folders: Any) -> None:
    model = packhorse.TextModel.load(folders("marian"), kv_tokens=256)
    model.close()
    for call in (model.translate, model.summarize, model.generate):
        with pytest.raises(RuntimeError, match="closed"):
            call([])
