"""The tokenizer of a folder: its tokenizer.json, or one made from files of older formats.

These are vocab.txt (WordPiece), vocab.json with merges.txt (byte-level BPE) and SentencePiece
models, with or without a vocab.json. The transformers class that they belong to decides how a text
is normalised and split, and which tokens surround it. The result is the same as that of the
converters of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from packhorse_weights.config import Config, optional_config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import has_file, optional_json, read_json
from packhorse_weights.formats.gguf.model import open_tokenizer
from packhorse_weights.tokenizers.classes import declared_class
from packhorse_weights.tokenizers.families import (
    ALBERT,
    BAICHUAN,
    BERT,
    BLENDERBOT,
    CAMEMBERT,
    DEBERTA,
    DEBERTA_V2,
    LLAMA,
    M2M_100,
    MARIAN,
    MBART_CC25,
    MBART_OF_50,
    MPNET,
    NLLB_200,
    PEGASUS,
    QWEN2,
    ROBERTA,
    T5,
    XLM_ROBERTA,
    Family,
)
from packhorse_weights.tokenizers.numbered import NumberedPieces
from packhorse_weights.tokenizers.settings import SettingsFile
from packhorse_weights.tokenizers.special_tokens import Names, SpecialTokens

# The names of transformers' classes, without "Tokenizer" at the end.
_CLASSES = {
    "Albert": ALBERT,
    "Baichuan": BAICHUAN,
    "Bart": ROBERTA,
    "Bert": BERT,
    "Blenderbot": BLENDERBOT,
    "Camembert": CAMEMBERT,
    "CodeLlama": LLAMA,
    "ConvBert": BERT,
    "Deberta": DEBERTA,
    "DebertaV2": DEBERTA_V2,
    "DistilBert": BERT,
    "Electra": BERT,
    "Llama": LLAMA,
    "Longformer": ROBERTA,
    "M2M100": M2M_100,
    "Marian": MARIAN,
    "MBart": MBART_CC25,
    "MBart50": MBART_OF_50,
    "MPNet": MPNET,
    "MT5": T5,
    "MobileBert": BERT,
    "Nllb": NLLB_200,
    "Pegasus": PEGASUS,
    "Qwen2": QWEN2,
    "RetriBert": BERT,
    "Roberta": ROBERTA,
    "T5": T5,
    "XLMRoberta": XLM_ROBERTA,
}
_MODEL_TYPES = {
    "albert": ALBERT,
    "baichuan": BAICHUAN,
    "bart": ROBERTA,
    "bert": BERT,
    "blenderbot": BLENDERBOT,
    "camembert": CAMEMBERT,
    "deberta": DEBERTA,
    "deberta-v2": DEBERTA_V2,
    "distilbert": BERT,
    "electra": BERT,
    "llama": LLAMA,
    "m2m_100": M2M_100,
    "marian": MARIAN,
    "mbart": MBART_CC25,
    "mistral": LLAMA,
    "mpnet": MPNET,
    "mt5": T5,
    "nomic_bert": BERT,
    "pegasus": PEGASUS,
    "qwen2": QWEN2,
    "qwen3": QWEN2,
    "roberta": ROBERTA,
    "t5": T5,
    "umt5": T5,
    "xlm-roberta": XLM_ROBERTA,
}
# The families of models that come with either kind of files.
_BY_FILES = (BERT, MARIAN, XLM_ROBERTA)


def model_fields(model: Path, folder: Path) -> dict[str, Any]:
    """Fields of config.json in `model`, or in `folder`, or of a converted folder its model type."""
    fields = optional_json(model / "config.json") or optional_json(folder / "config.json")
    return fields or {"model_type": optional_json(folder / "packhorse.json").get("family")}


def _find_family(folder: Path, settings: Config, config: Mapping[str, Any]) -> Family | None:
    """Finds the family by the class that the files name, by the model's type or by its files.

    Raises CheckpointError for an unknown class.
    """
    name = declared_class(settings.fields, config)
    if name:
        if name not in _CLASSES:
            raise CheckpointError(
                f"{settings.where}: tokenizer_class {f'{name}Tokenizer'!r:.80} is not supported "
                "without a tokenizer.json; supported: "
                f" {', '.join(f'{one}Tokenizer' for one in _CLASSES)}"
            )
        return _CLASSES[name]
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in _MODEL_TYPES:
        return _MODEL_TYPES[kind]
    return next((family for family in _BY_FILES if family.find(folder)), None)


class BuiltTokenizer(NamedTuple):
    """A tokenizer made from older files. `fields` is what a tokenizer.json would hold, `file` the
    file that it was made from, `names` are those of its special tokens where no file names them.
    `pieces` turn texts into ids where `fields` turn ids into texts alone."""

    fields: dict[str, Any]
    file: Path
    names: Names
    pieces: NumberedPieces | None = None


def build_tokenizer(folder: Path, model: Path) -> BuiltTokenizer | None:
    """Builds a tokenizer from the files of `folder` that are older than tokenizer.json, or returns
    None if there are none.

    model: the folder of config.json. Raises CheckpointError if the files are not usable.
    """
    families = {id(family): family for family in _CLASSES.values()}.values()
    if not any(family.find(folder) for family in families):
        return None
    settings = optional_config(folder / "tokenizer_config.json")
    family = _find_family(folder, settings, model_fields(model, folder))
    paths = None if family is None else family.find(folder)
    if family is None or paths is None:
        return None
    special = SpecialTokens(folder, settings, family.names)
    fields, pieces = family.made(paths, settings, special)
    return BuiltTokenizer(fields, paths[0], family.names, pieces)


def find_settings(place: Path, model: Path, built: BuiltTokenizer | None) -> SettingsFile:
    """Reads tokenizer_config.json of the folder `place` of a tokenizer.

    model: the folder of config.json. built: the tokenizer, if it was made from older files.
    """
    config = model_fields(model, place)
    return SettingsFile.read(place, config, None if built is None else built.names)


def read_tokenizer(folder: Path) -> dict[str, Any] | None:
    """Reads the tokenizer.json of a model folder, or makes the one that it would hold (of a GGUF
    file, too); None where there is none, or none can be made. Raises CheckpointError for a
    tokenizer.json that cannot be read."""
    if folder.is_file():
        return open_tokenizer(folder).tokenizer
    path = folder / "tokenizer.json"
    if has_file(path):
        return read_json(path)
    try:
        built = build_tokenizer(folder, folder)
    except CheckpointError:
        return None  # loading the tokenizer explains the error
    return None if built is None else built.fields
