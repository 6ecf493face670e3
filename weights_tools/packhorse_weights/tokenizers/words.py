"""Builds tokenizers from a vocabulary of words and their parts: WordPiece and byte-level BPE."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import read_bytes, read_json
from packhorse_weights.tokenizers.parts import (
    Builder,
    Part,
    bpe,
    byte_level,
    cls_sep,
    sequence,
    whole,
    wordpiece_decoder,
)
from packhorse_weights.tokenizers.special_tokens import SpecialTokens

QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _lines(path: Path) -> list[str]:
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8: {error}") from None
    return re.split(r"\r\n|\n|\r", text)


def wordpiece(separators: int) -> Builder:
    """Builds WordPiece tokenizers. `separators` is how many stand between two texts."""

    def build(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
        lines = _lines(paths[0])
        tokens = lines[:-1] if lines[-1] == "" else lines
        vocab = {token: i for i, token in enumerate(tokens)}
        added = special.entries(vocab, len(vocab))
        strip = settings.fields.get("strip_accents")
        return whole(
            {
                "type": "WordPiece",
                "unk_token": special.text("unk"),
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": vocab,
            },
            added,
            normalizer={
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": settings.boolean("tokenize_chinese_chars", True),
                "strip_accents": None if strip is None else settings.boolean("strip_accents", True),
                "lowercase": settings.boolean("do_lower_case", True),
            },
            pre_tokenizer={"type": "BertPreTokenizer"},
            post_processor=cls_sep(special, added, separators),
            decoder=wordpiece_decoder(),
        )

    return build


def read_vocabulary(path: Path) -> dict[str, int]:
    vocab = read_json(path)
    for token, number in vocab.items():
        if type(number) is not int or not 0 <= number < 1 << 31:
            raise CheckpointError(
                f"{path}: {token!r:.80} has the id {number!r:.40}, expected a whole number from 0"
            )
    return vocab


def read_bpe(paths: list[Path], first_line: bool, **options: Any) -> Part:
    """Reads byte-level BPE. `first_line` says whether merges may begin in the first line. If not,
    that line is a heading, and a last line without a line end is ignored, as in transformers."""
    vocab, lines = read_vocabulary(paths[0]), _lines(paths[1])
    if not first_line:
        lines = lines[1:-1]
    elif lines[0].startswith("#version:"):
        lines = lines[1:]
    merges: dict[tuple[str, str], None] = {}
    for line in lines:
        parts = line.split()
        if first_line and not parts:
            continue
        if len(parts) != 2 or not {*parts, "".join(parts)} <= vocab.keys():
            raise CheckpointError(
                f"{paths[1]}: {line!r:.80}: expected two tokens of {paths[0].name} that make one"
            )
        merges[parts[0], parts[1]] = None
    return bpe(vocab, list(merges), **options)


def roberta(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
    prefix = settings.boolean("add_prefix_space", False)
    model = read_bpe(paths, False, continuing_subword_prefix="", end_of_word_suffix="")
    added = special.entries(model["vocab"], len(model["vocab"]))
    ends = {
        name: [special.text(name), special.ids(added, name)[special.text(name)]]
        for name in ("sep", "cls")
    }
    return whole(
        model,
        added,
        pre_tokenizer=byte_level(prefix),
        post_processor={
            "type": "RobertaProcessing",
            **ends,
            "trim_offsets": settings.boolean("trim_offsets", True),
            "add_prefix_space": prefix,
        },
        decoder=byte_level(True),
    )


def deberta(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
    model = read_bpe(paths, False, continuing_subword_prefix="", end_of_word_suffix="")
    added = special.entries(model["vocab"], len(model["vocab"]))
    return whole(
        model,
        added,
        pre_tokenizer=byte_level(settings.boolean("add_prefix_space", False)),
        post_processor=cls_sep(special, added),
        decoder=byte_level(True),
    )


def qwen2(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
    model = read_bpe(paths, True, continuing_subword_prefix="", end_of_word_suffix="")
    words = {
        "type": "Split",
        "pattern": {"Regex": QWEN_WORDS},
        "behavior": "Isolated",
        "invert": False,
    }
    return whole(
        model,
        special.entries(model["vocab"], len(model["vocab"])),
        normalizer={"type": "NFC"},
        pre_tokenizer=sequence("pretokenizers", [words, byte_level(False, use_regex=False)]),
        post_processor={**byte_level(True), "trim_offsets": False},
        decoder=byte_level(True),
    )
