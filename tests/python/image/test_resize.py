"""Resized images against Pillow itself, and against both rules in NumPy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import packhorse
import pytest
from PIL import Image
from reference_image import FILTERS, TORCHVISION, Bytes, resized

pytestmark = pytest.mark.skipif(
    "cpu" not in packhorse.available_devices(), reason="for the CPU backend"
)
if "cpu" in packhorse.available_devices():
    from packhorse.image import resize

NUMBERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
CHANNELS = {"L": 1, "RGB": 3, "YCbCr": 3, "HSV": 3, "RGBX": 4, "RGBa": 4, "CMYK": 4}


def draw_size(rng: random.Random) -> tuple[int, int]:
    height, width = (rng.randint(1, rng.choice([6, 40, 40, 150])) for _ in range(2))
    return height, width


def draw_image(rng: random.Random, height: int, width: int, channels: int) -> Bytes:
    """Any bytes, or only the smallest and the largest, which filters overshoot most."""
    numbers = np.random.default_rng(rng.randint(0, 1 << 30))
    image = numbers.integers(0, 256, (height, width, channels), np.uint8)
    return image if rng.random() < 0.7 else (image >> 7) * np.uint8(255)


@pytest.mark.parametrize("part", range(4))
def test_2000_images_are_those_of_pillow(part: int) -> None:
    rng = random.Random(part)
    for _ in range(500):
        height, width = draw_size(rng)
        to = draw_size(rng)
        mode = rng.choice(list(CHANNELS))
        name = rng.choice(list(NUMBERS))
        image = draw_image(rng, height, width, CHANNELS[mode])
        theirs = Image.frombytes(mode, (width, height), image.tobytes())
        expected = theirs.resize((to[1], to[0]), NUMBERS[name])
        ours = resize(rng.choice([image, theirs]), to, name, backend="pil", threads=1)
        what = f"{mode} {height} x {width} to {to[0]} x {to[1]}, {name}"
        assert ours.tobytes() == expected.tobytes(), what


@pytest.mark.parametrize("backend", ["pil", "torchvision"])
def test_images_follow_the_rule(backend: str) -> None:
    rng = random.Random(9)
    filters = list(TORCHVISION) if backend == "torchvision" else list(NUMBERS)
    for _ in range(400):
        height, width = draw_size(rng)
        to = rng.choice([draw_size(rng), (height, rng.randint(1, 50)), (rng.randint(1, 50), width)])
        image = draw_image(rng, height, width, rng.randint(1, 4))
        name = rng.choice(filters)
        ours = resize(image, to, name, backend=backend, threads=1)
        expected = resized(image, to, name, backend)
        what = f"{image.shape} to {to[0]} x {to[1]}, {name}"
        np.testing.assert_array_equal(ours, expected, err_msg=what)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize(
    ("shape", "to"),
    [
        ((1, 1), (7, 300)),
        ((1, 5000), (1, 3)),
        ((5000, 1), (3, 1)),  # the vertical pass comes first
        ((2500, 9), (40, 30)),
        ((700, 900), (699, 31)),
        ((3, 2), (1, 1)),
    ],
)
def test_ends_of_sizes(name: str, shape: tuple[int, int], to: tuple[int, int]) -> None:
    image = draw_image(random.Random(1), *shape, channels=3)
    expected = Image.fromarray(image).resize((to[1], to[0]), NUMBERS[name])
    np.testing.assert_array_equal(resize(image, to, name, backend="pil"), np.asarray(expected))
    if name in TORCHVISION:
        ours = resize(image, to, name, backend="torchvision")
        np.testing.assert_array_equal(ours, resized(image, to, name, "torchvision"))


@pytest.mark.parametrize("backend", ["pil", "torchvision"])
@pytest.mark.parametrize("shape", [(1600, 1400), (2600, 300)])
def test_threads_and_memory_of_pillow_change_no_bit(backend: str, shape: tuple[int, int]) -> None:
    """Large images of Pillow lie in several blocks, and are cut into bands for threads."""
    image = draw_image(random.Random(2), *shape, channels=3)
    alone = resize(image, (500, 333), "bicubic", backend=backend, threads=1)
    np.testing.assert_array_equal(
        resize(image, (500, 333), "bicubic", backend=backend, threads=3), alone
    )
    block = Image.core.get_block_size()
    Image.core.set_block_size(1 << 20)
    try:
        theirs = Image.frombytes("RGB", (shape[1], shape[0]), image.tobytes())
    finally:
        Image.core.set_block_size(block)
    with pytest.raises(ValueError, match="contiguous"):
        theirs.__arrow_c_array__()
    np.testing.assert_array_equal(resize(theirs, (500, 333), "bicubic", backend=backend), alone)


@pytest.mark.parametrize(
    ("image", "changes", "message"),
    [
        (np.zeros((4, 4, 3), np.float32), {}, "array of float32"),
        (np.zeros((4, 4, 5), np.uint8), {}, "pixels of 5 bytes"),
        (np.zeros((4,), np.uint8), {}, r"uint8 \[4\]"),
        (np.zeros((0, 4, 3), np.uint8), {}, "height of an image is 0"),
        (np.zeros((4, 0, 3), np.uint8), {}, "width of an image is 0"),
        (np.zeros((4, 4, 3), np.uint8), {"size": (0, 4)}, "height that is asked for is 0"),
        (np.zeros((4, 4, 3), np.uint8), {"size": (4, 1 << 21)}, "width that is asked for"),
        (np.zeros((4, 4, 3), np.uint8), {"resample": "cubic"}, "resample is 'cubic'"),
        (np.zeros((4, 4, 3), np.uint8), {"backend": "opencv"}, "backend is 'opencv'"),
        (np.zeros((4, 4, 3), np.uint8), {"resample": "box"}, "no filters box"),
        (Image.new("I", (4, 4)), {}, "mode I"),
        ("a.png", {}, "mode str"),
    ],
)
def test_what_cannot_be_resized(image: Any, changes: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"size": (2, 3), "resample": "bicubic", **changes}
    with pytest.raises(ValueError, match=message):
        resize(image, **options)
