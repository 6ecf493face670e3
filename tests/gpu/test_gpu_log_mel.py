"""Frames of audio made on the GPU: those of the CPU, for any number of audios of any lengths in one
call."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from gpu_support import DEVICE
from mel_cases import GOLDEN_FRAMES, noises, reference, samples
from packhorse.audio import AudioModel, FrameMaker
from packhorse.audio import log_mel as of_cpu
from speech_cases import MODEL, sound


@pytest.fixture(scope="module", params=[80, 128])
def maker(request: pytest.FixtureRequest) -> Iterator[FrameMaker]:
    found = FrameMaker(DEVICE, request.param)
    yield found
    found.close()


@pytest.mark.parametrize("name", sorted(GOLDEN_FRAMES))
def test_equal_to_transformers(name: str) -> None:
    kind, mels = name.split("_")
    (found,) = FrameMaker(DEVICE, int(mels)).log_mel([samples(kind)])
    np.testing.assert_allclose(found[::5], GOLDEN_FRAMES[name], atol=1e-5)
    np.testing.assert_allclose(found, of_cpu(samples(kind), int(mels)), atol=2e-6)


@pytest.mark.parametrize("size", [0, 1, 159, 160, 161, 200, 399, 1000, 7777, 48000])
def test_silence_behind_the_end(maker: FrameMaker, size: int) -> None:
    heard, mels = samples("sweep")[:size], maker.num_mels
    (found,) = maker.log_mel([heard], end="silence")
    assert found.shape == (size // 160, mels)
    if size >= 160:
        np.testing.assert_allclose(found, reference(heard, mels), atol=1e-5)


# Audios of uneven lengths, some of which take several launches; the fifth begins in the middle of
# one.
SIZES = (0, 700, 16384 * 160 + 37, 480_000, 201, 5_300_000, 160)


@pytest.mark.parametrize("end", ["reflect", "silence"])
def test_many_at_once(maker: FrameMaker, end: str) -> None:
    """Equal to the CPU's; and bit for bit to those that each audio has alone."""
    audios = noises(SIZES if end == "silence" else SIZES[:-1])
    together = maker.log_mel(audios, end=end)  # type: ignore[arg-type]
    for audio, found in zip(audios, together, strict=True):
        expected = of_cpu(audio, maker.num_mels, end=end)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, expected, atol=2e-6)
        (alone,) = maker.log_mel([audio], end=end)  # type: ignore[arg-type]
        assert alone.tobytes() == found.tobytes()
    assert maker.log_mel([]) == []


@pytest.mark.parametrize("mels", [1, 3, 256])
def test_other_numbers_of_bands(mels: int) -> None:
    heard = samples("sweep")
    (found,) = FrameMaker(DEVICE, mels).log_mel([heard])
    np.testing.assert_allclose(found, of_cpu(heard, mels), atol=2e-6)


def test_threads(maker: FrameMaker) -> None:
    audios = noises((700, 480_000, 201, 3_000_000))
    wanted = maker.log_mel(audios)
    found: list[list[np.ndarray]] = []
    calls = [threading.Thread(target=lambda: found.append(maker.log_mel(audios))) for _ in range(4)]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert len(found) == 4
    for one in found:
        assert all(a.tobytes() == b.tobytes() for a, b in zip(one, wanted, strict=True))


def test_refused(maker: FrameMaker) -> None:
    """An error names the audio and leaves the maker as it was."""
    good = samples("sweep")
    (before,) = maker.log_mel([good])
    bad = good.copy()
    bad[777] = np.nan
    with pytest.raises(ValueError, match=r"audio\[1\]: sample 777 is .*nan, expected a finite"):
        maker.log_mel([good, bad])
    with pytest.raises(ValueError, match="100 samples, expected at least 201"):
        maker.log_mel([np.zeros(100, np.float32)])
    with pytest.raises(ValueError, match="expected one channel"):
        maker.log_mel([np.zeros((2, 400), np.float32)])
    with pytest.raises(ValueError, match="num_mels is 257, expected 1 to 256"):
        FrameMaker(DEVICE, 257)
    (after,) = maker.log_mel([good])
    assert after.tobytes() == before.tobytes()


def test_a_model_uses_it() -> None:
    audio = sound(1.5, 2)
    with AudioModel.load(MODEL, DEVICE, "float16", kv_tokens=8192) as model:
        found = model.features(audio)
        np.testing.assert_allclose(found, of_cpu(audio, found.shape[1], end="silence"), atol=2e-6)
    with pytest.raises(RuntimeError, match="was closed"):
        model.features(audio)
