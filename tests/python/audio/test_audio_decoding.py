"""Audio of files, bytes and arrays: rates, channels, and what is refused."""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audio_files import broken_files, header, tone, written
from packhorse.audio import load_audio

pytest.importorskip("soxr")


@pytest.mark.parametrize(
    ("form", "kind", "near"),
    [
        ("WAV", "FLOAT", 0),
        ("WAV", "PCM_16", 4e-5),
        ("FLAC", "PCM_24", 1e-6),
        ("WAV", "PCM_U8", 9e-3),
    ],
)
def test_files(form: str, kind: str, near: float, tmp_path: Path) -> None:
    samples = tone(16000)
    data = written(samples, 16000, form, kind)
    path = tmp_path / "a.audio"
    path.write_bytes(data)
    for one in (data, bytearray(data), memoryview(data), path, str(path)):
        found = load_audio(one)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, samples, atol=near)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
def test_rates(rate: int) -> None:
    """A tone keeps its pitch and loudness; its length is that of the time."""
    found = load_audio(tone(rate), rate)
    assert abs(found.size - 8000) <= 1
    wanted = tone(16000)
    middle = slice(1000, 7000)
    np.testing.assert_allclose(found[middle], wanted[middle], atol=2e-3)
    np.testing.assert_array_equal(load_audio(written(tone(rate), rate, "WAV", "FLOAT")), found)


def test_channels_and_integers() -> None:
    left, right = tone(16000), tone(16000, hertz=1000)
    stereo = np.stack([left, right], axis=1)
    np.testing.assert_allclose(load_audio(stereo), (left + right) / 2, atol=1e-7)
    np.testing.assert_array_equal(
        load_audio(written(stereo, 16000, "WAV", "FLOAT")), load_audio(stereo)
    )
    np.testing.assert_array_equal(load_audio(stereo[:, :1]), left)
    for kind, scale in ((np.int8, 128), (np.int16, 32768), (np.int32, 2**31)):
        values = np.array([-scale, 0, scale // 2], kind)
        np.testing.assert_array_equal(load_audio(values), [-1, 0, 0.5])
    assert load_audio(left.astype(np.float64)).dtype == np.float32


def test_empty() -> None:
    assert load_audio(np.zeros(0, np.float32)).size == 0
    assert load_audio(np.zeros((0, 2), np.int16), 44100).size == 0
    assert load_audio(written(np.zeros(0), 16000, "WAV", "PCM_16")).size == 0


@pytest.mark.parametrize(
    ("audio", "message"),
    [
        (np.zeros((3, 65), np.float32), "65 channels, expected 1 to 64"),
        (np.zeros((3, 0), np.float32), "0 channels, expected 1 to 64"),
        (np.zeros((3, 2, 2), np.float32), r"array of float32 \[3, 2, 2\], expected"),
        (np.zeros(3, np.uint8), "array of uint8"),
        (np.array([0, np.nan], np.float32), "nan at sample 1, expected finite numbers"),
        (np.array([1e300, 0]), "inf at sample 0, expected finite numbers"),
        (b"RIFF", "no audio"),
        (header(rate=1 << 30) + bytes(100), "has a rate of 1073741824 Hz"),
        (header(size=200) + bytes(100), "ends after 100 bytes of samples, its header says 200"),
        (written(tone(16000), 16000, "OGG", "VORBIS")[:2000], "no audio|ends after|broken"),
        (written(np.full(9, 1e38), 16000, "WAV", "FLOAT"), "1.*e.37 at sample 0, expected finite"),
        (written(np.full(9, 1e300), 16000, "WAV", "DOUBLE"), "inf at sample 0, expected finite"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # a file says when it was written
)
def test_refused(audio: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_audio(audio)


@pytest.mark.parametrize("name", broken_files())
def test_broken_files(name: str, tmp_path: Path) -> None:
    data, message = broken_files()[name]
    path = tmp_path / "a.audio"
    path.write_bytes(data)
    begin = resident()
    for one in (data, path):
        with pytest.raises(ValueError, match=message):
            load_audio(one)
    assert resident() - begin < 64 << 20


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0xFFFFFFFE, 0x7FFFFFFE])
def test_claims_make_no_room(size: int) -> None:
    """A header may claim 2^31 samples, as of a writer that did not know how many would come: those
    that there are are read."""
    samples = (tone(16000) * 32767).astype("<i2")
    begin = resident()
    found = load_audio(header(size=size) + samples.tobytes())
    np.testing.assert_allclose(found, samples / 32768, atol=1e-6)
    assert resident() - begin < 64 << 20


def resident() -> int:
    """Bytes of memory of this process."""
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def test_claims_of_other_files() -> None:
    """FLAC that claims 2^36 samples, and chunks of no bytes without an end."""
    whole = written(tone(16000), 16000, "FLAC", "PCM_16")
    claims = whole[:21] + bytes([whole[21] | 15, 255, 255, 255, 255]) + whole[26:]
    begin = resident()
    with suppress(ValueError):
        assert load_audio(claims).size <= 16000
    with pytest.raises(ValueError, match="no audio"):
        load_audio(header()[:36] + b"none\0\0\0\0" * 100_000)
    assert resident() - begin < 64 << 20


@pytest.mark.parametrize("form", ["WAV", "FLAC"])
def test_one_sample(form: str) -> None:
    sample = np.array([0.5])
    np.testing.assert_array_equal(load_audio(written(sample, 16000, form, "PCM_16")), [0.5])
    assert load_audio(written(sample, 8000, form, "PCM_16")).size <= 2
    with pytest.raises(ValueError, match="ends after 0 bytes of samples, its header says 2"):
        load_audio(written(sample, 16000, "WAV", "PCM_16")[:44])


@pytest.fixture
def by_av(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    monkeypatch.setitem(sys.modules, "soundfile", None)


def encoded(samples: np.ndarray, rate: int, form: str, codec: str) -> bytes:
    """A file that FFmpeg writes."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
        frame.sample_rate = rate
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    return file.getvalue()


@pytest.mark.usefixtures("by_av")
@pytest.mark.parametrize("kind", ["PCM_16", "FLOAT"])
def test_av_reads_what_soundfile_does(kind: str) -> None:
    samples = tone(16000)
    np.testing.assert_allclose(load_audio(written(samples, 16000, "WAV", kind)), samples, atol=4e-5)
    stereo = np.stack([samples, tone(16000, hertz=1000)], axis=1)
    found = load_audio(written(stereo, 16000, "WAV", kind))
    np.testing.assert_allclose(found, stereo.mean(axis=1), atol=4e-5)
    other = load_audio(written(tone(44100), 44100, "WAV", kind))
    np.testing.assert_allclose(other[1000:7000], samples[1000:7000], atol=2e-3)
    assert load_audio(written(np.zeros(0), 16000, "WAV", kind)).size == 0


@pytest.mark.parametrize("form", ["mp4", "matroska"])
def test_av_reads_what_soundfile_does_not(form: str, tmp_path: Path) -> None:
    """AAC in containers of video, by bytes and by path."""
    pytest.importorskip("av")
    data = encoded(tone(16000, 2.0), 16000, form, "aac")
    found = load_audio(data)
    assert abs(found.size - 32000) <= 2048
    spectrum = np.abs(np.fft.rfft(found[8000:24000]))
    assert spectrum.argmax() == 440
    path = tmp_path / "a.video"
    path.write_bytes(data)
    np.testing.assert_array_equal(load_audio(path), found)
    with pytest.raises(ValueError, match="beyond max_seconds = 1"):
        load_audio(data, max_seconds=1.0)


@pytest.mark.usefixtures("by_av")
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is no audio that can be read"),
        (b"not audio at all" * 100, "is no audio that can be read"),
        (header(channels=0) + bytes(100), "has 0 channels"),
        (header(size=200) + bytes(100), "ends after 100 bytes of samples"),
        (written(np.array([0.0, np.nan]), 16000, "WAV", "FLOAT"), "nan at sample 1"),
        (written(tone(16000), 16000, "FLAC", "PCM_16")[:3000], "is no audio that can be read"),
        (b"P6 2 2 255\n" + bytes(12), "has no audio|is no audio that can be read"),
    ],
    ids=range(7),
)
def test_av_refuses(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_audio(data)


def test_lengths_and_rates_are_bounded() -> None:
    with pytest.raises(ValueError, match="0 seconds or more, which is beyond max_seconds = 0.1"):
        load_audio(tone(16000), max_seconds=0.1)
    with pytest.raises(ValueError, match="beyond max_seconds"):
        load_audio(written(tone(16000), 16000, "FLAC", "PCM_16"), max_seconds=0.1)
    for rate in (0, -1, 10**9, 16000.5, True):
        with pytest.raises(ValueError, match=r"has a rate of .* Hz, expected 100 to 1048576"):
            load_audio(tone(16000), rate)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rate is 16000, expected None beside a file"):
        load_audio(b"", 16000)
    with pytest.raises(TypeError, match="audio is a int, expected a path, bytes or a NumPy array"):
        load_audio(3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        load_audio("no such file.wav")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(ModuleNotFoundError, match="soxr"):
        load_audio(tone(8000), 8000)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ModuleNotFoundError, match="soundfile"):
        load_audio(written(tone(16000), 16000, "WAV", "PCM_16"))
