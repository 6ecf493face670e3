"""Builds tokenizers from SentencePiece models, as several families of models use them."""

from __future__ import annotations

import re
from pathlib import Path

from packhorse_weights.config import Config
from packhorse_weights.tokenizers.added_token import AddedToken
from packhorse_weights.tokenizers.parts import (
    SPACE,
    A,
    B,
    Builder,
    Part,
    Place,
    cls_sep,
    few_spaces,
    metaspace,
    pieces_decoder,
    pieces_model,
    precompiled,
    replace,
    sequence,
    template,
    whole,
)
from packhorse_weights.tokenizers.sentencepiece import (
    CONTROL,
    USER_DEFINED,
    SentencePieces,
    read_sentencepiece,
)
from packhorse_weights.tokenizers.special_tokens import SpecialTokens


def _control(model: SentencePieces) -> list[AddedToken]:
    return [
        AddedToken(piece.text, special=piece.kind == CONTROL)
        for piece in model.pieces
        if piece.kind in (CONTROL, USER_DEFINED)
    ]


def _bos_eos(special: SpecialTokens, added: list[Part]) -> Part:
    """Joins texts as RoBERTa does, with the tokens' usual names, whatever the files call them."""
    known = {entry["content"]: entry["id"] for entry in added}
    bos, eos = "<s>", "</s>"
    if not {bos, eos} <= known.keys():
        bos, eos = special.text("cls"), special.text("sep")
    ids = {name: known[name] for name in (bos, eos)}
    single = [(bos, 0), (A, 0), (eos, 0)]
    return template(single, [*single, (eos, 0), (B, 0), (eos, 0)], ids)


def with_pieces(
    model: SentencePieces,
    vocab: list[tuple[str, float]],
    special: SpecialTokens,
    unk_id: int,
    byte_fallback: bool = False,
) -> tuple[Part, list[Part]]:
    """Returns (the model, its added tokens)."""
    ids = {text: i for i, (text, _) in enumerate(vocab)}
    made = pieces_model(model, vocab, unk_id, byte_fallback)
    return made, special.entries(ids, len(made["vocab"]), _control(model))


def spaces(model: SentencePieces) -> Part:
    return sequence("normalizers", [*precompiled(model.charsmap), *few_spaces()])


def fairseq(first: list[tuple[str, float]], skipped: int) -> Builder:
    """Builds tokenizers with fairseq's ids: `first`, then the pieces without the first `skipped`
    ones, then <mask>."""

    def build(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
        read = read_sentencepiece(paths[0])
        rest = [(piece.text, piece.score) for piece in read.pieces[skipped:]]
        model, added = with_pieces(read, [*first, *rest, ("<mask>", 0.0)], special, 3)
        return whole(
            model,
            added,
            normalizer=spaces(read),
            pre_tokenizer=metaspace(),
            post_processor=_bos_eos(special, added),
            decoder=metaspace(),
        )

    return build


def albert(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
    read = read_sentencepiece(paths[0])
    # A number does not keep a comma at its end: "9," becomes two pieces.
    comma = re.compile(r".*\d,", re.DOTALL)
    vocab = [
        (piece.text, piece.score - 100 if comma.fullmatch(piece.text) else piece.score)
        for piece in read.pieces
    ]
    model, added = with_pieces(read, vocab, special, read.unk_id)
    steps = [replace("``", '"'), replace("''", '"')]
    if not settings.boolean("keep_accents", False):
        steps += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if settings.boolean("do_lower_case", True):
        steps.append({"type": "Lowercase"})
    steps += [*precompiled(read.charsmap), replace(" {2,}", " ", regex=True)]
    return whole(
        model,
        added,
        normalizer=sequence("normalizers", steps),
        pre_tokenizer=metaspace(),
        post_processor=cls_sep(special, added),
        decoder=metaspace(),
    )


def deberta_v2(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
    read = read_sentencepiece(paths[0])
    vocab = [(piece.text, piece.score) for piece in read.pieces]
    model, added = with_pieces(read, vocab, special, read.unk_id)
    lower = [{"type": "Lowercase"}] if settings.boolean("do_lower_case", False) else []
    split = [{"type": "Punctuation", "behavior": "Isolated"}]
    return whole(
        model,
        added,
        normalizer=sequence(
            "normalizers",
            [
                *lower,
                {"type": "Strip", "strip_left": True, "strip_right": True},
                *precompiled(read.charsmap),
                replace(" {2,}", " ", regex=True),
            ],
        ),
        pre_tokenizer=sequence(
            "pretokenizers",
            [*(split if settings.boolean("split_by_punct", False) else []), metaspace()],
        ),
        post_processor=cls_sep(special, added),
        decoder=metaspace(),
    )


def baichuan(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
    """Llama's, whose SentencePiece model itself says whether a space comes before a text."""
    first = read_sentencepiece(paths[0]).first_space
    fields = {"add_bos_token": False, **settings.fields, "add_prefix_space": first, "legacy": True}
    return llama(paths, Config(fields, settings.where), special)


def llama(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
    read = read_sentencepiece(paths[0])
    vocab = [(piece.text, 0.0 if i < 3 else piece.score) for i, piece in enumerate(read.pieces)]
    model, added = with_pieces(read, vocab, special, 0, byte_fallback=True)
    prefix = settings.boolean("add_prefix_space", True)
    normalizer = pre_tokenizer = None
    if settings.boolean("legacy", True):
        first = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
        normalizer = sequence("normalizers", [*first, replace(" ", SPACE)])
    else:
        pre_tokenizer = metaspace("first" if prefix else "never", split=False)
    before = ["bos"] if settings.boolean("add_bos_token", True) else []
    after = ["eos"] if settings.boolean("add_eos_token", False) else []

    def ends(text: str, type_id: int) -> list[Place]:
        names = [*map(special.text, before), text, *map(special.text, after)]
        return [(name, type_id) for name in names]

    return whole(
        model,
        added,
        normalizer=normalizer,
        pre_tokenizer=pre_tokenizer,
        post_processor=template(
            ends(A, 0), [*ends(A, 0), *ends(B, 1)], special.ids(added, *before, *after)
        ),
        decoder=pieces_decoder(prefix),
    )
