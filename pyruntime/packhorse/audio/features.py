"""Samples made frames, as models of speech read them."""

from __future__ import annotations

from typing import Literal

import numpy as np

from packhorse._native.audio import log_mel as native_log_mel
from packhorse.audio.decoding import Samples
from packhorse.result import FloatArray

FRAMES_PER_SECOND = 100


def log_mel(
    samples: Samples,
    num_mels: int = 80,
    *,
    end: Literal["reflect", "silence"] = "reflect",
    threads: int | None = None,
) -> FloatArray:
    """Frames of mono samples at 16 kHz, float32 [samples // 160, num_mels].

    num_mels  bands of the mel scale: 80, or 128 in later models of Whisper
    end       what is behind the last sample: the samples before it, backwards, as in the feature
              extractor of transformers; or silence, as in openai-whisper
    threads   None: all cores

    A frame's numbers are (max(l, m - 8) + 4) / 4, where l is the logarithm to the base of 10 of a
    band's power, and m the largest l of all frames (Radford et al. 2022, arXiv 2212.04356). They
    are computed in float64.

    Raises ValueError for fewer than 201 samples with "reflect", and numbers that are not finite.
    """
    if end not in ("reflect", "silence"):
        raise ValueError(f"end is {end!r:.40}, expected 'reflect' or 'silence'")
    given = np.ascontiguousarray(samples, np.float32)
    if given.ndim != 1:
        raise ValueError(f"samples has the shape {given.shape}, expected one channel")
    return native_log_mel(given, num_mels, end == "reflect", threads or 0)
