"""Settings of generation in a folder: tokens that end a text, defaults, chat templates, and whether
the model is one that generates."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import packhorse
import pytest
from checkpoints import GOLDEN, edited
from packhorse_weights import CheckpointError, convert, inspect_checkpoint
from packhorse_weights.generation_files import GenerationFiles, generates, read_generation

LM = {"heads": {"lm": {}}}


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_json", ".json").replace(
            "_jinja", ".jinja"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


DONE: dict[str, Any] = {
    "bad_words_ids": [[1, 2]],
    "begin_suppress_tokens": [1],
    "early_stopping": "never",
    "exponential_decay_length_penalty": [3, 1.5],
    "forced_bos_token_id": 1,
    "forced_eos_token_id": [2],
    "length_penalty": -1.0,
    "max_length": 50,
    "min_length": 4,
    "min_new_tokens": 3,
    "no_repeat_ngram_size": 2,
    "num_beams": 2,
    "sequence_bias": [[[1], -1.0]],
    "suppress_tokens": [1],
}
# Field -> a value that changes texts, and others that do not.
REFUSED: dict[str, tuple[Any, ...]] = {
    "assistant_ensemble_weight": (0.5,),
    "constraints": ([{}],),
    "diversity_penalty": (0.5, 0.0),
    "dola_layers": ("low",),
    "encoder_repetition_penalty": (1.2, 1.0),
    "force_words_ids": ([[1]], []),
    "forced_decoder_ids": ([[1, 2]], []),
    "guidance_scale": (1.5, 1, 1.0),
    "num_beam_groups": (2, 1),
    "num_return_sequences": (3, 1),
    "penalty_alpha": (0.6, 0),
    "token_healing": (True, False),
    "watermarking_config": ({"bias": 2.0},),
}
OF_CHANCE: dict[str, tuple[Any, ...]] = {
    "epsilon_cutoff": (0.01, 0.0),
    "eta_cutoff": (0.01, 0.0),
    "num_beams": (3, 1),
    "top_h": (0.4,),
    "typical_p": (0.9, 1.0),
}
# They say how a text is computed or what is returned beside it, or are unknown.
IGNORED = {
    "assistant_confidence_threshold": 0.3,
    "cache_implementation": "static",
    "decoder_start_token_id": 0,
    "num_assistant_tokens": 9,
    "output_scores": True,
    "pad_token_id": 0,
    "prompt_lookup_num_tokens": 3,
    "remove_invalid_values": True,
    "return_dict_in_generate": True,
    "use_cache": False,
    "something_new": [1],
}


def test_settings_that_are_done(tmp_path: Path) -> None:
    fields = {**DONE, **IGNORED, "max_time": 2.5, "stop_strings": ["x"], "do_sample": None}
    write(tmp_path, generation_config_json=fields)
    found = read_generation(tmp_path)
    assert found.defaults == {**DONE, "deadline_s": 2.5, "stop": ["x"]}
    assert read_generation(tmp_path, settings=False).defaults == {}


@pytest.mark.parametrize("name", [*REFUSED, *OF_CHANCE])
def test_settings_that_are_refused(tmp_path: Path, name: str) -> None:
    value, *harmless = {**REFUSED, **OF_CHANCE}[name]
    draws = name in OF_CHANCE
    write(tmp_path, generation_config_json={name: value, "do_sample": draws, "eos_token_id": 5})
    with pytest.raises(CheckpointError, match=f"generation_config.json: {name} is .*_config=False"):
        read_generation(tmp_path)
    assert read_generation(tmp_path, settings=False).eos_ids == (5,)
    for other in (None, *harmless):
        write(tmp_path, generation_config_json={name: other, "do_sample": draws})
        read_generation(tmp_path)
    # A cut of chance counts where there is chance, contrastive search where there is none.
    write(tmp_path, generation_config_json={name: value, "do_sample": not draws})
    if draws or name == "penalty_alpha":
        read_generation(tmp_path)
    else:
        with pytest.raises(CheckpointError, match=name):
            read_generation(tmp_path)


def test_renormalised_beams(tmp_path: Path) -> None:
    write(tmp_path, generation_config_json={"renormalize_logits": True})
    assert read_generation(tmp_path).defaults == {"renormalize_logits": True}
    write(tmp_path, generation_config_json={"renormalize_logits": True, "num_beams": 2})
    with pytest.raises(CheckpointError, match="renormalize_logits is True"):
        read_generation(tmp_path)


def test_settings_of_an_older_folder(tmp_path: Path) -> None:
    older = {
        "no_repeat_ngram_size": 2,
        "max_length": 20,  # the value in files that say nothing of it
        "bad_words_ids": None,
        "vocab_size": 9,
        "text_config": {"repetition_penalty": 1.5, "no_repeat_ngram_size": 3},
    }
    write(tmp_path, config_json=older)
    found = read_generation(tmp_path)
    assert found.defaults == {"no_repeat_ngram_size": 2, "repetition_penalty": 1.5}
    write(tmp_path, config_json={"guidance_scale": 3, "eos_token_id": 5})
    with pytest.raises(CheckpointError, match="/config.json: guidance_scale is 3"):
        read_generation(tmp_path)
    # A generation_config.json takes the place of everything in config.json but the tokens that end
    # a text.
    write(tmp_path, generation_config_json={})
    assert read_generation(tmp_path) == GenerationFiles(eos_ids=(5,))


def test_a_folder_that_says_nothing(tmp_path: Path) -> None:
    assert read_generation(write(tmp_path, config_json={})) == GenerationFiles()


def test_what_ends_a_text(tmp_path: Path) -> None:
    write(tmp_path, config_json={"eos_token_id": 2})
    assert read_generation(tmp_path).eos_ids == (2,)
    write(tmp_path, generation_config_json={"eos_token_id": [5, 7]})
    assert read_generation(tmp_path).eos_ids == (5, 7)
    write(tmp_path, generation_config_json={"temperature": 1.0})
    assert read_generation(tmp_path).eos_ids == (2,)
    for wrong in ("2", [1, -1], [True], 1.5):
        write(tmp_path, generation_config_json={"eos_token_id": wrong})
        with pytest.raises(CheckpointError, match="eos_token_id is .*, expected a token id"):
            read_generation(tmp_path)


def test_defaults(tmp_path: Path) -> None:
    fields = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.05}
    write(tmp_path, generation_config_json=fields)
    # Transformers takes the most probable tokens unless do_sample is set, whatever else is there.
    assert read_generation(tmp_path).defaults == {"repetition_penalty": 1.05}
    write(tmp_path, generation_config_json={**fields, "do_sample": True, "max_new_tokens": 9})
    assert read_generation(tmp_path).defaults == {**fields, "max_new_tokens": 9}
    write(tmp_path, generation_config_json={"do_sample": True})
    assert read_generation(tmp_path).defaults == {"temperature": 1.0}
    for name, wrong in {"temperature": "hot", "top_k": 1.5, "do_sample": 1}.items():
        write(tmp_path, generation_config_json={**fields, "do_sample": True, name: wrong})
        with pytest.raises(CheckpointError, match=f"generation_config.json: {name}"):
            read_generation(tmp_path)


def test_chat_templates(tmp_path: Path) -> None:
    write(tmp_path, tokenizer_config_json={"chat_template": "one", "bos_token": "<s>"})
    found = read_generation(tmp_path)
    assert found.chat_templates == {"default": "one"}
    assert found.special_tokens == {"bos_token": "<s>"}
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    eos = {"content": "</s>", "special": True}
    write(tmp_path, tokenizer_config_json={"chat_template": named, "eos_token": eos})
    found = read_generation(tmp_path)
    assert found.chat_templates == {"default": "a", "tool_use": "b"}
    assert found.special_tokens == {"eos_token": "</s>"}
    write(tmp_path, chat_template_json={"chat_template": "older"})
    assert read_generation(tmp_path).chat_templates["default"] == "older"
    write(tmp_path, chat_template_jinja="of a file", additional_chat_templates__rag_jinja="rag")
    assert read_generation(tmp_path).chat_templates == {"default": "of a file", "rag": "rag"}
    write(tmp_path, special_tokens_map_json={"bos_token": {"content": "<b>"}, "eos_token": "x"})
    assert read_generation(tmp_path).special_tokens == {"bos_token": "<b>", "eos_token": "x"}


@pytest.mark.parametrize("wrong", [5, [{"name": "a"}], ["a"], {"a": "b"}])
def test_what_is_no_chat_template(tmp_path: Path, wrong: object) -> None:
    write(tmp_path, tokenizer_config_json={"chat_template": wrong})
    with pytest.raises(CheckpointError, match="chat_template is .*, expected a text or a list"):
        read_generation(tmp_path)


def test_causal_language_models_generate(tmp_path: Path) -> None:
    assert generates(tmp_path, LM, None)
    assert generates(tmp_path, LM, 64)
    assert not generates(tmp_path, LM, 0)
    assert generates(tmp_path, LM, None, None, None, None, 0)
    for asked in (("qwen3",), (None, "last"), (None, None, False), (None, None, None, 8)):
        assert not generates(tmp_path, LM, None, *asked)
    assert not generates(tmp_path, {**LM, "template": {}}, None)
    assert not generates(tmp_path, {"heads": {"classifier": {}}}, None)
    assert not generates(tmp_path, {}, None)


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json"])
def test_folders_that_say_how_they_pool_embed(tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(GOLDEN / "generation" / "qwen3", tmp_path / "m")
    assert "lm" in inspect_checkpoint(folder).spec["heads"]
    (folder / "1_Pooling").mkdir()
    source = GOLDEN / "qwen2-window" / name
    shutil.copyfile(source, folder / name)
    if name == "modules.json":
        shutil.copytree(source.parent / "1_Pooling", folder / "1_Pooling", dirs_exist_ok=True)
    spec = inspect_checkpoint(folder).spec
    assert "heads" not in spec
    assert not generates(folder, spec, None)
    with pytest.raises(CheckpointError, match="kv_tokens is 64, .*its files say how it pools"):
        generates(folder, spec, 64)
    assert inspect_checkpoint(convert(folder, tmp_path / "converted")).spec == spec


@pytest.mark.parametrize(
    ("spec", "asked", "message"),
    [
        ({}, None, "no head of a causal language model"),
        (LM, "qwen3", "reranker, pooling, normalize and max_predictions are for other sessions"),
    ],
)
def test_why_a_model_does_not_generate(
    tmp_path: Path, spec: dict[str, Any], asked: str | None, message: str
) -> None:
    with pytest.raises(CheckpointError, match=f"kv_tokens is 9, .*{message}"):
        generates(tmp_path, spec, 9, asked)


def test_a_converted_folder_says_the_same(tmp_path: Path) -> None:
    source = shutil.copytree(GOLDEN / "qwen3", tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    config |= {"eos_token_id": 7, "repetition_penalty": 1.5}
    write(source, config_json=config, chat_template_jinja="x")
    convert(source, tmp_path / "converted")
    assert read_generation(tmp_path / "converted") == read_generation(source)
    assert read_generation(source).eos_ids == (7,)
    assert read_generation(source).defaults == {"repetition_penalty": 1.5}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": None}, "config.json names no class in `architectures`, such as Llama"),
        ({"architectures": ["LlamaModel"]}, "LlamaModel, which .*config.json names in `archi"),
        (
            {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False},
            "no tensor lm_head.weight, and tie_word_embeddings of .*config.json is not true",
        ),
    ],
)
def test_what_would_say_that_a_model_generates(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = edited(GOLDEN / "llama", tmp_path / "m", lambda config: config.update(fields))
    for call in (packhorse.Session.load, packhorse.plan_memory):
        with pytest.raises(ValueError, match=f"kv_tokens is 64, but .* is not loaded.*{message}"):
            call(folder, kv_tokens=64)
    packhorse.plan_memory(folder)  # the model embeds
