"""Image files that attack their reader: each is refused with its message, or read."""

from __future__ import annotations

import io
import resource
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from packhorse.image import decode
from PIL import Image


def saved(image: Any, name: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, name, **options)
    return file.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def png(width: int, height: int, data: bytes, colour: int = 2, *more: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            *more,
            chunk(b"IDAT", data),
            chunk(b"IEND", b""),
        ]
    )


_NUMBERS = np.random.default_rng(0).integers(0, 255, (9, 7, 3), np.uint8)
_IMAGE = Image.fromarray(_NUMBERS)
_EXIF = Image.Exif()
_EXIF[0x0112] = 6
FILES = {
    "jpeg": saved(_IMAGE, "JPEG", exif=_EXIF),
    "progressive": saved(_IMAGE, "JPEG", progressive=True),
    "cmyk": saved(_IMAGE.convert("CMYK"), "JPEG"),
    "grey": saved(_IMAGE.convert("L"), "JPEG"),
    "png": saved(_IMAGE, "PNG"),
    "palette": saved(_IMAGE.quantize(5), "PNG", transparency=1),
    "alpha": saved(_IMAGE.convert("RGBA"), "PNG"),
    "16 bits": saved(Image.fromarray(_NUMBERS[..., 0].astype(np.uint16) * 200), "PNG"),
    "animation": saved(_IMAGE, "PNG", save_all=True, append_images=[_IMAGE.rotate(90)]),
    "webp": saved(_IMAGE, "WEBP"),
    "lossless": saved(_IMAGE.convert("RGBA"), "WEBP", lossless=True),
}


def read(data: bytes) -> bool:
    try:
        pixels = np.asarray(decode(data, max_pixels=1 << 16))
    except ValueError:
        return False
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    return True


@pytest.mark.filterwarnings("ignore")  # Pillow warns of odd EXIF data and palettes
@pytest.mark.parametrize("name", FILES)
def test_files_that_end_early_or_lie(name: str) -> None:
    data = FILES[name]
    assert read(data)
    refused = sum(not read(data[:end]) for end in range(0, len(data), max(1, len(data) // 100)))
    assert refused > 50
    rng = np.random.default_rng(len(data))
    for _ in range(100):
        wrong = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 6)):
            wrong[place] = rng.choice([0, 1, 127, 128, 255, rng.integers(256)])
        read(bytes(wrong))


def test_bombs_are_refused_before_they_take_memory() -> None:
    zeros = zlib.compress(bytes(1 << 20), 9)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for width, height in (
        (100_000, 100_000),
        (1 << 20, 65),
        (30_000, 5_000),
        (2**31 - 1, 2**31 - 1),
    ):
        with pytest.raises(ValueError, match="pixels"):
            decode(png(width, height, zeros))
    data = bytearray(saved(Image.new("RGB", (64, 64)), "JPEG"))
    place = data.index(b"\xff\xc0") + 5
    data[place : place + 4] = struct.pack(">HH", 65500, 65500)
    with pytest.raises(ValueError, match="pixels"):
        decode(bytes(data))
    text = chunk(b"zTXt", b"key\0\0" + zlib.compress(bytes(200 << 20), 9))
    with pytest.raises(ValueError, match="no JPEG, PNG or WebP"):
        decode(png(1, 1, zlib.compress(bytes(4)), 2, text))
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert used < 250 << 10  # KiB; the last file's text alone, in memory here, is most of it


def test_data_that_does_not_fit_the_size() -> None:
    with pytest.raises(ValueError, match="broken"):
        decode(png(50, 50, zlib.compress(bytes(100))))
    more = np.asarray(decode(png(2, 1, zlib.compress(bytes(10_000)))))
    assert more.shape == (1, 2, 3)
    for width, height in ((0, 5), (5, 0)):
        with pytest.raises(ValueError, match="no JPEG, PNG|expected some"):
            decode(png(width, height, zlib.compress(bytes(10))))


@pytest.mark.parametrize(
    "wrong", [b"", b"\xff\xd8\xff", b"RIFF\x04\0\0\0WEBP", b"\x89PNG\r\n\x1a\n"]
)
def test_signatures_alone(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="no JPEG, PNG or WebP|broken"):
        decode(wrong)


def test_other_formats_of_pillow_are_never_opened() -> None:
    for name in ("GIF", "TIFF", "BMP", "PPM", "TGA", "ICO", "PDF", "EPS"):
        with pytest.raises(ValueError, match="no JPEG, PNG or WebP"):
            decode(saved(_IMAGE, name))
