"""Samples, the frames that transformers makes of them, and frames in float64 by NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
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


def noises(sizes: tuple[int, ...]) -> list[np.ndarray]:
    """Audios of these lengths. In every second one a tone is 80 dB above the rest, so that the
    maximum of each is its own."""
    random = np.random.default_rng(len(sizes))
    audios = []
    for number, size in enumerate(sizes):
        heard = random.normal(0, 1e-4, size)
        if number % 2:
            heard[size // 2 :] += np.sin(0.3 * np.arange(size - size // 2))
        audios.append(heard.astype(np.float32))
    return audios
