"""Times of single words: the path through tokens and frames beside NumPy, rules for words and
marks, and whole transcriptions beside the tiny model in float64."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import reference_text_to_text
from checkpoints import GOLDEN
from packhorse._native.audio import token_times
from packhorse.audio import AudioModel, Word
from packhorse.audio.alignment import alignment_heads
from packhorse.audio.tokens import APPENDED, PREPENDED
from packhorse.audio.windows import Piece
from packhorse.audio.words import (
    TimedWord,
    drop_hallucinations,
    is_anomalous,
    leading_silence,
    merge_marks,
    split_words,
)
from packhorse_weights import inspect_checkpoint
from speech_cases import sound
from test_transcribe import SUPPRESSED

MODEL = GOLDEN / "speech" / "whisper"
# Layers, heads and tokens of openai's models, and heads that follow the audio.
KNOWN = json.loads((GOLDEN / "speech" / "words.json").read_text())["alignment"]


@pytest.fixture(scope="module")
def model() -> Iterator[AudioModel]:
    with AudioModel.load(MODEL, dtype="float32", kv_tokens=40_000, threads=2) as found:
        yield found


def medians(x: Any, width: int) -> Any:
    half = width // 2 if x.shape[-1] > width // 2 else 0
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1, axis=-1)
    return np.median(windows, -1)


def cheapest_path(costs: Any) -> list[int]:
    """The first frame of each token on the cheapest path, by the recurrence."""
    tokens, frames = costs.shape
    total = np.full((tokens + 1, frames + 1), np.inf)
    total[0, 0] = 0
    for i in range(tokens):
        for j in range(frames):
            total[i + 1, j + 1] = costs[i, j] + min(total[i, j], total[i, j + 1], total[i + 1, j])
    i, j = tokens, frames
    first = [0] * tokens
    while i > 0:
        first[i - 1] = j - 1
        ways = {(1, 1): total[i - 1, j - 1], (1, 0): total[i - 1, j], (0, 1): total[i, j - 1]}
        down, back = min(ways, key=lambda way: ways[way])
        i, j = i - down, j - back
    return first


@pytest.mark.parametrize(
    ("heads", "tokens", "frames", "first", "end", "width"),
    [
        (1, 1, 1, 0, 1, 7),
        (2, 5, 3, 1, 4, 7),
        (3, 9, 4, 2, 8, 7),
        (6, 30, 97, 2, 29, 7),
        (2, 7, 50, 0, 7, 1),
        (2, 12, 6, 0, 12, 5),
    ],
)
def test_token_times(
    heads: int, tokens: int, frames: int, first: int, end: int, width: int
) -> None:
    rng = np.random.default_rng(tokens)
    scores = rng.normal(size=(heads, tokens, frames)) * 2
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    x = weights.astype(np.float32).astype(np.float64)
    deviations = x.std(1, keepdims=True)
    x = (x - x.mean(1, keepdims=True)) / np.where(deviations > 0, deviations, np.inf)
    matrix = medians(x, width).mean(0)[first:end]
    found = token_times(weights.astype(np.float32), first, end, width)
    assert found == cheapest_path(-matrix)
    assert found[0] == 0
    assert sorted(found) == found


def test_token_times_refusals() -> None:
    weights = np.ones((1, 2, 3), np.float32)
    for first, end, width, message in (
        (0, 3, 7, "the tokens are 0 to 3, expected one at least of 2"),
        (1, 1, 7, "the tokens are 1 to 1"),
        (0, 2, 4, "filter_width is 4, expected an odd number"),
        (0, 2, 65, "filter_width is 65"),
    ):
        with pytest.raises(ValueError, match=message):
            token_times(weights, first, end, width)
    with pytest.raises(ValueError, match="there are 0 weights"):
        token_times(np.ones((0, 2, 3), np.float32), 0, 2, 7)


class Bytes:
    """A tokenizer whose tokens are bytes of UTF-8."""

    end = 256

    def decode(self, tokens: Any) -> str:
        return bytes(token for token in tokens if token < 256).decode(errors="replace")


def words_of(text: str, language: str = "en") -> list[str]:
    tokens = list(text.encode())
    found = split_words(tokens, Bytes(), language)  # type: ignore[arg-type]
    assert [token for _, own in found for token in own] == tokens
    return [word for word, _ in found]


def test_words() -> None:
    assert words_of(" Hello, wörld!") == [" Hello", ",", " wörld", "!"]
    assert words_of("a b") == ["a", " b"]
    assert words_of(" don't") == [" don", "'t"]
    assert words_of("") == []
    assert words_of("日本語", "ja") == ["日", "本", "語"]
    assert words_of(" 日本", "de") == [" 日本"]
    # Bytes that no others complete stand for themselves, where the whole text has a mark for them.
    halves = split_words([0xE6, 65], Bytes(), "zh")  # type: ignore[arg-type]
    assert halves == [("\ufffd", [0xE6]), ("A", [65])]


def timed(*words: str) -> list[TimedWord]:
    return [TimedWord(word, [i], i, i + 1, 1.0) for i, word in enumerate(words)]


def test_marks() -> None:
    words = timed(' "', " (", "yes", ",", '"', " he", " said", ".")
    merge_marks(words, PREPENDED, APPENDED)
    assert [word.word for word in words] == ["", "", ' " (yes,"', "", "", " he", " said.", ""]
    assert words[2].tokens == [0, 1, 2, 3, 4]
    # The times are those of the words themselves.
    assert (words[2].start, words[2].end) == (2, 3)
    words = timed(" a", "!")
    merge_marks(words, "", "")
    assert [word.word for word in words] == [" a", "!"]
    merge_marks([], PREPENDED, APPENDED)


def piece(start: float, words: list[tuple[float, float]]) -> Piece:
    """A segment of words (seconds, probability)."""
    made, at = [], start
    for seconds, probability in words:
        made.append(Word(" a", round(at, 2), round(at + seconds, 2), probability))
        at += seconds
    return Piece(start, made[-1].end if made else start, [1], tuple(made))


def test_anomalies() -> None:
    assert not is_anomalous(None)
    assert not is_anomalous(piece(0, []))
    assert not is_anomalous(piece(0, [(0.4, 0.9)] * 3))
    assert is_anomalous(piece(0, [(0.4, 0.1)] * 3))
    assert is_anomalous(piece(0, [(5.5, 0.9), (0.4, 0.9)]))
    assert not is_anomalous(piece(0, [(0.4, 0.9)] * 8 + [(0.4, 0.1)] * 8))
    assert is_anomalous(piece(0, [(0.0, 0.9)] * 2 + [(0.4, 0.9)] * 1))


def test_hallucinations() -> None:
    said, odd = [(0.4, 0.9)] * 4, [(0.4, 0.05)] * 4
    limits = {"offset": 10.0, "window_end": 40.0, "heard_end": 40.0, "duration": 60.0}
    pieces = [piece(15.0, odd)]
    assert leading_silence(pieces, 2.0, 10.0) == 15.0
    assert leading_silence(pieces, 6.0, 10.0) is None
    assert leading_silence([piece(15.0, said)], 2.0, 10.0) is None
    # Between pauses: it goes, and what follows it.
    pieces = [piece(12.0, said), piece(20.0, odd), piece(30.0, said)]
    assert drop_hallucinations(pieces, 2.0, **limits, last_speech=9.0) == 20.0
    assert [one.start for one in pieces] == [12.0]
    # Near what was said before and after it stays.
    pieces = [piece(12.5, said), piece(14.2, odd), piece(16.0, said)]
    assert drop_hallucinations(pieces, 2.0, **limits, last_speech=9.0) is None
    assert len(pieces) == 3
    # The end of the audio is near.
    pieces = [piece(38.0, odd)]
    assert drop_hallucinations(pieces, 30.0, **limits, last_speech=0.0) == 60.0
    assert drop_hallucinations([], 2.0, **limits, last_speech=0.0) is None


def test_beside_the_tiny_model(model: AudioModel) -> None:
    """Times of words by weights in float64."""
    audio = sound(2.3, 4)
    allowed = model.tokens.encode(" AB")
    found = model.transcribe(
        audio, word_timestamps=True, without_timestamps=True, temperature=5.0, seed=0, best_of=1,
        suppress_tokens=[token for token in range(318) if token not in allowed],
        language="en", log_prob_threshold=None, no_speech_threshold=None,
        compression_ratio_threshold=None,
    )  # fmt: skip
    checkpoint = inspect_checkpoint(MODEL)
    tensors = {
        ours: checkpoint.tensors[theirs].data.astype(np.float64)
        for ours, theirs in checkpoint.names.items()
    }
    features = model.features(audio)
    assert found.segments
    for segment in found.segments:
        assert segment.words
        assert segment.words[0].start == segment.start
        assert segment.words[-1].end == segment.end
        assert "".join(word.word for word in segment.words) == segment.text
        for before, word in pairwise(segment.words):
            assert before.start <= before.end <= word.start + 1e-9
    first = found.segments[0]
    size = min(100, len(features) - first.seek)
    heard = np.zeros((100, features.shape[1]))
    heard[:size] = features[first.seek : first.seek + size]
    read = reference_text_to_text.hidden_of_audio(checkpoint.spec, tensors, heard)
    text = [token for token in first.tokens if token < 256]
    prompt = np.array([257, 258, 262, 266, *text, 256])
    weights = reference_text_to_text.weights_over_audio(checkpoint.spec, tensors, read, prompt)
    chosen = np.array([weights[layer, head] for layer, head in model._heads])[..., : size // 2]
    chosen /= chosen.sum(-1, keepdims=True)
    x = (chosen - chosen.mean(1, keepdims=True)) / chosen.std(1, keepdims=True)
    steps = cheapest_path(-medians(x, 7).mean(0)[3:-1])
    logits = reference_text_to_text.speech_logits(checkpoint.spec, tensors, read, prompt)[3:-2]
    exponents = np.exp(logits[:, :256] - logits[:, :256].max(-1, keepdims=True))
    probabilities = (exponents / exponents.sum(-1, keepdims=True))[range(len(text)), text]
    starts = [first.seek / 100 + step * 0.02 for step in steps]
    words = first.words or ()
    begins = np.cumsum([0, *(len(word.word.encode()) for word in words)])
    plain = [
        number
        for number, word in enumerate(words)
        if not word.word.startswith("  ")  # a space of its own belongs to the word behind it
    ]
    for number in plain:
        tokens = slice(begins[number], begins[number + 1])
        mean = probabilities[tokens].mean()
        assert words[number].probability == pytest.approx(mean, abs=1e-4)
    # The first words and the last one may be cut.
    inner = [number for number in plain if 2 <= number < len(words) - 1]
    assert inner
    for number in inner:
        assert words[number].start == pytest.approx(starts[begins[number]])
    assert {round(word.end, 2) for word in words} <= {round(start, 2) for start in starts}


@pytest.mark.parametrize(
    ("more", "least"),
    [
        ({"without_timestamps": True}, 20),
        ({"hallucination_silence_threshold": 0.1}, 0),
        ({"suppress_tokens": None}, 5),
    ],
)
def test_many_at_once(model: AudioModel, more: dict[str, Any], least: int) -> None:
    """Words, times and probabilities have the bits that they have alone."""
    audios = [sound(0.3 + 0.37 * i, i) for i in range(12)]
    options: dict[str, Any] = {
        "beam_size": 2, "best_of": 2, "temperature": (0.0, 0.6), "max_new_tokens": 12,
        "word_timestamps": True, "suppress_tokens": SUPPRESSED, **more,
    }  # fmt: skip
    together = model.transcribe(audios, **options)
    assert sum(len(segment.words or ()) for one in together for segment in one.segments) >= least
    with AudioModel.load(MODEL, dtype="float32", kv_tokens=8192, threads=1) as other:
        for i in (0, 3, 7, 11):
            assert other.transcribe(audios[i], **options) == together[i]
    assert model.session.stats["pages_used"] == 0


def test_no_words_where_there_is_no_text(model: AudioModel) -> None:
    assert model.transcribe(np.zeros(0, np.float32), word_timestamps=True).segments == ()
    # An audio too short for a step of time.
    for segment in model.transcribe(np.zeros(200, np.float32), word_timestamps=True).segments:
        assert segment.words == ()
    found = model.transcribe(sound(1.0, 2), temperature=0.0)
    assert all(segment.words is None for segment in found.segments)


def test_texts_as_long_as_the_context(model: AudioModel) -> None:
    """The end of a text that fills the context has no place behind it."""
    found = model.transcribe(
        sound(1.0, 3), temperature=0.0, beam_size=1, without_timestamps=True, max_new_tokens=60,
        suppress_tokens=[256], word_timestamps=True, condition_on_previous_text=False,
    )  # fmt: skip
    assert found.segments
    assert all(segment.words for segment in found.segments)


def decoder(layers: int, heads: int, tokens: int) -> dict[str, object]:
    blocks = [{"num_heads": heads}, {"num_heads": heads}, {}]
    stack = {"stem": {"vocab_size": tokens}, "layers": [{"blocks": blocks}] * layers}
    return {"stacks": {"encoder": {}, "decoder": stack}}


def latter_half(layers: int, heads: int) -> tuple[tuple[int, int], ...]:
    return tuple((i, head) for i in range(layers // 2, layers) for head in range(heads))


def test_alignment_heads() -> None:
    spec = inspect_checkpoint(MODEL).spec
    layers = spec["stacks"]["decoder"]["layers"]
    every = latter_half(len(layers), layers[0]["blocks"][1]["num_heads"])
    assert alignment_heads(None, spec) == every
    assert alignment_heads([[1, 0], [0, 1]], spec) == ((1, 0), (0, 1))
    # Distilled models have the list of their teacher.
    for beyond in ([[0, 99]], [[0, 0], [9, 0]]):
        assert alignment_heads(beyond, spec) == every
    for given in ([], "x", [[0]], [[0, -1]], [[0, 0], [0, 0]], [[0, True]], [["0", 1]], {"a": 1}):
        with pytest.raises(ValueError, match="alignment_heads of the model's files are"):
            alignment_heads(given, spec)


@pytest.mark.parametrize(("sizes", "expected"), KNOWN)
def test_alignment_heads_of_known_models(sizes: list[int], expected: list[list[int]]) -> None:
    found = alignment_heads(None, decoder(*sizes))
    assert sorted(found) == sorted(map(tuple, expected))
    assert alignment_heads([[0, 1]], decoder(*sizes)) == ((0, 1),)
    other = (sizes[0], sizes[1], 51867)
    assert alignment_heads(None, decoder(*other)) == latter_half(sizes[0], sizes[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"word_timestamps": 1}, "word_timestamps is 1, expected True or False"),
        ({"prepend_punctuations": None}, "prepend_punctuations is None, expected a text"),
        ({"hallucination_silence_threshold": 2.0}, "expected None without word_timestamps"),
        (
            {"word_timestamps": True, "hallucination_silence_threshold": -1.0},
            "hallucination_silence_threshold is -1.0, expected 0 seconds or more, or None",
        ),
    ],
)
def test_refused_options(model: AudioModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.transcribe(sound(0.5, 0), **options)
