"""What a folder says about generation: what ends a text, defaults, chat templates, and whether the
model is one that generates."""

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
    # Without do_sample transformers takes the most probable tokens, whatever else is there.
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
    config = json.loads((source / "config.json").read_text()) | {"eos_token_id": 7}
    write(source, config_json=config, chat_template_jinja="x")
    convert(source, tmp_path / "converted")
    assert read_generation(tmp_path / "converted") == read_generation(source)
    assert read_generation(source).eos_ids == (7,)


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
    packhorse.plan_memory(folder)  # it embeds
