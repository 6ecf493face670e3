"""Samples made frames, as models of speech read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from packhorse._native.audio import FrameMaker as NativeFrameMaker
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
    return native_log_mel(_given(samples), num_mels, _reflects(end), threads or 0)


class FrameMaker:
    """Makes frames of many audios, as `log_mel` does, on any device.

    A CUDA device makes those of several audios in one launch; samples and frames pass through 60
    MiB of page-locked memory, which is allocated once. Its frames are those of the CPU to 1e-6, and
    do not depend on the other audios. Any number of threads may use one.
    """

    def __init__(self, device: str = "cpu", num_mels: int = 80, threads: int | None = None) -> None:
        """`threads`: of the CPU; None: all cores. Raises ValueError for other numbers of mels than
        1 to 256, and RuntimeError where there is no such device."""
        self.num_mels = num_mels
        self._native: NativeFrameMaker | None = NativeFrameMaker(device, num_mels, threads or 0)

    def log_mel(
        self, audios: Sequence[Samples], *, end: Literal["reflect", "silence"] = "reflect"
    ) -> list[FloatArray]:
        """Frames of each of the audios, float32 [samples // 160, num_mels]. Arguments and errors
        are those of `log_mel`; the error of one of several audios names its place."""
        if self._native is None:
            raise RuntimeError("this FrameMaker was closed")
        return self._native.make([_given(samples) for samples in audios], _reflects(end))

    def close(self) -> None:
        """Frees its memory, when no call uses it any more."""
        self._native = None


def _given(samples: Samples) -> FloatArray:
    given = np.ascontiguousarray(samples, np.float32)
    if given.ndim != 1:
        raise ValueError(f"samples has the shape {given.shape}, expected one channel")
    return given


def _reflects(end: str) -> bool:
    if end not in ("reflect", "silence"):
        raise ValueError(f"end is {end!r:.40}, expected 'reflect' or 'silence'")
    return end == "reflect"
