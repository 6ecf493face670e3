"""Tokenizers whose pieces come from SentencePiece models, and whose ids stand in another file.

Marian (source.spm, target.spm, vocab.json), M2M100 (sentencepiece.bpe.model, vocab.json) and
folders of CTranslate2 have them. A text is cut by the order and the scores of the one; a piece that
the other does not have is the unknown token. Source: `tokenization_marian.py` and
`tokenization_m2m_100.py` of transformers, which call the package sentencepiece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import has_file
from packhorse_weights.tokenizers.language_codes import M2M_100, WMT_21
from packhorse_weights.tokenizers.parts import (
    SPACE,
    Part,
    metaspace,
    precompiled,
    replace,
    sequence,
    whole,
)
from packhorse_weights.tokenizers.pieces import with_pieces
from packhorse_weights.tokenizers.sentencepiece import SentencePieces, read_sentencepiece
from packhorse_weights.tokenizers.special_tokens import SpecialTokens
from packhorse_weights.tokenizers.words import read_vocabulary

_CODES = {"m2m100": M2M_100, "wmt21": WMT_21}


@dataclass(frozen=True)
class NumberedPieces:
    """Turns texts into ids, beside the tokenizer that turns ids into texts.

    source, target: a tokenizer.json that cuts texts of either side into pieces, without special
        tokens around them. numbers, target_numbers: piece -> id. unknown: id of pieces without one.
    marks: beginning and end of a code at the very beginning of a text, which is one token.
    """

    source: Part
    target: Part
    numbers: Mapping[str, int]
    target_numbers: Mapping[str, int]
    unknown: int
    marks: tuple[str, str] | None = None


PiecesBuilder = Callable[[list[Path], Config, SpecialTokens], tuple[Part, NumberedPieces]]


def _spaces(read: SentencePieces) -> Part:
    """Normalises as the package sentencepiece does, which tells a space from a line end and puts
    one before a text whatever it begins with."""
    steps = precompiled(read.charsmap)
    if read.few_spaces:
        steps += [
            replace(rf"\A +|[ {SPACE}]+\z", "", regex=True),
            replace(" {2,}", " ", regex=True),
        ]
    if read.first_space:
        steps.append({"type": "Prepend", "prepend": SPACE})
    return sequence("normalizers", [*steps, replace(" ", SPACE)])


def cut_into_pieces(path: Path, special: SpecialTokens) -> Part:
    """The tokenizer.json that cuts texts as a SentencePiece model does, with its ids."""
    read = read_sentencepiece(path)
    vocab = [(piece.text, piece.score) for piece in read.pieces]
    model, added = with_pieces(read, vocab, special, read.unk_id)
    return whole(
        model,
        added,
        normalizer=_spaces(read),
        pre_tokenizer=metaspace("never"),
        decoder=metaspace(),
    )


def of_numbers(numbers: Mapping[str, int], special: SpecialTokens, where: str) -> Part:
    """The tokenizer.json that turns ids into text. It takes whole pieces alone as texts."""
    unknown = special.text("unk")
    if unknown not in numbers:
        raise CheckpointError(f"{where}: no token {unknown!r:.80}, which unknown pieces become")
    if sorted(numbers.values()) != list(range(len(numbers))):
        raise CheckpointError(f"{where}: ids are not 0 to {len(numbers) - 1}, each once")
    return whole(
        {"type": "WordLevel", "vocab": dict(numbers), "unk_token": unknown},
        special.entries(numbers, len(numbers)),
        pre_tokenizer=metaspace(),
        decoder=metaspace(),
    )


def _with_added(numbers: Mapping[str, int], added: Iterable[Part]) -> dict[str, int]:
    return {**{entry["content"]: entry["id"] for entry in added}, **numbers}


def marian(
    paths: list[Path], settings: Config, special: SpecialTokens
) -> tuple[Part, NumberedPieces]:
    source, target, vocabulary = paths
    numbers = target_numbers = read_vocabulary(vocabulary)
    where = vocabulary
    if settings.boolean("separate_vocabs", False):
        where = vocabulary.parent / "target_vocab.json"
        if not has_file(where):
            raise CheckpointError(
                f"{settings.where}: separate_vocabs, but there is no {where.name}"
            )
        target_numbers = read_vocabulary(where)
    made = of_numbers(target_numbers, special, str(where))
    unknown = of_numbers(numbers, special, str(vocabulary))["model"]["unk_token"]
    pieces = NumberedPieces(
        cut_into_pieces(source, special),
        cut_into_pieces(target, special),
        numbers,
        target_numbers,
        numbers[unknown],
        (">>", "<<"),
    )
    return made, pieces


def m2m_100(
    paths: list[Path], settings: Config, special: SpecialTokens
) -> tuple[Part, NumberedPieces]:
    model, vocabulary = paths
    codes = _CODES[settings.choice("language_codes", {name: name for name in _CODES}, "m2m100")]
    numbers = read_vocabulary(vocabulary)
    # transformers numbers the languages after vocab.json, whatever else is added.
    texts = [f"__{code}__" for code in codes]
    made = of_numbers(numbers, special.with_more(texts), str(vocabulary))
    whole_numbers = _with_added(numbers, made["added_tokens"])
    cut = cut_into_pieces(model, special)
    unknown = numbers[special.text("unk")]
    return made, NumberedPieces(cut, cut, whole_numbers, whole_numbers, unknown)
