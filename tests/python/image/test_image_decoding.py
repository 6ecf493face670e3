"""Images from files, bytes and arrays: what Pillow makes of them, upright and RGB."""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packhorse._native import image as native
from packhorse.image import decode
from packhorse.image.file_bytes import count_scans, from_base64
from PIL import Image

SHAPE = (12, 17)


def gradient(channels: int) -> Any:
    rows, columns = np.mgrid[: SHAPE[0], : SHAPE[1]]
    planes = [rows * 20, columns * 15, (rows + columns) * 9, rows * 10 + columns * 8]
    return np.stack(planes[:channels], -1).astype(np.uint8)


def saved(image: Image.Image, name: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, name, **options)
    return file.getvalue()


def pixels(source: Any, **options: Any) -> Any:
    return np.asarray(decode(source, **options))


RGB = Image.fromarray(gradient(3))


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP"])
def test_formats_from_bytes_and_paths(name: str, tmp_path: Path) -> None:
    data = saved(RGB, name)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    path = tmp_path / "image"
    path.write_bytes(data)
    for source in (data, bytearray(data), memoryview(data), path, str(path)):
        np.testing.assert_array_equal(pixels(source), expected)
    np.testing.assert_array_equal(pixels(Image.open(path)), expected)


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_upright(name: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(RGB, name, exif=exif, lossless=True)
    plain = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    turned = {  # by the Exif standard: where row 0 and column 0 are
        1: plain,
        2: plain[:, ::-1],
        3: plain[::-1, ::-1],
        4: plain[::-1],
        5: plain.swapaxes(0, 1),
        6: plain[::-1].swapaxes(0, 1),
        7: plain[::-1, ::-1].swapaxes(0, 1),
        8: plain[:, ::-1].swapaxes(0, 1),
    }
    np.testing.assert_array_equal(pixels(data), turned[orientation])


def test_transparency_becomes_white() -> None:
    image = gradient(4)
    image[:4, :, 3] = 0
    image[4:6, :, 3] = 255
    for source in (image, Image.fromarray(image), saved(Image.fromarray(image), "PNG")):
        found = pixels(source)
        assert (found[:4] == 255).all()
        np.testing.assert_array_equal(found[4:6], image[4:6, :, :3])
        share = image[..., 3:] / 255
        np.testing.assert_allclose(found, image[..., :3] * share + 255 * (1 - share), atol=1)


def test_a_transparent_colour_of_a_palette_becomes_white() -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((2, 1), 0)
    data = saved(image, "PNG", transparency=0)
    found = pixels(data)
    assert found[1, 2].tolist() == [255, 255, 255]
    assert found[0, 0].tolist() == [40, 50, 60]


def test_grey_palette_cmyk_and_black_and_white() -> None:
    grey = gradient(1)
    for source in (
        grey,
        grey[..., 0],
        Image.fromarray(grey[..., 0]),
        saved(RGB.convert("L"), "PNG"),
    ):
        found = pixels(source)
        assert (found == found[..., :1]).all()
    np.testing.assert_array_equal(pixels(grey), np.repeat(grey, 3, 2))
    palette = RGB.quantize(8)
    np.testing.assert_array_equal(pixels(palette), np.asarray(palette.convert("RGB")))
    cmyk = saved(RGB.convert("CMYK"), "JPEG")
    np.testing.assert_array_equal(
        pixels(cmyk), np.asarray(Image.open(io.BytesIO(cmyk)).convert("RGB"))
    )
    bits = RGB.convert("1")
    np.testing.assert_array_equal(pixels(saved(bits, "PNG")), np.asarray(bits.convert("RGB")))


def test_16_bits_lose_their_lower_8() -> None:
    wide = (np.arange(SHAPE[0] * SHAPE[1], dtype=np.uint16) * 321).reshape(SHAPE)
    expected = np.repeat((wide >> 8).astype(np.uint8)[..., None], 3, 2)
    for source in (wide, Image.fromarray(wide), saved(Image.fromarray(wide), "PNG")):
        np.testing.assert_array_equal(pixels(source), expected)


def test_the_first_image_of_an_animation() -> None:
    frames = [Image.new("RGB", (6, 5), colour) for colour in ("red", "blue")]
    for name in ("PNG", "WEBP"):
        data = saved(frames[0], name, save_all=True, append_images=frames[1:], lossless=True)
        assert pixels(data)[0, 0].tolist() == [255, 0, 0]


def test_the_limit_of_pixels() -> None:
    data = saved(RGB, "PNG")
    count = SHAPE[0] * SHAPE[1]
    assert pixels(data, max_pixels=count).shape == (*SHAPE, 3)
    for source in (data, gradient(3), Image.open(io.BytesIO(data))):
        with pytest.raises(ValueError, match=f"17 x 12 pixels.*max_pixels = {count - 1}"):
            decode(source, max_pixels=count - 1)


def test_nothing_is_decoded_beyond_the_limit() -> None:
    """The data is cut off, which only decoding would find."""
    data = saved(Image.new("RGB", (5000, 5000)), "JPEG")[:700]
    with pytest.raises(ValueError, match="5000 x 5000"):
        decode(data, max_pixels=1000)
    with pytest.raises(ValueError, match="broken"):
        decode(data)


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        (b"", ValueError, "0 bytes is no JPEG, PNG or WebP"),
        (b"GIF89a" + bytes(40), ValueError, "46 bytes is no JPEG"),
        (saved(RGB, "GIF"), ValueError, "no JPEG, PNG or WebP"),
        (saved(RGB, "TIFF"), ValueError, "no JPEG, PNG or WebP"),
        ("/no/such/file.png", FileNotFoundError, "no/such"),
        (7, TypeError, "int, expected a path"),
        (np.zeros((2, 2, 3), np.float32), ValueError, r"float32 \[2, 2, 3\]"),
        (np.zeros((2, 2, 2), np.uint8), ValueError, r"uint8 \[2, 2, 2\]"),
        (np.zeros((2, 2, 3), np.uint16), ValueError, r"uint16 \[2, 2, 3\]"),
        (np.zeros((0, 2, 3), np.uint8), ValueError, "empty sides"),
        (np.zeros((3,), np.uint8), ValueError, r"uint8 \[3\]"),
        (Image.new("F", (2, 2)), ValueError, "mode F"),
        (Image.new("RGB", (0, 2)), ValueError, "0 x 2 pixels"),
    ],
)
def test_what_is_no_image(source: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        decode(source)


def test_base64_is_what_python_makes_of_it() -> None:
    random = np.random.default_rng(0)
    for size in (*range(12), 1000, 65_537):
        data = random.bytes(size)
        text = base64.b64encode(data).decode()
        assert from_base64(text) == data
        assert from_base64("data:,ä"[:6] + text, 6) == data
        assert count_scans(data) == data.count(b"\xff\xda")
    assert count_scans(b"\xff\xda\xff\xff\xda\xda\xff") == 2
    assert [count_scans(data) for data in (b"", b"\xff", b"\xda", b"\xff\xda")] == [0, 0, 0, 1]


def test_what_is_no_base64() -> None:
    """Every character but one of the alphabet at every place, and padding where there is none."""
    alphabet = base64.b64encode(bytes(range(256))).decode()
    for place in range(8):
        for character in map(chr, [*range(256), 0x101, 0xD800]):
            text = "QUJDREVG"[:place] + character + "QUJDREVG"[place + 1 :]
            right = character in alphabet[:-2] or (character, place) == ("=", 7)
            assert (from_base64(text) is not None) == right, (place, character)
    for text in (
        "=",
        "==",
        "A",
        "AA",
        "AAA",
        "A===",
        "====",
        "AA=A",
        "AAAA=",
        "AA==AAAA",
        "QUI="[::-1],
    ):
        assert from_base64(text) is None, text


def test_pillow_uses_memory_that_is_lent() -> None:
    """An image of Pillow reads and writes an array, which lives as long as the image."""
    memory = np.arange(3 * 5 * 4, dtype=np.uint8).reshape(3, 5, 4)
    held = sys.getrefcount(memory)
    native.lend_pixels(memory, 15)  # nobody takes it
    assert sys.getrefcount(memory) == held
    core: Any = Image.core
    made: Any = core.new_arrow("RGB", (5, 3), *native.lend_pixels(memory, 15))
    assert sys.getrefcount(memory) == held + 1
    assert made.getpixel((4, 2)) == (56, 57, 58)
    made.putpixel((0, 1), (7, 8, 9))
    assert memory[1, 0].tolist()[:3] == [7, 8, 9]
    del made
    assert sys.getrefcount(memory) == held
    with pytest.raises(ValueError, match="an image has 60 bytes, expected 56"):
        native.lend_pixels(memory, 14)


def test_files_are_decoded_into_memory_that_is_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of colours alone, and never a file that somebody else has opened."""
    lent: list[Any] = []
    real = native.lend_pixels

    def lend(memory: Any, pixels: int) -> Any:
        lent.append(memory)
        return real(memory, pixels)

    monkeypatch.setattr(native, "lend_pixels", lend)
    data = saved(RGB, "JPEG")
    expected = np.asarray(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(pixels(data), expected)
    np.testing.assert_array_equal(lent.pop()[..., :3], expected)
    decode(saved(RGB.convert("L"), "JPEG"))
    decode(Image.open(io.BytesIO(data)))
    monkeypatch.setattr(Image, "__version__", "12.3.0")  # which would crash later on
    np.testing.assert_array_equal(pixels(data), expected)
    assert lent == []
