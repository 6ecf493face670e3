"""Words of several languages and their times, beside openai's own code and the tokenizer of its
multilingual models (tests/golden/make_words_golden.py)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from checkpoints import GOLDEN
from packhorse.audio.tokens import APPENDED, PREPENDED, SpeechTokens
from packhorse.audio.windows import Piece
from packhorse.audio.words import WordTimer, split_words
from packhorse.generation.results import GeneratedTokens, PromptLogprobs, Usage
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from word_cases import FRAMES, HEADS, probabilities, weights

FOUND = json.loads((GOLDEN / "speech" / "words.json").read_text())
TEXTS = FOUND["texts"]


def characters_of_bytes() -> dict[int, str]:
    """The characters that stand for bytes in vocabularies since GPT-2: printable ones stand for
    themselves, and others take those from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + i) for i, byte in enumerate(others)
    }


@pytest.fixture(scope="module")
def known() -> SpeechTokens:
    names = characters_of_bytes()
    assert set(names.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {
        "".join(names[byte] for byte in bytes.fromhex(text)): int(token)
        for token, text in FOUND["vocabulary"].items()
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary | FOUND["special"], merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in FOUND["special"]])
    return SpeechTokens(tokenizer, 51866, "the vocabulary")


def reading_of(
    found: dict[str, Any], seed: int, known: SpeechTokens
) -> tuple[WordTimer, list[Piece], Any, GeneratedTokens]:
    tokens = found["tokens"]
    half = len(tokens) // 2
    pieces = [Piece(30.4, 32.6, tokens[:half]), Piece(32.6, 35.9, tokens[half:])]
    timer = WordTimer(known, HEADS, PREPENDED, APPENDED, 448)
    timer.spoken = 27.5
    reading = timer.reading(pieces, known.sequence(found["language"], "transcribe", True), FRAMES)
    assert reading is not None
    logprobs = np.full(len(reading.prompt) - 1, -1.0)
    begin = reading.first
    logprobs[begin : begin + len(tokens)] = np.log(probabilities(seed, len(tokens)))
    attended = GeneratedTokens(
        [], "length", None, None, 0.0, PromptLogprobs(list(logprobs), []), Usage(0, 0, 0),
        alignment=weights(seed, len(reading.prompt)),
    )  # fmt: skip
    return timer, pieces, reading, attended


@pytest.mark.parametrize("seed", range(len(TEXTS)), ids=[one["language"] for one in TEXTS])
def test_beside_openai(seed: int, known: SpeechTokens) -> None:
    found = TEXTS[seed]
    language, tokens = found["language"], found["tokens"]
    assert [list(word) for word in split_words(tokens, known, language)] == found["split"]
    timer, pieces, reading, attended = reading_of(found, seed, known)
    timer.time(pieces, reading, attended, language, 30.0)
    for piece, segment in zip(pieces, found["segments"], strict=True):
        assert [word.word for word in piece.words] == [word[0] for word in segment["words"]]
        times = [(word.start, word.end, word.probability) for word in piece.words]
        np.testing.assert_allclose(times, [word[1:] for word in segment["words"]], atol=1e-6)
        np.testing.assert_allclose(
            (piece.start, piece.end), (segment["start"], segment["end"]), atol=1e-6
        )


def test_languages_without_spaces(known: SpeechTokens) -> None:
    """Words of a text differ by what its language is said to be."""
    text = next(one for one in TEXTS if one["language"] == "ja")
    for language in ("zh", "ja", "th", "lo", "my", "yue"):
        found = split_words(text["tokens"], known, language)
        assert [list(word) for word in found] == text["split"]
    assert len(split_words(text["tokens"], known, "ko")) < len(text["split"])
