"""Reads the settings of sentence-transformers' Transformer module, which lie beside a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packhorse_weights.config import Config, optional_config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import has_file

SETTINGS = "sentence_bert_config.json"
# The kinds in older names of that file, in the order in which sentence-transformers looks for them.
_OLDER_KINDS = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
# Arguments, under both of their names, and those that change nothing here: where and how a model or
# a tokenizer is loaded.
_MODEL = ("model_args", "model_kwargs")
_TOKENIZER = ("tokenizer_args", "processor_kwargs")
_CONFIG = ("config_args", "config_kwargs")
_TASKS = ("feature-extraction", "fill-mask", "sequence-classification", "text-generation")
_OUTPUTS = ("token_embeddings", "scores", "causal_logits")
_HARMLESS = {
    "add_pooling_layer",
    "attn_implementation",
    "device_map",
    "dtype",
    "low_cpu_mem_usage",
    "padding_side",
    "torch_dtype",
    "trust_remote_code",
    "use_fast",
    "use_safetensors",
}


def settings_file(folder: Path) -> Path:
    """The file sentence_bert_config.json, or the file under an older name if the folder has
    that."""
    names = (f"sentence_{kind}_config.json" for kind in _OLDER_KINDS)
    paths = [path for path in (folder / SETTINGS, *map(folder.joinpath, names)) if has_file(path)]
    return paths[0] if paths else folder / SETTINGS


def transformer_settings(folder: Path) -> Config:
    """The contents of `settings_file`; empty if there is none.

    Raises CheckpointError for arguments that would make another model or other tokens.
    """
    path = settings_file(folder)
    config = optional_config(path)
    for name in (*_MODEL, *_TOKENIZER):
        if unknown := config.section(name).fields.keys() - _HARMLESS:
            raise CheckpointError(f"{path}: {name}: {min(unknown)!r:.80} is not supported")
    config.choice("transformer_task", dict.fromkeys(_TASKS, ""), _TASKS[0])
    config.refuse("module_output_name", *_OUTPUTS)
    text = config.section("modality_config").section("text")
    text.refuse("method", "forward")
    text.refuse("method_output_name", "last_hidden_state", "logits")
    return config


def config_overrides(folder: Path) -> dict[str, Any]:
    """The fields of config.json that the module overrides."""
    settings = transformer_settings(folder)
    fields: dict[str, Any] = {}
    for name in _CONFIG:
        fields |= settings.section(name).fields
    return {name: value for name, value in fields.items() if name not in _HARMLESS}
