"""Reads what a model folder says about text: its tokenizer, and the settings and prompts that go
with it."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from packhorse_weights.checkpoint import model_folder
from packhorse_weights.config import Config, optional_config, read_config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import has_file, refuse_lfs_pointer
from packhorse_weights.formats.gguf.model import find_gguf, open_tokenizer
from packhorse_weights.hub.cache import find_model
from packhorse_weights.languages import Languages, read_languages
from packhorse_weights.sentence_transformers.static_embedding import find_static, read_static
from packhorse_weights.sentence_transformers.transformer import transformer_settings
from packhorse_weights.tokenizers.files import BuiltTokenizer, build_tokenizer, find_settings
from packhorse_weights.tokenizers.numbered import NumberedPieces
from packhorse_weights.tokenizers.settings import (
    SettingsFile,
    TokenizerSettings,
    beside_older_files,
    beside_tokenizer_json,
)
from packhorse_weights.tokenizers.special_tokens import Names, SpecialTokens

_CLEANS_UP_BPE = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
# Settings of sentence-transformers' Transformer module that change how it turns text into tokens.
_UNSUPPORTED = ("query_length", "document_length", "query_expansion")


@dataclass(frozen=True)
class TextConfig:
    """The settings that the files give."""

    tokenizer_file: Path
    tokenizer: dict[str, Any] | None  # fields of a tokenizer.json that was made from other files
    settings: TokenizerSettings  # changes to it by the files beside it
    lower_case: bool  # whether every text is first lower-cased, as in sentence-transformers
    truncation_side: str | None  # "left" or "right"; None: see tokenizer.json
    type_ids: bool  # whether the model gets type ids
    mask_token: str | None  # the token that a masked language model replaces
    prompts: dict[str, str]
    default_prompt_name: str | None
    truncate_dim: int | None = None  # number of dimensions of embeddings that are kept
    special_tokens: bool = True  # whether the tokenizer adds special tokens
    unknown_tokens: bool = True  # whether unknown tokens are used
    cls_token: str | None = None  # the token that begins a text
    unk_token: str | None = None  # the token for text that the vocabulary lacks
    clean_up_spaces: bool = False  # whether decoding removes spaces before punctuation
    clean_up_bpe: bool = False  # whether it does so with BPE, too
    similarity: str = "cosine"  # measure that compares embeddings, as the files name it
    pieces: NumberedPieces | None = None  # turn texts into ids where `tokenizer` does the reverse
    languages: Languages | None = None  # how the model is told what it translates
    eos_token: str | None = None  # the token that ends a text
    pad_token: str | None = None  # the token that fills a text up to a length

    def cleans_up(self, kind: str) -> bool:
        """True where decoding removes spaces before punctuation, with this kind of model: never
        with "BPE", whose own they are, unless the files insist."""
        return self.clean_up_spaces and (kind != "BPE" or self.clean_up_bpe)


def _find_tokenizer(folder: Path, root: Path) -> Path | BuiltTokenizer:
    """Finds a tokenizer.json, or makes one from other files."""
    folders = list(dict.fromkeys((folder, root)))
    for path in (place / "tokenizer.json" for place in folders):
        if has_file(path):
            refuse_lfs_pointer(path)
            return path
    for place in folders:
        if (built := build_tokenizer(place, folder)) is not None:
            return built
    there = sorted({path.name for place in folders for path in place.iterdir() if path.is_file()})
    raise CheckpointError(
        f"no tokenizer.json in {' or '.join(map(str, folders))}, found: "
        f"{', '.join(there[:20]) or 'nothing'}. What is read instead: vocab.txt, vocab.json with "
        "merges.txt, or a SentencePiece model, as the kind of model has it. Where transformers has "
        "a tokenizer for the folder, this writes the file: "
        f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
    )


def _prompts(config: Config) -> tuple[dict[str, str], str | None]:
    found = config.section("prompts").fields
    prompts = {name: text for name, text in found.items() if text is not None}
    for name, text in prompts.items():
        if not isinstance(text, str):
            raise CheckpointError(
                f"{config.where}: prompts: {name!r:.80} is {text!r:.80}, expected a str"
            )
    default = config.fields.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or default not in found):
        raise CheckpointError(
            f"{config.where}: default_prompt_name {default!r:.80} is not one of "
            f"{', '.join(found) or 'no prompts'}"
        )
    return prompts, default if default in prompts else None


def _lower_case(config: Config) -> bool:
    """Reads whether sentence_bert_config.json asks for lower case. Raises CheckpointError if
    another setting in it changes tokens."""
    for name in _UNSUPPORTED:
        config.refuse(name)
    config.refuse("processing_kwargs", {})
    modalities: Any = config.section("modality_config").fields
    if modalities and "text" not in modalities:
        raise CheckpointError(f"{config.where}: modality_config {modalities!r:.80} has no text")
    return config.boolean("do_lower_case", default=False)


def _truncate_dim(config: Config) -> int | None:
    found = config.fields.get("truncate_dim")
    return None if found is None else config.integer("truncate_dim")


def _tokens(folder: Path, file: Path | None) -> Config:
    """The section `text` of the spec of a converted folder, or of a table of embeddings (in `file`,
    if its folder has several)."""
    converted = folder / "packhorse.json"
    if has_file(converted):
        return read_config(converted).section("text")
    static = find_static(folder)
    return Config({} if static is None else read_static(static, file).spec["text"], str(folder))


def _of_gguf(path: Path) -> TextConfig:
    found = open_tokenizer(path)
    named = found.settings.get
    return TextConfig(
        path,
        found.tokenizer,
        TokenizerSettings(),
        lower_case=False,
        truncation_side=None,
        type_ids=False,
        mask_token=named("mask_token"),
        prompts={},
        default_prompt_name=None,
        cls_token=named("cls_token"),
        unk_token=named("unk_token"),
        eos_token=named("eos_token"),
    )


def read_text_config(path: str | PathLike[str], *, revision: str | None = None) -> TextConfig:
    """The settings of the model at `path`; it and `revision`: as in `inspect_checkpoint`.

    Raises CheckpointError: no tokenizer, or settings that are not supported.
    """
    path = find_model(path, revision)
    if (gguf := find_gguf(path)) is not None:
        return _of_gguf(gguf)
    root = path if path.is_dir() else path.parent
    folder = model_folder(root)
    found = _find_tokenizer(folder, root)
    built = found if isinstance(found, BuiltTokenizer) else None
    tokenizer_file = found.file if isinstance(found, BuiltTokenizer) else found
    tokens = _tokens(root, None if path.is_dir() else path)
    special_tokens = tokens.boolean("special_tokens", True)
    file = find_settings(tokenizer_file.parent, folder, built)
    if not special_tokens:  # then nothing reads them, nor does sentence-transformers
        file = SettingsFile(Config({}, file.settings.where), "", None, Names())
        changes = TokenizerSettings()
    elif built:
        changes = beside_older_files(file)
    else:
        changes = beside_tokenizer_json(tokenizer_file, file)
    settings = file.settings
    special = SpecialTokens(tokenizer_file.parent, settings, file.names)
    names = settings.fields.get("model_input_names")
    model = optional_config(root / "config_sentence_transformers.json")
    prompts, default = _prompts(model)
    side = settings.fields.get("truncation_side")
    if side is not None:
        side = settings.choice("truncation_side", {"left": "left", "right": "right"}, "")
    return TextConfig(
        tokenizer_file,
        built.fields if built else None,
        changes,
        _lower_case(transformer_settings(folder)),
        side,
        not isinstance(names, list) or "token_type_ids" in names,
        special.find("mask"),
        prompts,
        default,
        _truncate_dim(model),
        special_tokens,
        tokens.boolean("unknown_tokens", True),
        special.find("cls"),
        special.find("unk"),
        settings.boolean("clean_up_tokenization_spaces", False),
        settings.boolean(_CLEANS_UP_BPE, False),
        str(model.fields.get("similarity_fn_name") or "cosine"),
        built.pieces if built else None,
        read_languages(file),
        special.find("eos"),
        special.find("pad"),
    )
