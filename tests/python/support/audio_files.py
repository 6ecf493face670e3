"""Files of audio that lie or are broken, with what is said of them."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest

soundfile = pytest.importorskip("soundfile")


def tone(rate: int, seconds: float = 0.5, hertz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)).astype(
        np.float32
    )


def written(samples: np.ndarray, rate: int, form: str, kind: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=form, subtype=kind)
    return file.getvalue()


def header(channels: int = 1, rate: int = 16000, size: int = 0) -> bytes:
    """A WAV header that claims so many bytes."""
    form = struct.pack("<HHIIHH", 1, channels, rate, 2 * channels * rate, 2 * channels, 16)
    return (
        b"RIFF"
        + struct.pack("<I", 0xFFFFFFFF)
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + form
        + (b"data" + struct.pack("<I", size))
    )


def broken_files() -> dict[str, tuple[bytes, str]]:
    """Names, bytes, and a regular expression for the error. A FLAC file claims 2^31 samples in the
    36 bits of its header; one of WAV has no more than 32 for bytes."""
    flac = written(tone(16000), 16000, "FLAC", "PCM_16")
    claims = flac[:21] + bytes([flac[21] & 0xF0]) + struct.pack(">I", 1 << 31) + flac[26:]
    return {
        "empty": (b"", "no audio"),
        "text": (b"not audio at all" * 100, "no audio"),
        "cut header": (written(tone(16000), 16000, "WAV", "PCM_16")[:30], "no audio"),
        "cut": (written(tone(16000), 16000, "WAV", "PCM_16")[:-1], "ends after 15999 bytes"),
        "cut FLAC": (flac[:3000], "ends after|broken|no audio"),
        "0 channels": (header(channels=0) + bytes(100), "has 0 channels, expected 1 to 64"),
        "65 channels": (header(channels=65) + bytes(100), "has 65 channels"),
        "0 Hz": (header(rate=0) + bytes(100), "has a rate of 0 Hz, expected 100 to 1048576"),
        "2^30 samples": (
            header(size=0x7FFE0000) + bytes(100),
            "ends after 100 bytes of samples, its header says 2147352576",
        ),
        "2^31 samples": (claims, "ends after 8000 samples, its header says 2147483648|broken"),
        "NaN": (written(np.array([0.0, np.nan]), 16000, "WAV", "FLOAT"), "nan at sample 1"),
        "infinite": (written(np.array([0.0, np.inf]), 16000, "WAV", "FLOAT"), "inf at sample 1"),
    }
