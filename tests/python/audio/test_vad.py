"""Parts with speech beside those of faster-whisper; audio without silences; Silero's network."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import GOLDEN
from packhorse.audio import AudioModel, Language, Progress, Segment, VadOptions, Word
from packhorse.audio.silero import find_silero, load_silero
from packhorse.audio.vad import Part, speech_parts
from packhorse.audio.voiced import VoicedTimes

MODEL = GOLDEN / "speech" / "whisper"
CASES = json.loads((GOLDEN / "speech" / "vad.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_parts_and_times(case: dict[str, Any]) -> None:
    runs = [*case["runs"], [0.0, 1]]
    probabilities = [one for one, count in runs for _ in range(count)]
    parts = speech_parts(probabilities, case["samples"], VadOptions(**case["options"]))
    assert [list(part) for part in parts] == case["parts"]
    times = VoicedTimes(parts, case["samples"] / 16000)
    for at, is_end, expected in case["times"]:
        # A segment that begins, or ends, at this time.
        start, end = (10.0, at) if is_end else (at, 1e6)
        found = times.whole(Segment(0, start, end, "", (), 0, 0, 0, 0, 0))
        assert (found.end if is_end else found.start) == expected


def test_words_and_progress() -> None:
    """A word lies in one part, that of its middle; progress goes on to the end of the audio."""
    times = VoicedTimes([Part(16000, 32000), Part(80000, 96000)], 10.0)
    words = (Word(" a", 0.5, 0.8, 1.0), Word(" b", 0.9, 1.5, 1.0), Word(" c", 0.2, 1.2, 1.0))
    segment = Segment(3, 0.0, 2.0, " a b c", (1,), 0, 0, 0, 0, 7, words=words)
    found = times.whole(segment)
    assert [(one.start, one.end) for one in found.words or ()] == [
        (1.5, 1.8), (4.9, 5.5), (1.2, 2.2),
    ]  # fmt: skip
    assert (found.start, found.end, found.id, found.seek) == (1.5, 2.2, 3, 7)
    assert times.whole(Progress(0.5)) == Progress(1.5)
    assert times.whole(Progress(1.0)) == Progress(2.0)
    assert times.whole(Progress(2.0)) == Progress(10.0)
    assert times.whole(Language("de", 0.5)) == Language("de", 0.5)
    assert VoicedTimes([], 3.0).whole(Progress(0.0)) == Progress(3.0)


@pytest.fixture(scope="module")
def model() -> Iterator[AudioModel]:
    with AudioModel.load(MODEL, dtype="float32", kv_tokens=8192, threads=2) as found:
        yield found


def tones(seconds: float) -> np.ndarray:
    rng = np.random.default_rng(1)
    time = np.arange(int(16000 * seconds)) / 16000
    heard = np.sin(2 * np.pi * (300 + 200 * time) * time) + rng.normal(0, 0.01, time.size)
    return heard.astype(np.float32)


class LoudChunks:
    """A network that calls loud chunks of 512 samples speech."""

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        padded = np.pad(samples, (0, 512 - samples.size % 512)).reshape(-1, 512)
        return (np.abs(padded).max(axis=1) > 0.1).astype(np.float32)


@pytest.fixture
def loud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.audio.model.load_silero", lambda _path: LoudChunks())


@pytest.mark.usefixtures("loud")
def test_silences_are_left_out(model: AudioModel) -> None:
    """The text is that of the audio without its silences, at the times of the whole."""
    spoken, still = tones(2.048), np.zeros(16384 * 3, np.float32)
    audio = np.concatenate([still, spoken[:16384], still, spoken[16384:], still])
    options = {"temperature": 0.0, "beam_size": 2, "max_initial_timestamp": 0.2}
    parameters = {"speech_pad_ms": 0}
    found = model.transcribe(audio, vad_filter=True, vad_parameters=parameters, **options)
    alone = model.transcribe(spoken, **options)
    assert [one.tokens for one in found.segments] == [one.tokens for one in alone.segments]
    assert len(found.segments) >= 2

    def moved(seconds: float, is_end: bool) -> float:
        first = seconds < 1.024 or (is_end and seconds == 1.024)
        return round(seconds + 1.024 * (3 if first else 6), 2)

    for one, other in zip(found.segments, alone.segments, strict=True):
        assert (one.start, one.end) == (moved(other.start, False), moved(other.end, True))
    assert found.duration == audio.size / 16000
    done = [one.seconds for one in model.stream(audio, vad_filter=True, **options)
            if isinstance(one, Progress)]  # fmt: skip
    assert done == sorted(done)
    assert done[-1] == found.duration
    # Padding is heard, too, and there may be nothing to hear.
    assert model.transcribe(audio, vad_filter=True, **options) != found
    nothing = model.transcribe([still, still[:0]], vad_filter=True, **options)
    assert [(one.segments, one.duration) for one in nothing] == [((), 3.072), ((), 0.0)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"threshold": 2}, "threshold is 2, expected a probability from 0 to 1"),
        ({"neg_threshold": "a"}, "neg_threshold is 'a', expected a probability"),
        ({"speech_pad_ms": -1}, "speech_pad_ms is -1, expected milliseconds from 0 on"),
        ({"min_silence_duration_ms": float("nan")}, "min_silence_duration_ms is nan"),
        ({"max_speech_duration_s": 1}, "max_speech_duration_s is 1, expected 1.8 seconds at least"),
        ({"max_speech_duration_s": float("nan")}, "max_speech_duration_s is nan"),
        ({"pad": 3}, "vad_parameters has no 'pad', expected one of threshold, neg_threshold"),
        (7, "vad_parameters is 7, expected VadOptions or its fields, or None"),
    ],
)
def test_refused_options(model: AudioModel, given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.transcribe(tones(0.5), vad_filter=True, vad_parameters=given)
    with pytest.raises(ValueError, match=r"clip_timestamps is \[1.0\], expected none beside vad"):
        model.transcribe(tones(0.5), vad_filter=True, clip_timestamps=[1.0])
    with pytest.raises(ValueError, match="vad_model is 3, expected a path, or None"):
        model.transcribe(tones(0.5), vad_model=3)


def test_missing_files_and_packages(
    model: AudioModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(FileNotFoundError, match="install --no-deps faster-whisper==1.2.1"):
        model.transcribe(tones(0.5), vad_filter=True)
    with pytest.raises(FileNotFoundError, match="vad_model: there is no file none.onnx"):
        model.transcribe(tones(0.5), vad_filter=True, vad_model="none.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    file = tmp_path / "silero.onnx"
    file.write_bytes(b"")
    with pytest.raises(ModuleNotFoundError, match="vad_filter needs the package onnxruntime"):
        model.transcribe(tones(0.5), vad_filter=True, vad_model=file)
    assert model.transcribe(tones(0.5), temperature=0.0).duration == 0.5


def _heard() -> np.ndarray:
    """The audio whose probabilities are golden."""
    text = (GOLDEN / "make_vad_golden.py").read_text()
    names: dict[str, Any] = {"np": np}
    exec(text[text.index("def heard(") : text.index("def make_parts(")], names)
    return names["heard"]()  # type: ignore[no-any-return]


def test_probabilities_of_silero(model: AudioModel) -> None:
    """Those that faster-whisper gets of the network that it ships."""
    pytest.importorskip("onnxruntime")
    try:
        detector = load_silero()
    except FileNotFoundError:
        pytest.skip("Silero's file is not installed")
    assert load_silero(find_silero()) is detector
    golden = np.load(GOLDEN / "speech" / "silero.npz")
    assert max(golden[name].max() for name in golden) > 0.7
    for name in golden:
        found = detector(_heard()[: int(name)])
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, golden[name], atol=1e-5)
    options = VadOptions(speech_pad_ms=0, min_silence_duration_ms=500)
    parts = speech_parts(detector(_heard()).tolist(), _heard().size, options)
    assert parts[0].begin > 0.9 * 16000
    assert parts[-1].end < 4.5 * 16000
    found = model.transcribe(_heard(), vad_filter=True, temperature=0.0, beam_size=1)
    assert found.duration == 6.0


def test_networks_that_are_none(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    file = tmp_path / "silero.onnx"
    file.write_bytes(b"no network")
    with pytest.raises(ValueError, match=r"silero.onnx is no network of ONNX"):
        load_silero(file)
