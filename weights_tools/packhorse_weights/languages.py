"""Forms in which models that translate are told the language of a text and of its translation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from packhorse_weights.config import Config
from packhorse_weights.tokenizers.classes import class_of
from packhorse_weights.tokenizers.language_codes import M2M_100, MBART, MBART_50, NLLB, WMT_21
from packhorse_weights.tokenizers.settings import SettingsFile


@dataclass(frozen=True)
class Languages:
    """Names of languages, and places of their tokens.

    token: a token with {} for the code of the language.
    of_source: where the token of a text's language stands: before the text, whose end token then
        comes last, or after that. None: nowhere.
    of_target: where the token of the wanted language stands: as the first token of the translation,
        in place of decoder_start_token_id, or at the beginning of the text to translate.
    codes: those that models of this kind have; empty: those that the vocabulary has.
    source, target: codes that the files name, None where they name none.
    """

    token: str
    of_source: Literal["before", "after"] | None
    of_target: Literal["first", "start", "text"]
    codes: tuple[str, ...] = ()
    source: str | None = None
    target: str | None = None


# Classes of transformers' tokenizers. mBART's decoder begins with the code itself, as in training
# and in its documentation; NLLB, M2M100 and mBART-50 begin with </s>, which the code follows.
_CLASSES: Mapping[str, Languages] = {
    "MBart": Languages("{}", "after", "start", MBART, "en_XX"),
    "MBart50": Languages("{}", "before", "first", MBART_50, "en_XX"),
    "M2M100": Languages("__{}__", "before", "first", M2M_100, "en"),
    "Nllb": Languages("{}", "before", "first", NLLB, "eng_Latn"),
    "Marian": Languages(">>{}<<", None, "text"),
}


# Field of tokenizer_config.json in a converted folder, whose tokenizer is of no class any more.
LANGUAGE_CLASS = "language_class"


def language_class(file: SettingsFile) -> str | None:
    """The class that the files name, or else that of the model's type, if it is one of those here;
    None for models that are told no languages."""
    kept = file.settings.fields.get(LANGUAGE_CLASS)
    if isinstance(kept, str) and kept in _CLASSES:
        return kept
    name = file.declared or class_of(file.model_type)
    return name if name in _CLASSES else None


def read_languages(file: SettingsFile) -> Languages | None:
    """Finds out how languages are named; None: the model is told none. Raises CheckpointError."""
    name = language_class(file)
    if name is None:
        return None
    found = _CLASSES[name]
    settings = file.settings
    place = found.of_source
    if name == "Nllb" and settings.boolean("legacy_behaviour", False):
        place = "after"
    codes = found.codes
    if name == "M2M100" and settings.fields.get("language_codes") == "wmt21":
        codes = WMT_21
    return Languages(
        found.token,
        place,
        found.of_target,
        codes,
        _code(settings, "src_lang", "source_lang") or found.source,
        _code(settings, "tgt_lang", "target_lang"),
    )


def _code(settings: Config, *names: str) -> str | None:
    values = (settings.fields.get(name) for name in names)
    return next((value for value in values if isinstance(value, str) and value), None)
