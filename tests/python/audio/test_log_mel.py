"""Frames of audio: those of transformers' feature extractor, and of silence behind the end."""

from __future__ import annotations

import numpy as np
import packhorse.audio
import pytest
from mel_cases import GOLDEN_FRAMES, noises, reference, samples
from packhorse.audio import FrameMaker


@pytest.mark.parametrize("name", sorted(GOLDEN_FRAMES))
def test_equal_to_transformers(name: str) -> None:
    kind, mels = name.split("_")
    found = packhorse.audio.log_mel(samples(kind), int(mels))
    assert found.shape == (samples(kind).size // 160, int(mels))
    np.testing.assert_allclose(found[::5], GOLDEN_FRAMES[name], atol=1e-5)


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


@pytest.mark.parametrize("mels", [80, 128])
def test_many_at_once(mels: int) -> None:
    audios = noises((0, 700, 201, 16_000, 5000))
    maker = FrameMaker("cpu", mels)
    for audio, found in zip(audios, maker.log_mel(audios, end="silence"), strict=True):
        assert found.shape == (audio.size // 160, mels)
        if audio.size:
            np.testing.assert_allclose(found, reference(audio, mels), atol=1e-5)
    assert maker.log_mel([]) == []


def test_the_place_of_a_refused_audio() -> None:
    """A refusal leaves the maker as it was."""
    maker, good = FrameMaker("cpu", 80), samples("sweep")
    (before,) = maker.log_mel([good])
    with pytest.raises(ValueError, match=r"audio\[1\]: sample 3 is .*inf, expected a finite"):
        maker.log_mel([good, np.where(np.arange(400) == 3, np.inf, 0).astype(np.float32)])
    with pytest.raises(ValueError, match="num_mels is 257, expected 1 to 256"):
        FrameMaker("cpu", 257)
    with pytest.raises(ValueError, match="end is 'no', expected"):
        maker.log_mel([good], end="no")  # type: ignore[arg-type]
    (after,) = maker.log_mel([good])
    assert after.tobytes() == before.tobytes()
    maker.close()
    with pytest.raises(RuntimeError, match="was closed"):
        maker.log_mel([good])
