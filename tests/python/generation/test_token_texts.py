"""Texts of single tokens: joined they are the text, and their bytes are its bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packhorse.generation.results import TokenText
from packhorse.text.generation.detokenizer import Detokenizer
from packhorse.text.generation.token_texts import TokenTexts
from test_generation_detokenizer import DECODERS, EMOJI, IDS, make

ALL = 10**9  # characters
FEW = settings(max_examples=12, deadline=None)  # examples of each decoder


def of_all(detokenizer: Detokenizer, ids: list[int], before: list[int]) -> list[TokenText]:
    texts = TokenTexts(detokenizer, before)
    for token in ids:
        texts.push(token)
    texts.finish()
    assert texts.count(ALL) == len(ids)
    return [texts.added(i, ALL) for i in range(len(ids))]


@pytest.mark.parametrize("clean_up", [False, True])
@pytest.mark.parametrize("kind", DECODERS)
def test_texts_of_tokens_are_the_text(kind: str, clean_up: bool) -> None:
    detokenizer = Detokenizer(make(kind), clean_up=clean_up)

    @FEW
    @given(ids=IDS, before=IDS)
    def check(ids: list[int], before: list[int]) -> None:
        stream = detokenizer.stream(before)
        expected = "".join([*map(stream.push, ids), stream.finish()])
        found = of_all(detokenizer, ids, before)
        assert "".join(one.text for one in found) == expected
        if not before:
            assert expected == detokenizer.decode(ids)
        if not clean_up and "\ufffd" not in expected:
            assert b"".join(one.data for one in found) == expected.encode()

    check()


@pytest.mark.parametrize("kind", DECODERS)
def test_what_is_certain_stays(kind: str) -> None:
    """Tokens of a text that still grows have the texts that they have at the end."""
    detokenizer = Detokenizer(make(kind))

    @FEW
    @given(ids=IDS, characters=st.integers(0, 20))
    def check(ids: list[int], characters: int) -> None:
        texts = TokenTexts(detokenizer)
        certain = "".join(map(texts.push, ids))
        count = texts.count(min(characters, len(certain)))
        found = [texts.added(i, ALL) for i in range(count)]
        assert found == of_all(detokenizer, ids, [])[:count]
        assert "".join(one.text for one in found) == certain[: sum(len(one.text) for one in found)]

    check()


def texts_of(kind: str, *tokens: str, before: tuple[str, ...] = ()) -> list[tuple[str, bytes]]:
    tokenizer = make(kind)
    ids, known = ([tokenizer.token_to_id(one) for one in some] for some in (tokens, before))
    return [tuple(one) for one in of_all(Detokenizer(tokenizer), ids, known)]


def test_a_character_is_of_the_last_of_its_tokens() -> None:
    parts = [b"\xf0", b"\x9f", b"\x98", b"\x80"]
    expected = [("", parts[0]), ("", parts[1]), ("", parts[2]), ("\U0001f600", parts[3])]
    assert texts_of("llama", *EMOJI, "a") == [*expected, ("a", b"a")]
    assert texts_of("llama", *EMOJI) == expected
    # Two tokens of two bytes each, in the alphabet of byte-level vocabularies.
    assert texts_of("byte-level", "\u00c3", "\u00a9") == [("", b"\xc3"), ("\u00e9", b"\xa9")]


def test_bytes_that_are_no_character_are_their_own() -> None:
    assert texts_of("llama", "<0xF0>", "a") == [("\ufffd", b"\xf0"), ("a", b"a")]
    assert texts_of("llama", "<0xF0>", "<0x41>") == [("\ufffd", b"\xf0"), ("\ufffd", b"A")]
    assert texts_of("byte-level", "\u00c3", "a") == [("\ufffd", b"\xc3"), ("a", b"a")]


def test_spaces_are_kept_as_the_decoder_keeps_them() -> None:
    the, more = ("the", b"the"), (" the", b" the")
    assert texts_of("llama", "\u2581the", "\u2581the") == [the, more]
    assert texts_of("gemma", "\u2581the", "\u2581the") == [more, more]
    assert texts_of("metaspace", "<s>", "\u2581the", "\u2581the") == [("", b""), the, more]
    assert texts_of("llama", "\u2581the", before=("a",)) == [more]
    assert texts_of("wordpiece", "a", "##ing", "a") == [("a", b"a"), ("ing", b"ing"), (" a", b" a")]
    assert [text for text, _ in texts_of("bpe", "d</w>", "d</w>")] == ["d", " d"]


def test_what_another_token_would_add() -> None:
    tokenizer = make("llama")
    texts = TokenTexts(Detokenizer(tokenizer))
    for token in ("\u2581the", "a", "<0xF0>"):
        texts.push(tokenizer.token_to_id(token))
    texts.finish()

    def other(number: int, token: str) -> TokenText:
        return texts.would_add(number, tokenizer.token_to_id(token))

    assert other(0, "\u2581the").text == "the"  # the space at the beginning is no part of the text
    assert other(1, "\u2581the").text == other(2, "\u2581the").text == " the"
    assert other(2, "<0x9F>") == TokenText("bytes:\\x9f", b"\x9f")
    assert other(2, "<0x41>") == TokenText("A", b"A")
    assert other(0, "<s>").text == other(2, "<s>").text == "<s>"


def test_a_text_that_ends_within_a_token() -> None:
    tokenizer = make("gemma")
    texts = TokenTexts(Detokenizer(tokenizer))
    texts.push(tokenizer.token_to_id("\u2581the"))
    texts.push(tokenizer.token_to_id("a"))
    texts.stop()
    assert [texts.added(i, 3) for i in (0, 1)] == [TokenText(" th", b" th"), TokenText("", b"")]
