"""Windows that know nothing of each other: each is what it is alone, in the order of the audio."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from checkpoints import GOLDEN
from packhorse.audio import AudioModel, Language, Progress, Segment
from packhorse.audio.chunked import windows_of
from packhorse.audio.vad import Part

MODEL = GOLDEN / "speech" / "whisper"  # its windows have a second
OPTIONS = {"beam_size": 2, "best_of": 2, "temperature": (0.0, 0.6), "max_new_tokens": 12}


@pytest.fixture(scope="module")
def model() -> Iterator[AudioModel]:
    with AudioModel.load(MODEL, dtype="float32", kv_tokens=16384, threads=2) as found:
        yield found


def sound(seconds: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    time = np.arange(int(16000 * seconds)) / 16000
    heard = np.sin(2 * np.pi * (200 + 300 * rng.random() * time) * time) * (time % 0.7 < 0.5)
    return (heard + rng.normal(0, 0.02, time.size)).astype(np.float32)


def by_hand(model: AudioModel, audio: np.ndarray, cuts: list[int], **options: Any) -> list[Any]:
    """Segments of windows that are transcribed one after the other as audios of their own, in the
    language of the first."""
    windows = [audio[begin:end] for begin, end in pairwise(cuts)]
    language = model.transcribe(windows[0], **OPTIONS, **options).language
    found = []
    for begin, window in zip(cuts, windows, strict=False):
        said = model.transcribe(
            window, language=language, condition_on_previous_text=False, **OPTIONS, **options
        )
        for one in said.segments:
            times = round(one.start + begin / 16000, 2), round(one.end + begin / 16000, 2)
            seek = begin // 160 + one.seek
            found.append((len(found), *times, seek, one.tokens, one.avg_logprob, one.temperature))
    return found


def shown(segments: Any) -> list[Any]:
    return [
        (s.id, s.start, s.end, s.seek, s.tokens, s.avg_logprob, s.temperature) for s in segments
    ]


@pytest.mark.parametrize("seconds", [0.4, 1.0, 3.1])
def test_windows_are_what_they_are_alone(model: AudioModel, seconds: float) -> None:
    audio = sound(seconds, 1)
    found = model.transcribe(audio, mode="chunked", initial_prompt="ABBA", **OPTIONS)
    cuts = [*range(0, audio.size, 16000), audio.size]
    assert shown(found.segments) == by_hand(model, audio, cuts, initial_prompt="ABBA")
    assert found.segments
    assert found.duration == seconds


def test_many_at_once(model: AudioModel) -> None:
    audios = [sound(0.3 + 0.4 * i, i) for i in range(12)]
    together = model.transcribe(audios, mode="chunked", **OPTIONS)
    for audio, found in zip(audios, together, strict=True):
        assert model.transcribe(audio, mode="chunked", **OPTIONS) == found
        assert [one.id for one in found.segments] == list(range(len(found.segments)))
    assert model.transcribe(audios[5], **OPTIONS) != together[5]


def test_clips_and_silences(model: AudioModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clips, and parts with speech, are put together into windows of at most a second."""
    audio = sound(4.0, 2)
    heard: list[int] = []
    transcribe = AudioModel._transcribe

    def note(self: AudioModel, samples: np.ndarray, options: Any) -> Any:
        heard.append(samples.size)
        return transcribe(self, samples, options)

    monkeypatch.setattr(AudioModel, "_transcribe", note)
    found = model.transcribe(
        audio, mode="chunked", language="en", clip_timestamps=[0.1, 0.5, 1.0, 1.4, 2.0], **OPTIONS
    )
    assert heard == [12800, 16000, 16000]
    assert found.segments[0].start >= 0.1
    assert all(one.end <= 0.5 or one.start >= 1.0 for one in found.segments if one.start < 0.5)

    class Detector:
        def __call__(self, samples: np.ndarray) -> np.ndarray:
            made = np.zeros(samples.size // 512 + 1, np.float32)
            made[20:30] = made[60:110] = 1
            return made

    heard.clear()
    monkeypatch.setattr("packhorse.audio.model.load_silero", lambda _path: Detector())
    options = {"vad_parameters": {"speech_pad_ms": 0, "min_silence_duration_ms": 0}, **OPTIONS}
    found = model.transcribe(audio, mode="chunked", language="en", vad_filter=True, **options)
    assert heard == [5120, 15872, 9216]  # where a part is cut, a chunk is no speech
    assert found.segments
    assert all(one.start >= 20 * 512 / 16000 - 0.01 for one in found.segments)


def test_stream(model: AudioModel) -> None:
    """Events come in the order of the audio, and are what `transcribe` gives."""
    audio = sound(3.4, 3)
    events = list(model.stream(audio, mode="chunked", **OPTIONS))
    whole = model.transcribe(audio, mode="chunked", **OPTIONS)
    assert [type(one) for one in events].count(Language) == 1
    assert isinstance(events[0], Language)
    assert events[0].code == whole.language
    assert tuple(one for one in events if isinstance(one, Segment)) == whole.segments
    done = [one.seconds for one in events if isinstance(one, Progress)]
    assert done == sorted(done)
    assert done[-1] == audio.size / 16000


def test_lists_silence_and_mistakes(model: AudioModel) -> None:
    assert model.transcribe([], mode="chunked") == []
    empty = model.transcribe(np.zeros(0, np.float32), mode="chunked")
    assert (empty.text, empty.segments, empty.duration) == ("", (), 0.0)
    assert empty.language in model.languages
    broken = np.array([0.0, np.nan], np.float32)
    with pytest.raises(ValueError, match=r"audio\[1\]: the audio has nan at sample 1"):
        model.transcribe([sound(2.5, 0), broken], mode="chunked")
    with pytest.raises(ValueError, match="mode is 'fast', expected 'sequential' or 'chunked'"):
        model.transcribe(sound(0.5, 0), mode="fast")
    assert model.session.stats["pages_used"] == 0


def test_windows() -> None:
    samples = np.arange(100, dtype=np.float32)

    def cut(*parts: tuple[int, int]) -> list[tuple[list[float], int]]:
        windows = windows_of(samples, [Part(*one) for one in parts], 10)
        return [(window.samples.tolist(), window.begin) for window in windows]

    assert cut() == [([], 0)]
    assert cut((0, 0)) == [([], 0)]
    assert cut((3, 8), (20, 25), (40, 41)) == [
        ([3, 4, 5, 6, 7, 20, 21, 22, 23, 24], 0), ([40], 10),
    ]  # fmt: skip
    assert cut((0, 25)) == [
        (list(range(10)), 0), (list(range(10, 20)), 10), (list(range(20, 25)), 20),
    ]  # fmt: skip


def test_a_prefix_begins_the_first_window_alone(model: AudioModel) -> None:
    audio = sound(2.2, 1)
    cuts = [0, 16000, 32000, audio.size]
    found = model.transcribe(audio, mode="chunked", prefix="ABBA", **OPTIONS)
    first = by_hand(model, audio, cuts[:2], prefix="ABBA")
    others = by_hand(model, audio, cuts)[len(by_hand(model, audio, cuts[:2])) :]
    assert [one[1:] for one in shown(found.segments)] == [one[1:] for one in (*first, *others)]
    assert found.text.startswith("ABBA")
    assert found.text.count("ABBA") == 1
