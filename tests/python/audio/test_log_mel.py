"""Frames of audio: those of transformers' feature extractor, and of silence behind the end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import packhorse.audio
import pytest
from checkpoints import GOLDEN

GOLDEN_FRAMES = dict(np.load(GOLDEN / "speech" / "log_mel.npz"))


def _samples() -> Callable[[str], np.ndarray]:
    """The function that made what the golden frames are of."""
    text = (GOLDEN / "make_speech_golden.py").read_text()
    begin, end = text.index("def samples("), text.index("def tokenizer(")
    names: dict[str, object] = {"np": np}
    exec(text[begin:end], names)
    return names["samples"]  # type: ignore[return-value]


samples = _samples()


@pytest.mark.parametrize("name", sorted(GOLDEN_FRAMES))
def test_equal_to_transformers(name: str) -> None:
    kind, mels = name.split("_")
    found = packhorse.audio.log_mel(samples(kind), int(mels))
    assert found.shape == (samples(kind).size // 160, int(mels))
    np.testing.assert_allclose(found[::5], GOLDEN_FRAMES[name], atol=1e-5)


def reference(heard: np.ndarray, mels: int) -> np.ndarray:
    """Frames of audio that goes on in silence, in float64 by NumPy."""
    padded = np.pad(heard.astype(np.float64), (0, 16000))
    padded = np.pad(padded, 200, mode="reflect")
    count = 1 + (padded.size - 400) // 160 - 1
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    rows = np.stack([padded[160 * i : 160 * i + 400] * window for i in range(count)])
    powers = np.abs(np.fft.rfft(rows)) ** 2
    corners = np.linspace(0, 15 + np.log(8) / (np.log(6.4) / 27), mels + 2)
    hertz = np.where(
        corners < 15, corners * 200 / 3, 1000 * np.exp((corners - 15) * np.log(6.4) / 27)
    )
    bins = np.linspace(0, 8000, 201)
    low, middle, high = (hertz[i : mels + i, None] for i in range(3))
    filters = np.maximum(
        0, np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle))
    )
    logs = np.log10(np.maximum(1e-10, powers @ (filters * 2 / (high - low)).T))
    logs = (np.maximum(logs, logs.max() - 8) + 4) / 4
    return logs[: heard.size // 160]


@pytest.mark.parametrize("size", [0, 1, 159, 160, 161, 200, 399, 1000, 7777, 48000])
def test_silence_behind_the_end(size: int) -> None:
    heard = samples("sweep")[:size]
    found = packhorse.audio.log_mel(heard, 80, end="silence")
    assert found.shape == (size // 160, 80)
    if size >= 160:
        np.testing.assert_allclose(found, reference(heard, 80), atol=1e-5)


def test_threads_change_no_bits() -> None:
    heard = samples("sweep")
    one, more = (packhorse.audio.log_mel(heard, threads=n) for n in (1, 2))
    assert one.tobytes() == more.tobytes()


@pytest.mark.parametrize(
    ("heard", "options", "message"),
    [
        (np.zeros(100), {}, "100 samples, expected at least 201"),
        (np.full(400, np.nan), {}, "sample 0 is .*nan, expected a finite number"),
        (np.full(400, 1e30), {}, "expected a finite number of at most 2"),
        (np.zeros((2, 400)), {}, "expected one channel"),
        (np.zeros(400), {"num_mels": 0}, "num_mels is 0, expected 1 to 256"),
        (np.zeros(400), {"num_mels": 257}, "num_mels is 257, expected 1 to 256"),
        (np.zeros(400), {"end": "no"}, "end is 'no', expected"),
    ],
)
def test_refused(heard: np.ndarray, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        packhorse.audio.log_mel(heard.astype(np.float32), **options)  # type: ignore[arg-type]
