"""Makes the parts of a tokenizer.json, as the package tokenizers reads them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packhorse_weights.config import Config
from packhorse_weights.tokenizers.sentencepiece import UNIGRAM, SentencePieces
from packhorse_weights.tokenizers.special_tokens import SpecialTokens

Part = dict[str, Any]
Place = tuple[str, int]  # a token or one of the two texts, and its type id
A, B = "A", "B"  # the two texts
# Makes a tokenizer from its files, the fields of tokenizer_config.json and the special tokens.
Builder = Callable[[list[Path], Config, SpecialTokens], Part]
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # what SentencePiece writes for a space


def sequence(kind: str, parts: Sequence[Part]) -> Part:
    """A sequence of parts. `kind` is "normalizers", "pretokenizers" or
    "decoders"."""
    return {"type": "Sequence", kind: list(parts)}


def replace(pattern: str, content: str, regex: bool = False) -> Part:
    return {
        "type": "Replace",
        "pattern": {"Regex" if regex else "String": pattern},
        "content": content,
    }


def precompiled(charsmap: bytes) -> list[Part]:
    if not charsmap:
        return []
    rules = base64.b64encode(charsmap).decode("ascii")
    return [{"type": "Precompiled", "precompiled_charsmap": rules}]


def few_spaces() -> list[Part]:
    """Leaves out spaces at the end of a text, and makes one of several."""
    return [
        {"type": "Strip", "strip_left": False, "strip_right": True},
        replace(" {2,}", SPACE, regex=True),
    ]


def byte_level(add_prefix_space: bool, use_regex: bool = True) -> Part:
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def wordpiece_decoder() -> Part:
    return {"type": "WordPiece", "prefix": "##", "cleanup": True}


def pieces_decoder(strip: bool) -> Part:
    """A decoder for pieces with byte fallback. With `strip` the first space is left out."""
    steps: list[Part] = [replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    if strip:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return sequence("decoders", steps)


def metaspace(scheme: str = "always", split: bool = True) -> Part:
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": split}


def template(single: Sequence[Place], pair: Sequence[Place], ids: Mapping[str, int]) -> Part:
    """Makes the post-processor that surrounds one text or two with special tokens, whose ids are in
    `ids`."""

    def parts(places: Sequence[Place]) -> list[Part]:
        return [
            {"Sequence" if name in (A, B) else "SpecialToken": {"id": name, "type_id": type_id}}
            for name, type_id in places
        ]

    special = {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in ids.items()}
    return {
        "type": "TemplateProcessing",
        "single": parts(single),
        "pair": parts(pair),
        "special_tokens": special,
    }


def bpe(
    vocab: Mapping[str, int], merges: Sequence[str] | Sequence[tuple[str, str]], **options: Any
) -> Part:
    """`merges`: pairs of tokens, or texts of two tokens and one space between them."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **options,
        "vocab": dict(vocab),
        "merges": list(merges),
    }


def merges_of_scores(scores: Mapping[str, float], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Pairs of pieces that make a piece, best score first: SentencePiece stores none.

    If scores are equal, longer halves come first, as in the converter of transformers.
    """
    found: list[tuple[float, int, int, tuple[str, str]]] = []
    for text, score in scores.items():
        halves = [(text[:i], text[i:]) for i in range(1, len(text))]
        pairs = [pair for pair in halves if pair[0] in ids and pair[1] in ids]
        for one, two in sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]])):
            found.append((score, len(one), len(two), (one, two)))
    found.sort(key=lambda row: row[:3], reverse=True)
    return [merge for *_, merge in found]


def pieces_model(
    model: SentencePieces, vocab: Sequence[tuple[str, float]], unk_id: int, byte_fallback: bool
) -> Part:
    """Makes the model. `vocab` has the pieces with their scores, in the order of the checkpoint's
    ids."""
    if model.model_type == UNIGRAM:
        return {
            "type": "Unigram",
            "unk_id": unk_id,
            "vocab": [[text, score] for text, score in vocab],
            "byte_fallback": byte_fallback,
        }
    return bpe(
        {text: i for i, (text, _) in enumerate(vocab)},
        merges_of_scores(dict(vocab), {piece.text: i for i, piece in enumerate(model.pieces)}),
        unk_token=model.unk_piece,
        fuse_unk=True,
        byte_fallback=byte_fallback,
    )


def cls_sep(special: SpecialTokens, added: list[Part], separators: int = 1) -> Part:
    """Makes the post-processor for [CLS] A [SEP], and for [CLS] A [SEP] B [SEP] with type ids,
    whatever the tokens are called. `separators` is how many stand between two texts."""
    cls, sep = special.text("cls"), special.text("sep")
    single = [(cls, 0), (A, 0), (sep, 0)]
    pair = [*single, *([(sep, 0)] * (separators - 1)), (B, 1), (sep, 1)]
    return template(single, pair, special.ids(added, "cls", "sep"))


def whole(
    model: Part,
    added: list[Part],
    *,
    normalizer: Part | None = None,
    pre_tokenizer: Part | None = None,
    post_processor: Part | None = None,
    decoder: Part | None = None,
) -> Part:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": model,
    }
