"""Folders that differ in what stands beside their vocabulary, made of those in
tests/golden/tokenizers: kinds of tokenizers, each with all settings that may change its ids."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from packhorse_weights.tokenizers.files import build_tokenizer

TOKENIZERS = Path(__file__).parents[2] / "golden" / "tokenizers"
TEXTS = [
    "the <X> cat<X>sat \u00c9 Foo foo ",
    "  Cat  <s>and</s> dog <mask> x<Y>y",
    "[X] the [MASK] mat[SEP] <|endoftext|> hello<|im_end|>it",
]


class Kind(NamedTuple):
    """One kind of tokenizer: the folder of its vocabulary, the class and model type that its files
    name, and whether it has a tokenizer.json."""

    folder: str
    tokenizer_class: str | None
    model_type: str
    tokenizer_json: bool = True


KINDS = {
    "bert": Kind("bert", "BertTokenizer", "bert"),
    "bert-cased": Kind("bert-cased", "BertTokenizerFast", "bert"),
    "bert-unnamed": Kind("bert", None, "bert"),
    "bert-generic": Kind("bert", "PreTrainedTokenizerFast", "bert"),
    "distilbert": Kind("distilbert", "DistilBertTokenizer", "distilbert"),
    "electra": Kind("bert", "ElectraTokenizer", "electra"),
    "mpnet": Kind("mpnet", "MPNetTokenizer", "mpnet"),
    "roberta": Kind("roberta", "RobertaTokenizer", "roberta"),
    "roberta-prefix": Kind("roberta-prefix", "RobertaTokenizerFast", "roberta"),
    "bart": Kind("roberta", "BartTokenizer", "roberta"),
    "gpt2": Kind("qwen2", "GPT2Tokenizer", "gpt2"),
    "gpt-neox": Kind("qwen2", "GPTNeoXTokenizer", "gpt_neox"),
    "qwen2": Kind("qwen2", "Qwen2Tokenizer", "qwen2"),
    "qwen3": Kind("qwen2", "Qwen2Tokenizer", "qwen3"),
    "qwen2-generic": Kind("qwen2", "PreTrainedTokenizerFast", "qwen3"),
    "llama3": Kind("qwen2", "PreTrainedTokenizerFast", "llama"),
    "llama-bytes": Kind("qwen2", "LlamaTokenizer", "llama"),
    "modernbert": Kind("qwen2", "PreTrainedTokenizerFast", "modernbert"),
    "llama": Kind("llama", "LlamaTokenizer", "llama"),
    "llama-unnamed": Kind("llama", None, "llama"),
    "mistral": Kind("llama", "LlamaTokenizerFast", "mistral"),
    "xlm-roberta": Kind("xlm-roberta", "XLMRobertaTokenizer", "xlm-roberta"),
    "deberta-v2": Kind("deberta-v2", "DebertaV2Tokenizer", "deberta-v2"),
    "albert": Kind("albert", "AlbertTokenizer", "albert"),
    "bert-files": Kind("bert", "BertTokenizer", "bert", tokenizer_json=False),
    "roberta-files": Kind("roberta", "RobertaTokenizer", "roberta", tokenizer_json=False),
    "qwen2-files": Kind("qwen2", "Qwen2Tokenizer", "qwen2", tokenizer_json=False),
    "llama-files": Kind("llama", "LlamaTokenizer", "llama", tokenizer_json=False),
    "xlm-roberta-files": Kind(
        "xlm-roberta", "XLMRobertaTokenizer", "xlm-roberta", tokenizer_json=False
    ),
}

_FLAGS = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
_X = {"content": "<X>", **_FLAGS, "special": True}
_TYPED = {"__type": "AddedToken", **_X}

# Name -> the fields of tokenizer_config.json, and of other files.
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "decoder": ({"added_tokens_decoder": {"900": _X}}, {}),
    "decoder, two": ({"added_tokens_decoder": {"901": _X, "900": {**_X, "content": "[X]"}}}, {}),
    "decoder, white space": (
        {"added_tokens_decoder": {"900": {**_X, "lstrip": True, "rstrip": True}}},
        {},
    ),
    "decoder, words": ({"added_tokens_decoder": {"900": {**_X, "single_word": True}}}, {}),
    "decoder, normalized": (
        {
            "added_tokens_decoder": {
                "900": {**_X, "content": "Foo", "normalized": True, "special": False}
            }
        },
        {},
    ),
    "decoder of a known token": (
        {"added_tokens_decoder": {"3": {**_X, "content": "the", "single_word": True}}},
        {},
    ),
    "decoder, and the older files": (
        {"added_tokens_decoder": {"900": _X}},
        {
            "added_tokens.json": {"[X]": 901},
            "special_tokens_map.json": {"additional_special_tokens": ["<Y>"]},
        },
    ),
    "additional": ({"additional_special_tokens": ["<X>", "the"]}, {}),
    "additional, objects": ({"additional_special_tokens": [{**_TYPED, "lstrip": True}]}, {}),
    "extra": ({"extra_special_tokens": ["<X>", "<Y>"]}, {}),
    "extra by name": ({"extra_special_tokens": {"image_token": "<X>", "boi": "<Y>"}}, {}),
    "a field of the model's own": ({"image_token": "<X>"}, {}),
    "map": ({}, {"special_tokens_map.json": {"additional_special_tokens": ["<X>"]}}),
    "map of a name": (
        {"pad_token": "<Y>"},
        {"special_tokens_map.json": {"pad_token": {**_X, "lstrip": True}}},
    ),
    "added": ({}, {"added_tokens.json": {"<X>": 901, "Foo": 900}}),
    "added and special": ({"pad_token": "<X>"}, {"added_tokens.json": {"<X>": 900}}),
    "new pad": ({"pad_token": "<X>"}, {}),
    "new pad, object": ({"pad_token": {**_TYPED, "rstrip": True}}, {}),
    "no bos": ({"bos_token": None, "pad_token": None}, {}),
    "split": ({"split_special_tokens": True}, {}),
    "split, not special": (
        {
            "split_special_tokens": True,
            "added_tokens_decoder": {"900": {**_X, "special": False}},
        },
        {},
    ),
    "prefix": ({"add_prefix_space": True}, {}),
    "no prefix": ({"add_prefix_space": False}, {}),
    "begin": ({"add_bos_token": True, "bos_token": "<s>"}, {}),
    "end": ({"add_eos_token": True, "eos_token": "</s>"}, {}),
    "both": (
        {"add_bos_token": True, "add_eos_token": True, "bos_token": "<s>", "eos_token": "</s>"},
        {},
    ),
    "no begin": ({"add_bos_token": False}, {}),
    "lower": ({"do_lower_case": True}, {}),
    "not lower": ({"do_lower_case": False}, {}),
    "accents": ({"strip_accents": True, "do_lower_case": False}, {}),
    "legacy": ({"legacy": True}, {}),
    "not legacy": ({"legacy": False}, {}),
    "what changes nothing": (
        {
            "sp_model_kwargs": {},
            "spaces_between_special_tokens": False,
            "padding_side": "left",
            "use_default_system_prompt": False,
            "errors": "replace",
        },
        {},
    ),
}

# Prints all special tokens that a chat template is given.
TEMPLATE = "".join(
    f"{{{{ {name} }}}} ; "
    for name in (
        *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token"),
        *("mask_token", "image_token", "boi", "additional_special_tokens"),
    )
)
# Kinds that are tried with all settings; the others are tried with a few.
_THOROUGH = ("bert", "roberta", "qwen3", "llama")
_FEW = ("plain", "decoder", "added", "map of a name", "split", "both", "prefix")
CASES = [(kind, setting) for kind in KINDS for setting in (SETTINGS if kind in _THOROUGH else _FEW)]


@cache
def _built(name: str) -> str:
    """The tokenizer.json of the folder with this name."""
    built = build_tokenizer(TOKENIZERS / name, TOKENIZERS / name)
    assert built is not None
    return json.dumps(built.fields, ensure_ascii=False)


def write_case(folder: Path, kind: str, setting: str) -> Path:
    """Writes the folder of a case, which has no weights."""
    made = KINDS[kind]
    if made.tokenizer_json:
        folder.mkdir()
        (folder / "tokenizer.json").write_text(_built(made.folder), encoding="utf-8")
    else:
        shutil.copytree(TOKENIZERS / made.folder, folder)
    _write(folder / "config.json", {"model_type": made.model_type})
    settings, others = SETTINGS[setting]
    if made.tokenizer_class is not None:
        settings = {"tokenizer_class": made.tokenizer_class, **settings}
    _write(folder / "tokenizer_config.json", settings)
    for name, content in others.items():
        _write(folder / name, content)
    return folder


def _write(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields, ensure_ascii=False), encoding="utf-8")
