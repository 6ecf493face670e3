"""Pixel values and patches, against transformers' digests and against NumPy."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from image_cases import CONFIGS, FLEXIBLE, SIDES, SIZES, TILES, image
from PIL import Image
from reference_image import resized

pytestmark = pytest.mark.skipif(
    "cpu" not in packhorse.available_devices(), reason="for the CPU backend"
)
if "cpu" in packhorse.available_devices():
    from packhorse._native import image as native
    from packhorse.image import ImageProcessor, ImageSettings, PatchLimit
    from packhorse.image.tiles import TileSettings

ROOM = Path(__file__).parents[2] / "golden/images"
GOLDEN = json.loads((ROOM / "pixel_values.json").read_text(encoding="utf-8"))
GOLDEN_TILES = json.loads((ROOM / "tiles.json").read_text(encoding="utf-8"))
GOLDEN_PATCHES = json.loads((ROOM / "flexible_patches.json").read_text(encoding="utf-8"))
BACKENDS = ["torchvision", "pil"]


def png(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG", **options)
    return file.getvalue()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_pixel_values_are_those_of_transformers(name: str, backend: Any) -> None:
    processor = ImageProcessor(ImageSettings.from_config(CONFIGS[name]), backend=backend)
    for number, recorded in enumerate(GOLDEN[f"{name}, {backend}"]):
        height, width, digest = recorded.split()
        for source in (image(number), Image.fromarray(image(number)), png(image(number))):
            made = processor(source)
            assert made.shape == (1, 3, int(height), int(width))
            assert made.dtype == np.float32
            assert hashlib.sha256(made.tobytes()).hexdigest().startswith(digest)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FLEXIBLE)
def test_patches_of_any_grid_are_those_of_transformers(name: str, backend: Any) -> None:
    """All patches of all images at once, without the padding of transformers, whose patches have
    their channels last."""
    settings = ImageSettings.from_config(FLEXIBLE[name])
    assert isinstance(settings.resize, PatchLimit)
    size = settings.resize.patch_size
    processor = ImageProcessor(settings, backend=backend, threads=2)
    made = processor.patches([image(number) for number in range(len(SIZES))], size)
    for number, recorded in enumerate(GOLDEN_PATCHES[f"{name}, {backend}"]):
        rows, columns, digest = recorded.split()
        assert made.grids[number].tolist() == [int(rows), int(columns)]
        found = made.features[made.cu_seqlens[number] : made.cu_seqlens[number + 1]]
        last = found.reshape(-1, 3, size * size).transpose(0, 2, 1).tobytes()
        assert hashlib.sha256(last).hexdigest().startswith(digest)
    assert made.cu_seqlens[-1] == len(made.features)
    with pytest.raises(ValueError, match=f"patch_size is 7, but .* {size} x {size} pixels"):
        processor.patches([image(0)], 7)


def test_sizes_of_flexible_patches() -> None:
    pairs = [(height, width) for height in SIDES for width in SIDES]
    limit = PatchLimit(16, 64)
    assert [[*limit.size(*pair)] for pair in pairs] == GOLDEN_PATCHES["sizes"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TILES)
def test_tiles_are_those_of_transformers(name: str, backend: Any) -> None:
    settings = TileSettings.from_config(
        {"image_processor_type": "Idefics3ImageProcessorFast", **TILES[name]}
    )
    processor = ImageProcessor(settings.values, backend=backend)
    for number, recorded in enumerate(GOLDEN_TILES[f"{name}, {backend}"]):
        rows, columns, digest = recorded.split()
        for source in (image(number), Image.fromarray(image(number))):
            tiles, grid = settings.cut(source, backend, 1)
            assert grid == (int(rows), int(columns))
            assert len(tiles) == grid[0] * grid[1] + 1
            made = processor(list(tiles)).tobytes()
            assert hashlib.sha256(made).hexdigest().startswith(digest)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_processor_type": "SiglipImageProcessor"}, "expected Idefics3ImageProcessor"),
        ({"max_image_size": {"height": 5}}, "max_image_size is .*expected a longest_edge"),
        ({"size": {"longest_edge": 0}}, "size is .*expected a longest_edge over 0"),
        ({"size": 7}, "size is 7"),
        ({"resample": 77}, "resample is 77"),
    ],
)
def test_settings_of_tiles_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TileSettings.from_config({"image_processor_type": "Idefics3ImageProcessor", **changes})


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_image_and_many(backend: Any) -> None:
    """Results have the same bits alone, together, in any order, with any number of threads."""
    settings = ImageSettings.from_config(CONFIGS["clip"])
    images = [image(number) for number in range(len(SIZES))]
    alone = [ImageProcessor(settings, backend=backend, threads=1)(one)[0] for one in images]
    for threads in (0, 1, 2, 3):
        processor = ImageProcessor(settings, backend=backend, threads=threads)
        np.testing.assert_array_equal(processor(images), alone)
        np.testing.assert_array_equal(processor(images[::-1]), alone[::-1])
    assert processor([]).shape == (0, 3, 224, 224)


@pytest.mark.parametrize("backend", BACKENDS)
def test_patches_are_packed_as_conv2d_reads_them(backend: Any) -> None:
    settings = ImageSettings(resize=40, crop=None, resample="bicubic")
    processor = ImageProcessor(settings, backend=backend)
    sources = [image(number) for number in range(len(SIZES))]
    found = processor.patches(sources, (8, 12))
    assert found.features.shape[1] == 3 * 8 * 12
    for number, source in enumerate(sources):
        made = resized(source, settings.resized(*source.shape[:2]), "bicubic", backend)
        rows, columns = made.shape[0] // 8, made.shape[1] // 12
        assert found.grids[number].tolist() == [rows, columns]
        numbers = settings.values(backend)
        planes = np.stack([numbers[c][made[: rows * 8, : columns * 12, c]] for c in range(3)])
        expected = planes.reshape(3, rows, 8, columns, 12).transpose(1, 3, 0, 2, 4)
        begin, end = found.cu_seqlens[number : number + 2]
        np.testing.assert_array_equal(
            found.features[begin:end], expected.reshape(rows * columns, -1)
        )
    assert found.cu_seqlens[-1] == len(found.features)
    empty = processor.patches([], 8)
    assert empty.features.shape == (0, 192)
    assert empty.cu_seqlens.tolist() == [0]
    assert empty.grids.shape == (0, 2)


def test_an_image_smaller_than_a_patch_has_none() -> None:
    processor = ImageProcessor(ImageSettings(resize=None))
    found = processor.patches([np.zeros((3, 9, 3), np.uint8), np.zeros((4, 9, 3), np.uint8)], 4)
    assert found.cu_seqlens.tolist() == [0, 0, 2]
    assert found.grids.tolist() == [[0, 2], [1, 2]]


def test_padding_adds_zeros_below_and_to_the_right() -> None:
    settings = ImageSettings(resize=(5, 6), pad=(7, 9))
    source = image(0)
    found = ImageProcessor(settings)(source)[0]
    expected = ImageProcessor(ImageSettings(resize=(5, 6)))(source)[0]
    np.testing.assert_array_equal(found[:, :5, :6], expected)
    assert (found[:, 5:] == 0).all()
    assert (found[:, :, 6:] == 0).all()
    with pytest.raises(ValueError, match="5 x 6 pixels, more than the 5 x 5"):
        ImageProcessor(ImageSettings(resize=(5, 6), pad=(5, 5)))(source)


def test_files_of_transformers(tmp_path: Path) -> None:
    config = CONFIGS["dinov2"]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    settings = ImageProcessor.from_folder(tmp_path, threads=1).settings
    assert settings == ImageSettings.from_config(config)
    (tmp_path / "preprocessor_config.json").unlink()
    nested = {"image_processor": config, "processor_class": "CLIPProcessor"}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    assert ImageSettings.from_folder(tmp_path) == settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_processor_type": "Qwen2VLImageProcessor"}, "Qwen2VLImageProcessor, expected"),
        ({"image_processor_type": None}, "the image processor is None"),
        ({"do_thumbnail": True}, "do_thumbnail"),
        ({"do_pad": True}, "pad_size"),
        ({"size": {"longest_edge": 5}}, "size is {'longest_edge': 5}"),
        ({"size": {"height": 0, "width": 5}}, "over 0"),
        ({"size": "large"}, "size is 'large'"),
        ({"do_center_crop": True, "crop_size": {"shortest_edge": 5}}, "crop_size"),
        ({"resample": 9}, "resample is 9"),
        ({"image_mean": [0.5]}, "mean has 1 numbers"),
        ({"image_std": "half"}, "image_std is 'half'"),
        ({"image_std": [0.5, 0, 0.5]}, "image_std is .*other than 0"),
        ({"image_mean": [0.5, None, 0.5]}, "image_mean is .*expected 3 numbers"),
        ({"image_mean": [float("nan")] * 3}, "image_mean is .*expected 3 numbers"),
        ({"image_mean": 10**400}, "image_mean is 1000"),
        ({"rescale_factor": [1]}, "rescale_factor is \\[1\\], expected a number other than 0"),
        ({"rescale_factor": 0}, "rescale_factor is 0, expected a number other than 0"),
        ({"rescale_factor": float("inf")}, "rescale_factor is inf"),
        ({"size": {"shortest_edge": 10**400}}, "size is .*at most 16384"),
        ({"do_pad": True, "pad_size": {"height": 1 << 20, "width": 5}}, "pad_size is"),
    ],
)
def test_settings_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageSettings.from_config({**CONFIGS["vit"], **changes})


@pytest.mark.parametrize("field", ["patch_size", "max_num_patches"])
@pytest.mark.parametrize("value", [0, -3, 1.5, True, "16", 1 << 40])
def test_limits_of_patches_that_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field.removeprefix('max_num_')}.* is .*number over 0"):
        ImageSettings.from_config({**FLEXIBLE["naflex"], field: value})


@pytest.mark.parametrize("text", ["", "[]", "{", "\udc80", "[" * 100000])
def test_files_that_are_no_settings(text: str, tmp_path: Path) -> None:
    path = tmp_path / "preprocessor_config.json"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match="JSON"):
        ImageSettings.from_folder(tmp_path)


def test_errors_name_the_image_and_leave_the_processor_usable() -> None:
    processor = ImageProcessor(ImageSettings(), threads=2)
    with pytest.raises(ValueError, match="image 1: an image of 3 bytes is no JPEG"):
        processor([image(0), b"abc", image(1)])
    with pytest.raises(ValueError, match="sizes.*patches|use patches"):
        ImageProcessor(ImageSettings(resize=None))([image(0), image(1)])
    with pytest.raises(ValueError, match="patch_size"):
        processor.patches([image(0)], 0)
    assert processor([image(0), image(1)]).shape == (2, 3, 224, 224)
    with pytest.raises(ValueError, match="backend is 'cv2'"):
        ImageProcessor(ImageSettings(), backend="cv2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no filter box"):
        ImageProcessor(ImageSettings(resample="box"))
    with pytest.raises(ValueError, match="threads is -1"):
        ImageProcessor(ImageSettings(), threads=-1)


def test_large_images_alone_have_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bits of one thread. Smaller ones would wait for each other's turns."""
    threads: list[int] = []
    real = native.make_features

    def make_features(*args: Any) -> None:
        threads.append(args[-1])
        real(*args)

    monkeypatch.setattr(native, "make_features", make_features)
    noise = np.random.default_rng(0).integers(0, 256, (2048, 2048, 3), np.uint8)
    for pixels, expected in ((noise, 2), (noise[1:], 1), (noise[:9], 1)):
        found = ImageProcessor(ImageSettings(resize=(50, 60)), threads=2)(pixels)
        alone = ImageProcessor(ImageSettings(resize=(50, 60)), threads=1)(pixels)
        np.testing.assert_array_equal(found, alone)
        assert threads[-2:] == [expected, 1]
    ImageProcessor(ImageSettings(resize=(50, 60)), threads=2)([noise, noise])
    assert threads[-2:] == [1, 1]


def test_any_number_of_threads_may_call() -> None:
    processor = ImageProcessor(ImageSettings(resize=(50, 60)), threads=2)
    images = [image(number) for number in range(len(SIZES))]
    expected = processor(images)
    failed = []

    def call() -> None:
        for _ in range(5):
            if not np.array_equal(processor(images), expected):
                failed.append(1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
