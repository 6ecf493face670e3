"""Files, bytes and arrays of any rate and channels made mono samples of 16 kHz.

WAV, FLAC and what else libsndfile reads are decoded by `soundfile`; others by PyAV, where it is
installed. `soxr` changes the rate. All are asked for only when they are needed.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterable
from itertools import chain
from typing import Any, Union

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]
AudioSource = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview, npt.NDArray[Any]]

SAMPLE_RATE = 16000
# The longest audio that is decoded: 5.5 GiB of samples at 16 kHz would be a day.
MAX_SECONDS = 24 * 3600.0
_BLOCK = 1 << 16  # frames that are decoded at once
_MOST_CHANNELS = 64
_RATES = (100, 1 << 20)  # Hz
_LOUDEST = 2.0**31
_UNKNOWN = 0x7FFF0000  # bytes, from which a length is that of a writer which did not know it
_MOST_CHUNKS = 1000  # that a WAV file has before its samples
_INTEGERS = {"i1": 128.0, "i2": 32768.0, "i4": 2147483648.0}


def load_audio(
    audio: AudioSource, rate: int | None = None, *, max_seconds: float = MAX_SECONDS
) -> Samples:
    """The samples of `audio`, mono at 16 kHz, float32 [samples], in general within -1 to 1.

    audio        the path of a file, its bytes, or an array [samples] or [samples, channels] of
                 floats, or of int8, int16 or int32, whose range becomes -1 to 1. Channels are
                 averaged
    rate         samples a second of an array; None: 16000. Files say it themselves
    max_seconds  audio that lasts longer is refused, as soon as that is seen

    Raises ValueError for bytes that are no audio or end early, and for samples that are not finite;
    OSError for a file that cannot be read; ModuleNotFoundError that names the package that reads
    such files; TypeError for anything else.
    """
    if isinstance(audio, np.ndarray):
        return _of_array(audio, SAMPLE_RATE if rate is None else rate, max_seconds)
    if rate is not None:
        raise ValueError(f"rate is {rate}, expected None beside a file, which says it itself")
    if isinstance(audio, str | os.PathLike):
        with open(audio, "rb") as file:  # noqa: PTH123  (paths of bytes work, too)
            return _of_file(file, f"the file {os.fspath(audio)!r}", max_seconds)
    if isinstance(audio, bytes | bytearray | memoryview):
        what = f"audio of {memoryview(audio).nbytes} bytes"
        return _of_file(io.BytesIO(audio), what, max_seconds)
    raise TypeError(
        f"audio is a {type(audio).__name__}, expected a path, bytes or a NumPy array of samples"
    )


def _check_rate(rate: Any, what: str) -> int:
    known = isinstance(rate, int | np.integer) and not isinstance(rate, bool)
    if not known or not _RATES[0] <= rate <= _RATES[1]:
        raise ValueError(
            f"{what} has a rate of {rate!r:.40} Hz, expected {_RATES[0]} to {_RATES[1]}"
        )
    return int(rate)


def _check_channels(channels: int, what: str, more: str = "") -> None:
    if not 1 <= channels <= _MOST_CHANNELS:
        raise ValueError(f"{what} has {channels} channels, expected 1 to {_MOST_CHANNELS}{more}")


def _of_array(array: npt.NDArray[Any], rate: Any, max_seconds: float) -> Samples:
    rate = _check_rate(rate, "the audio")
    form = array.dtype.str[1:]
    if array.ndim not in (1, 2) or (array.dtype.kind != "f" and form not in _INTEGERS):
        raise ValueError(
            f"the audio is an array of {array.dtype} {list(array.shape)}, expected [samples] or "
            "[samples, channels] of floats, int8, int16 or int32"
        )
    if array.ndim == 2:
        _check_channels(array.shape[1], "the audio", ": an array is [samples, channels]")
    if array.shape[0] > max_seconds * rate:
        raise _too_long("the audio", array.shape[0] / rate, max_seconds)
    with np.errstate(over="ignore"):
        samples = array.astype(np.float32)
    if form in _INTEGERS:
        samples /= np.float32(_INTEGERS[form])
    return _finish([samples], rate, "the audio")


def _finish(blocks: Iterable[npt.NDArray[np.float32]], rate: int, what: str) -> Samples:
    """One channel at the rate of models, of blocks [samples] or [samples, channels]."""
    mono = [
        block if block.ndim == 1 else block.mean(axis=1, dtype=np.float64).astype(np.float32)
        for block in blocks
    ]
    samples = np.ascontiguousarray(np.concatenate(mono) if mono else np.empty(0), np.float32)
    fit = np.abs(samples) <= _LOUDEST  # NaN does not
    if not fit.all():
        place = int(np.flatnonzero(~fit)[0])
        raise ValueError(
            f"{what} has {samples[place]} at sample {place}, expected finite numbers of at most "
            f"{_LOUDEST:g}"
        )
    if rate == SAMPLE_RATE or not samples.size:
        return samples
    try:
        import soxr
    except ImportError:
        from packhorse_weights.extras import missing_package

        raise missing_package("audio", "soxr", "audio of another rate than 16 kHz") from None
    resampled: Samples = soxr.resample(samples, rate, SAMPLE_RATE, quality="HQ")
    return np.ascontiguousarray(resampled, np.float32)


def _check_wav(file: Any, what: str) -> None:
    """Raises ValueError for a WAV file of no channels, or that ends before its samples do: decoders
    take what there is of them."""
    head = file.read(12)
    if head[:4] == b"RIFF" and head[8:] == b"WAVE":
        size, place = file.seek(0, os.SEEK_END), 12
        for _ in range(_MOST_CHUNKS):
            file.seek(place)
            chunk = file.read(24)
            if len(chunk) < 8:
                break
            kind, length = struct.unpack("<4sI", chunk[:8])
            place += 8
            if kind == b"data":
                if size - place < length < _UNKNOWN:
                    raise ValueError(
                        f"{what} ends after {size - place} bytes of samples, its header says "
                        f"{length}"
                    )
                break
            if kind == b"fmt " and len(chunk) == 24:
                channels, rate = struct.unpack("<HI", chunk[10:16])
                _check_channels(channels, what)
                _check_rate(rate, what)
            place += length + length % 2
    file.seek(0)


def _of_file(file: Any, what: str, max_seconds: float) -> Samples:
    _check_wav(file, what)
    try:
        import soundfile
    except ImportError:
        soundfile = None
    if soundfile is not None:
        found = _by_soundfile(soundfile, file, what, max_seconds)
        if found is not None:
            return found
        file.seek(0)
    try:
        import av
    except ImportError:
        if soundfile is not None:
            raise ValueError(
                f"{what} is no audio that soundfile reads (WAV, FLAC, Ogg, MP3); other files need "
                "the package av"
            ) from None
        from packhorse_weights.extras import missing_package

        raise missing_package("audio", "soundfile", "files of audio") from None
    return _by_av(av, file, what, max_seconds)


def _by_soundfile(module: Any, file: Any, what: str, max_seconds: float) -> Samples | None:
    """None: it is no file that soundfile knows."""
    try:
        reader = module.SoundFile(file)
    except (module.LibsndfileError, RuntimeError, TypeError, ValueError):
        return None
    with reader:
        rate = _check_rate(reader.samplerate, what)
        _check_channels(reader.channels, what)
        blocks: list[npt.NDArray[np.float32]] = []
        claimed, read = int(reader.frames), 0
        # The number that a header claims is believed when so many samples were read.
        try:
            while (block := reader.read(_BLOCK, dtype="float32", always_2d=True)).size:
                blocks.append(block)
                read += block.shape[0]
                if read > max_seconds * rate:
                    raise _too_long(what, read / rate, max_seconds)
        except (module.LibsndfileError, RuntimeError) as error:
            raise ValueError(f"{what} is broken after {read} samples: {error}") from None
    if 0 < claimed < 1 << 62 and read < claimed:
        raise ValueError(f"{what} ends after {read} samples, its header says {claimed}")
    return _finish(blocks, rate, what)


def _by_av(module: Any, file: Any, what: str, max_seconds: float) -> Samples:
    blocks: list[npt.NDArray[np.float32]] = []
    read = 0
    try:
        with module.open(file, mode="r", metadata_errors="ignore") as container:
            if not container.streams.audio:
                raise ValueError(f"{what} has no audio")
            # Channels stay apart: FFmpeg's own mixture of floats is louder than their mean.
            resampler = module.AudioResampler(format="fltp", rate=SAMPLE_RATE)
            for frame in chain(container.decode(audio=0), (None,)):
                for one in resampler.resample(frame):
                    block = one.to_ndarray().T
                    _check_channels(block.shape[1], what)
                    blocks.append(block)
                    read += block.shape[0]
                if read > max_seconds * SAMPLE_RATE:
                    raise _too_long(what, read / SAMPLE_RATE, max_seconds)
    except module.FFmpegError as error:
        raise ValueError(f"{what} is no audio that can be read: {error}") from None
    return _finish(blocks, SAMPLE_RATE, what)


def _too_long(what: str, seconds: float, max_seconds: float) -> ValueError:
    return ValueError(
        f"{what} has {seconds:.0f} seconds or more, which is beyond max_seconds = {max_seconds:g}"
    )
