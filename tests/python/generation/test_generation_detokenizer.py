"""Pieces of text: joined they are what the package tokenizers makes of all ids."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packhorse.text.generation.detokenizer import Detokenizer
from tokenizers import Regex, Tokenizer, decoders, models

# Tokens of all kinds of vocabularies, those that only some decoders give a meaning.
TOKENS = (
    *("\u2581", "\u2581the", "a", "\u2581.", "##ing", ".", "n't", "'", "'s", " ", "d</w>", "</w>"),
    *("<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0x41>", "<0xZZ>", "\u6f22"),
    # Byte-level: a space, the two bytes of one letter, the four of an emoji, a lone one.
    *("\u0120", "\u0120cat", "\u00c3", "\u00a9", "\u00f0\u0141", "\u013a", "\u0122", "\u00ed"),
)
BYTES = decoders.ByteFallback()
DECODERS: dict[str, Any] = {
    "none": None,
    "byte-level": decoders.ByteLevel(),
    "llama": decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            BYTES,
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    ),
    "gemma": decoders.Sequence([decoders.Replace("\u2581", " "), BYTES, decoders.Fuse()]),
    "metaspace": decoders.Metaspace(),
    "metaspace-never": decoders.Sequence([BYTES, decoders.Metaspace(prepend_scheme="never")]),
    "wordpiece": decoders.WordPiece(),
    "wordpiece-plain": decoders.WordPiece(cleanup=False),
    "bpe": decoders.BPEDecoder(),
    "regex": decoders.Sequence([decoders.Replace(Regex("[a-c]+"), "x")]),
    "fused": decoders.Sequence([decoders.Fuse(), decoders.Replace("a.", "b")]),
    "whole": decoders.CTC(),
}


def make(kind: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, []))
    if DECODERS[kind] is not None:
        tokenizer.decoder = DECODERS[kind]
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.add_tokens(["<think>"])
    return tokenizer


BEYOND = 2  # ids after the last one
IDS = st.lists(st.integers(0, len(TOKENS) + 1 + BEYOND), max_size=12)


@pytest.mark.parametrize("clean_up", [False, True])
@pytest.mark.parametrize("kind", DECODERS)
def test_pieces_are_the_text(kind: str, clean_up: bool) -> None:
    tokenizer = make(kind)
    detokenizer = Detokenizer(tokenizer, clean_up=clean_up)

    @given(ids=IDS)
    def check(ids: list[int]) -> None:
        stream = detokenizer.stream()
        pieces = [*map(stream.push, ids), stream.finish()]
        text = detokenizer.decode(ids)
        assert "".join(pieces) == text
        if not clean_up:
            assert text == tokenizer.decode(ids, skip_special_tokens=True)

    check()


def pieces_of(kind: str, tokens: list[str], before: tuple[str, ...] = ()) -> list[str]:
    tokenizer = make(kind)
    stream = Detokenizer(tokenizer).stream([tokenizer.token_to_id(token) for token in before])
    return [*(stream.push(tokenizer.token_to_id(token)) for token in tokens), stream.finish()]


EMOJI = ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]


def test_a_piece_is_never_half_a_character() -> None:
    assert pieces_of("llama", [*EMOJI, "a"]) == ["", "", "", "", "\U0001f600a", ""]
    assert pieces_of("llama", EMOJI) == ["", "", "", "", "\U0001f600"]
    assert pieces_of("byte-level", ["\u00c3", "\u00a9", "a"]) == ["", "\u00e9", "a", ""]
    assert pieces_of("byte-level", ["\u00c3", "a"]) == ["", "\ufffda", ""]
    assert pieces_of("byte-level", ["\u00c3"]) == ["", "\ufffd"]


@pytest.mark.parametrize(
    ("kind", "tokens", "text"),
    [
        ("byte-level", ["a", "\u00c3"], "a"),
        ("byte-level", ["a", "\u00f0\u0141", "\u013a"], "a"),  # three bytes of an emoji's four
        ("byte-level", ["\u00c3", "\u00a9"], "\u00e9"),
        ("byte-level", ["\u00ed", "a"], "\ufffda"),  # not the end of the text
        ("llama", ["a", *EMOJI[:3]], "a"),
        ("llama", ["<0x41>", *EMOJI[:2]], "A"),
        ("llama", EMOJI, "\U0001f600"),
        ("whole", ["a"], "a"),
    ],
)
def test_a_text_that_is_cut_has_whole_characters(kind: str, tokens: list[str], text: str) -> None:
    tokenizer = make(kind)
    stream = Detokenizer(tokenizer).stream()
    pieces = [stream.push(tokenizer.token_to_id(token)) for token in tokens]
    assert "".join([*pieces, stream.finish(cut=True)]) == text


def test_a_piece_comes_with_its_token() -> None:
    for kind in ("llama", "gemma", "metaspace", "byte-level", "wordpiece", "none"):
        pieces = pieces_of(kind, ["a", "\u2581the", ".", "a"])
        assert all(pieces[:-1]), kind
        assert pieces[-1] == ""


def test_a_text_that_goes_on_keeps_its_space() -> None:
    assert pieces_of("llama", ["\u2581the"]) == ["the", ""]
    assert pieces_of("llama", ["\u2581the"], before=("<s>", "a")) == [" the", ""]
    assert pieces_of("metaspace", ["\u2581the"], before=("a",) * 50) == [" the", ""]
    assert pieces_of("llama", ["\u2581the"], before=("<s>",)) == ["the", ""]


def test_nothing_of_the_text_before_comes_again() -> None:
    assert pieces_of("llama", ["a"], before=("a", *EMOJI)) == ["a", ""]
    assert pieces_of("llama", ["a"], before=tuple(EMOJI) * 10) == ["a", ""]
    assert "".join(pieces_of("bpe", ["a"], before=("d</w>",))) == " a"
    assert "".join(pieces_of("whole", ["a"], before=("d</w>", "\u2581"))) == "a"
