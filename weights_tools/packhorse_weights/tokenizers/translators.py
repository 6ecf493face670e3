"""Builds tokenizers of encoder-decoder models from SentencePiece models and byte-level BPE.

They follow the converters of transformers 4.57. Version 5 makes something else of the same files:
it keeps spaces at the end of a text, finds no language codes for NLLB and no end for Blenderbot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from packhorse_weights.config import Config
from packhorse_weights.tokenizers.parts import (
    A,
    B,
    Builder,
    Part,
    Place,
    byte_level,
    metaspace,
    sequence,
    template,
    whole,
)
from packhorse_weights.tokenizers.pieces import spaces, with_pieces
from packhorse_weights.tokenizers.sentencepiece import SentencePieces, read_sentencepiece
from packhorse_weights.tokenizers.special_tokens import SpecialTokens
from packhorse_weights.tokenizers.words import read_bpe

_MOST_EXTRA = 1 << 16  # sentinels, or tokens that Pegasus keeps for training
Vocabulary = list[tuple[str, float]]


def _ends(single: Sequence[str], pair: Sequence[str], added: list[Part]) -> Part:
    """The post-processor that writes these tokens and texts, all of one type."""
    known = {entry["content"]: entry["id"] for entry in added}
    ids = {name: known[name] for name in single if name not in (A, B)}

    def places(names: Sequence[str]) -> list[Place]:
        return [(name, 0) for name in names]

    return template(places(single), places(pair), ids)


def _built(
    read: SentencePieces,
    vocab: Vocabulary,
    special: SpecialTokens,
    unk_id: int,
    ends: Callable[[str], tuple[list[str], list[str]]],
    end: str,
    words: bool = False,
) -> Part:
    """words: a text is split at white space first."""
    model, added = with_pieces(read, vocab, special, unk_id)
    split = [{"type": "WhitespaceSplit"}] if words else []
    return whole(
        model,
        added,
        normalizer=spaces(read),
        pre_tokenizer=sequence("pretokenizers", [*split, metaspace()]) if words else metaspace(),
        post_processor=_ends(*ends(end), added),
        decoder=metaspace(),
    )


def t5(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
    """T5: the sentinels come after the pieces, the last one first."""
    read = read_sentencepiece(paths[0])
    extra = settings.integer("extra_ids", default=100, low=0, high=_MOST_EXTRA)
    known = {piece.text for piece in read.pieces}
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(extra))]
    vocab = [(piece.text, piece.score) for piece in read.pieces]
    vocab += [(text, 0.0) for text in sentinels if text not in known]

    def ends(end: str) -> tuple[list[str], list[str]]:
        return [A, end], [A, end, B, end]

    return _built(read, vocab, special.with_more(sentinels), read.unk_id, ends, special.text("eos"))


def pegasus(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
    """Pegasus: 103 tokens of training come between the first two pieces and the others."""
    read = read_sentencepiece(paths[0])
    offset = settings.integer("offset", default=103, low=0, high=_MOST_EXTRA)
    first = [special.text("pad"), special.text("eos")]
    masks: list[str] = []
    if offset > 0:
        sentence = settings.fields.get("mask_token_sent", "<mask_1>")
        masks = [str(one) for one in (sentence, special.find("mask")) if one is not None]
    unknown = [f"<unk_{i}>" for i in range(2, offset)]
    vocab = [(text, 0.0) for text in (*first, *masks)] + [(text, -100.0) for text in unknown]
    vocab += [(piece.text, piece.score) for piece in read.pieces[2:]]

    def ends(end: str) -> tuple[list[str], list[str]]:
        return [A, end], [A, B, end]

    more = [*masks[:1], *unknown]
    unk_id = read.unk_id + offset
    return _built(read, vocab, special.with_more(more), unk_id, ends, first[1], words=True)


def of_languages(codes: Sequence[str], first: str, suffix: bool, in_pieces: bool) -> Builder:
    """Builds tokenizers with fairseq's ids: four tokens, the pieces but the first three, the codes
    of languages and <mask>.

    first: the language of texts where nothing else is said. suffix: its code comes after the end of
    a text, not before the text. in_pieces: codes are entries of the model's own vocabulary.
    """

    def build(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
        read = read_sentencepiece(paths[0])
        vocab = [(text, 0.0) for text in ("<s>", "<pad>", "</s>", "<unk>")]
        vocab += [(piece.text, piece.score) for piece in read.pieces[3:]]
        if in_pieces:
            vocab += [(text, 0.0) for text in (*codes, "<mask>")]
        language = str(settings.fields.get("src_lang") or first)

        def ends(end: str) -> tuple[list[str], list[str]]:
            before, after = ([], [end, language]) if suffix else ([language], [end])
            return [*before, A, *after], [*before, A, B, *after]

        return _built(read, vocab, special.with_more(codes), 3, ends, "</s>")

    return build


def blenderbot(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
    model = read_bpe(paths, False, continuing_subword_prefix="", end_of_word_suffix="")
    added = special.entries(model["vocab"], len(model["vocab"]))
    prefix = settings.boolean("add_prefix_space", False)
    end = special.text("eos")
    return whole(
        model,
        added,
        pre_tokenizer=byte_level(prefix),
        post_processor=template([(A, 0), (end, 0)], [(A, 0), (B, 1)], special.ids(added, "eos")),
        decoder=byte_level(True),
    )
