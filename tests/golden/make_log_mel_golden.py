"""Makes tests/cpp/cpu/log_mel_golden.inc: frames of noise by NumPy in float64, for the C++ tests.

python tests/golden/make_log_mel_golden.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

TARGET = Path(__file__).parents[1] / "cpp" / "cpu" / "log_mel_golden.inc"
CASES = (
    *((size, 80, "kReflect") for size in (201, 321, 4801)),
    *((size, 80, "kSilence") for size in (160, 161, 399, 1000, 4801)),
    *((size, 128, "kSilence") for size in (801,)),
    *((size, 3, "kReflect") for size in (480,)),
)
STEP = 13  # bands that are written: each of this number


def noise(size: int) -> np.ndarray:
    """Samples of a generator modulo 2^32, silent from the 1600th to the 2400th; float32."""
    state, found = 1, []
    for i in range(size):
        state = (1664525 * state + 1013904223) % 2**32
        found.append(0.0 if 1600 <= i < 2400 else (state - 2**31) / 2**32)
    return np.array(found, np.float32)


def hertz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))


def frames(samples: np.ndarray, mels: int, silent: bool) -> np.ndarray:
    count = samples.size // 160
    x = np.pad(samples.astype(np.float64), (0, 4000 if silent else 0))
    x = np.pad(x, 200, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    rows = np.stack([x[i : i + 400] * window for i in range(0, x.size - 399, 160)])
    if not silent:
        rows = rows[:count]
    corners = hertz(np.linspace(0, 15 + np.log(8) / (np.log(6.4) / 27), mels + 2))[:, None]
    bins = np.linspace(0, 8000, 201)
    low, middle, high = corners[:-2], corners[1:-1], corners[2:]
    filters = np.maximum(
        0, np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle))
    )
    powers = np.abs(np.fft.rfft(rows)) ** 2 @ (filters * 2 / (high - low)).T
    logs = np.log10(np.maximum(1e-10, powers))
    return (np.maximum(logs, logs.max() - 8) + 4)[:count] / 4


def main() -> None:
    lines = ["// Made by tests/golden/make_log_mel_golden.py: do not edit.\n"]
    for size, mels, end in CASES:
        found = frames(noise(size), mels, end == "kSilence")[:, ::STEP].ravel()
        values = [f"{value:.7f}" for value in found]
        lines.append(f"{{{size}, {mels}, End::{end}, {{")
        lines += [f"     {', '.join(values[i : i + 8])}," for i in range(0, len(values), 8)]
        lines.append("}},")
    TARGET.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
