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
from PIL import Image, ImageOps


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


def of_pillow(data: bytes) -> Any:
    """The pixels that Pillow's own functions make of a file, on white."""
    image = Image.open(io.BytesIO(data))
    turned = ImageOps.exif_transpose(image)
    if turned.mode == "I;16":
        turned = Image.fromarray((np.asarray(turned) >> 8).astype(np.uint8))
    if turned.has_transparency_data:
        white = Image.new("RGBA", turned.size, "white")
        turned = Image.alpha_composite(white, turned.convert("RGBA"))
    return np.asarray(turned.convert("RGB"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FILES)
def test_what_is_read_is_what_pillow_reads(name: str) -> None:
    """Files with a wrong byte: each is refused with a message, or gives what Pillow gives."""
    data = FILES[name]
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(150):
        wrong = bytearray(data)
        wrong[rng.integers(len(data))] = rng.integers(256)
        try:
            pixels = np.asarray(decode(bytes(wrong), max_pixels=1 << 16))
        except ValueError:
            continue
        found += 1
        np.testing.assert_array_equal(pixels, of_pillow(bytes(wrong)))
    assert found > 5


def chunks_of(data: bytes) -> dict[bytes, int]:
    """Where the checksum of each kind of chunk of a PNG file lies."""
    places, at = {}, 8
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        at += 12 + length
        places[kind] = at - 4
    return places


def test_checksums_of_png() -> None:
    """A header with a wrong checksum is refused. That of pixels is not read by Pillow, which gives
    them as they are."""
    data = FILES["png"]
    for kind, place in chunks_of(data).items():
        wrong = bytearray(data)
        wrong[place] ^= 1
        if kind == b"IHDR":
            with pytest.raises(ValueError, match="no JPEG, PNG or WebP image that can be read"):
                decode(bytes(wrong))
        else:
            np.testing.assert_array_equal(np.asarray(decode(bytes(wrong))), _NUMBERS)


def largest(kind: str, width: int, height: int) -> bytes:
    """A file of this size by its header, with the data of a small one."""
    if kind == "png":
        return png(width, height, zlib.compress(bytes(100)))
    if kind == "jpeg":
        data = bytearray(saved(_IMAGE, "JPEG"))
        place = data.index(b"\xff\xc0") + 5
        data[place : place + 4] = struct.pack(">HH", height, width)
        return bytes(data)
    frames = [_IMAGE, _IMAGE.rotate(90)]
    data = bytearray(saved(frames[0], "WEBP", save_all=True, append_images=frames[1:]))
    place = data.index(b"VP8X") + 12
    for i, side in enumerate((width, height)):
        data[place + 3 * i : place + 3 * i + 3] = struct.pack("<I", side - 1)[:3]
    return bytes(data)


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp"])
def test_largest_headers(kind: str) -> None:
    for width, height in ((65535, 65535), (65535, 1100), (8193, 8193)):
        with pytest.raises(ValueError, match="pixels"):
            decode(largest(kind, width, height))
    with pytest.raises(ValueError, match="8193 x 8193 pixels, which are more than max_pixels = 67"):
        decode(largest(kind, 8193, 8193))
    larger = largest(kind, 60, 50)
    if kind == "png":
        with pytest.raises(ValueError, match="an image of 69 bytes is broken"):
            decode(larger)
    else:  # libjpeg makes up what is missing, and a canvas may be larger than what is drawn on it
        np.testing.assert_array_equal(np.asarray(decode(larger)), of_pillow(larger))


def test_sizes_of_zero() -> None:
    for width, height in ((0, 7), (9, 0), (0, 0)):
        with pytest.raises(ValueError, match="no JPEG, PNG or WebP|expected some|broken"):
            decode(largest("jpeg", width, height))
    lossless = bytearray(FILES["lossless"])
    place = lossless.index(b"VP8L") + 9  # 14 bits of each side less 1: none can be 0
    lossless[place : place + 3] = b"\xff\xff\xff"
    with pytest.raises(ValueError, match="pixels|broken|no JPEG, PNG or WebP"):
        decode(bytes(lossless))


def test_animations_have_one_image() -> None:
    frames = [Image.new("RGB", (6, 5), colour) for colour in ("red", "blue", "lime")]
    for kind in ("PNG", "WEBP"):
        data = saved(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
        assert (np.asarray(decode(data)) == [255, 0, 0]).all()
        last = data.rindex(b"fdAT" if kind == "PNG" else b"ANMF")
        cut = data[: last + 20]
        if kind == "WEBP":  # its size stands at the beginning
            with pytest.raises(ValueError, match="no JPEG, PNG or WebP|broken"):
                decode(cut)
        else:
            assert (np.asarray(decode(cut)) == [255, 0, 0]).all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif_data_that_cannot_be_read_say_nothing(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    plain = np.asarray(decode(saved(_IMAGE, kind, **options)))
    rng = np.random.default_rng(3)
    good = _EXIF.tobytes()
    shapes = set()
    for i in range(60):
        wrong = bytearray(good if i % 2 else rng.integers(0, 256, 40, np.uint8).tobytes())
        for place in rng.integers(6 if i % 2 else 0, len(wrong), 3):
            wrong[place] = rng.integers(256)
        exif = b"Exif\0\0" + bytes(wrong[6:])
        found = np.asarray(decode(saved(_IMAGE, kind, exif=exif, **options)))
        shapes.add(found.shape)
        if found.shape == plain.shape and (found == plain).all():
            continue
        # Whatever orientation was read, the pixels are those of the image.
        assert sorted(found.reshape(-1, 3).tolist()) == sorted(plain.reshape(-1, 3).tolist())
    assert plain.shape in shapes
    whole = np.asarray(decode(saved(_IMAGE, kind, exif=good, **options)))
    np.testing.assert_array_equal(whole, plain[::-1].swapaxes(0, 1))


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
