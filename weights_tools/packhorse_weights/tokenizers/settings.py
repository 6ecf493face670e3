"""Changes to a tokenizer by the files beside its tokenizer.json, and the names of its tokens.

The rules are those of transformers 5, and of its version 4.57 where docs/text.md says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packhorse_weights.config import Config
from packhorse_weights.files import optional_json, read_bytes
from packhorse_weights.tokenizers.classes import (
    ADDS_ENDS,
    BERT_LIKE,
    BYTE_LEVEL,
    CLASS_NAMES,
    ONLY_ENDS,
    declared_class,
    effective_class,
)
from packhorse_weights.tokenizers.special_tokens import Names, SpecialTokens

# A field of tokenizer_config.json -> the field of the BertNormalizer in tokenizer.json, and its
# value where the file does not say.
_NORMALIZER: Mapping[str, tuple[str, bool | None]] = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}


@dataclass(frozen=True)
class TokenizerSettings:
    """Changes to the tokenizer of a tokenizer.json, in the order in which they are made."""

    # Values of the fields of a BertNormalizer.
    normalizer: Mapping[str, bool | None] = field(default_factory=dict)
    # True where byte-level BPE puts a space before a text; None: as tokenizer.json says.
    prefix_space: bool | None = None
    # The way that the class of Llama puts a space before a text; None: as tokenizer.json says.
    prepend_scheme: str | None = None
    # The tokens that are added; None: those of tokenizer.json are all.
    special: SpecialTokens | None = None
    # True where special tokens that stand in a text are read as text.
    split_special: bool = False
    # The tokens that must stand before and after a text; None: as tokenizer.json says.
    bos: str | None = None
    eos: str | None = None
    # True where those are added though tokenizer.json does not; otherwise that is an error.
    adds_ends: bool = True
    # True where nothing else stands around a text, whatever tokenizer.json says.
    only_ends: bool = False


@dataclass(frozen=True)
class SettingsFile:
    """tokenizer_config.json beside a tokenizer, and the class by which that is read.

    names  the special tokens of the class that the files name, or else of the model's type
    """

    settings: Config
    declared: str | None
    model_type: object
    names: Names

    @classmethod
    def read(cls, folder: Path, config: Mapping[str, Any], names: Names | None) -> SettingsFile:
        """Reads tokenizer_config.json of `folder`, if there is one.

        config  fields of the model's config.json
        names   of a tokenizer that was made from older files; None: there is a tokenizer.json
        """
        path = folder / "tokenizer_config.json"
        settings = Config(optional_json(path), str(path))
        declared = declared_class(settings.fields, config)
        kind = config.get("model_type")
        known = declared if declared in CLASS_NAMES else effective_class(None, kind, False)
        return cls(settings, declared, kind, names or CLASS_NAMES[known or ""])


def chat_tokens(special: SpecialTokens) -> dict[str, Any]:
    """Returns what chat templates are given: texts by names, and the list of those without."""
    found: dict[str, Any] = {name: token.content for name, token in special.named.items()}
    if special.texts:
        found["additional_special_tokens"] = special.texts
    return found


def beside_tokenizer_json(file: Path, found: SettingsFile) -> TokenizerSettings:
    """Reads the changes to the tokenizer.json `file`. Raises CheckpointError."""
    settings = found.settings
    byte_level = found.declared == "Llama" and b'"ByteLevel"' in read_bytes(file)
    name = effective_class(found.declared, found.model_type, byte_level)
    special = SpecialTokens(file.parent, settings, CLASS_NAMES[name])
    bos, eos, adds = _ends(found, found.declared in ADDS_ENDS)
    return TokenizerSettings(
        _normalizer(settings) if name in BERT_LIKE else {},
        settings.boolean("add_prefix_space", False) if name in BYTE_LEVEL else None,
        _prepend_scheme(settings) if name == "Llama" else None,
        special,
        settings.boolean("split_special_tokens", False),
        bos,
        eos,
        adds,
        name in ONLY_ENDS,
    )


def beside_older_files(found: SettingsFile) -> TokenizerSettings:
    """Reads the changes to a tokenizer that was made from older files, which has its added tokens
    and the settings of its class already. Raises CheckpointError."""
    bos, eos, adds = _ends(found, found.declared in (*ADDS_ENDS, "Qwen2"))
    split = found.settings.boolean("split_special_tokens", False)
    return TokenizerSettings(split_special=split, bos=bos, eos=eos, adds_ends=adds)


def _normalizer(settings: Config) -> dict[str, bool | None]:
    return {
        ours: default if settings.fields.get(theirs) is None else settings.boolean(theirs, True)
        for theirs, (ours, default) in _NORMALIZER.items()
    }


def _prepend_scheme(settings: Config) -> str:
    if not settings.boolean("add_prefix_space", True):
        return "never"
    return "always" if settings.boolean("legacy", False) else "first"


def _ends(found: SettingsFile, adds: bool) -> tuple[str | None, str | None, bool]:
    """(bos, eos, whether they are added): what must stand before and after a text, because
    `add_bos_token` or `add_eos_token` is true.

    Classes that do not know these settings ignore them. What code that comes with a model does, is
    unknown: there the settings count, but nothing is added.
    """
    settings = found.settings
    flags = [settings.boolean(f"add_{name}_token", False) for name in ("bos", "eos")]
    own_code = settings.fields.get("auto_map") is not None
    if not any(flags) or not (adds or own_code):
        return None, None, adds
    special = SpecialTokens(Path(settings.where).parent, settings, found.names)
    if adds and not flags[0] and "add_bos_token" not in settings.fields:
        flags[0] = ADDS_ENDS.get(found.declared or "", False)
    bos = special.text("bos") if flags[0] else None
    eos = special.text("eos") if flags[1] else None
    return bos, eos, adds
