"""Settings of image processors, read from a checkpoint's preprocessor_config.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Backend = Literal["torchvision", "pil"]
Size = tuple[int, int]

_STANDARD = (0.5, 0.5, 0.5)
_OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)
_OPENAI_STD = (0.26862954, 0.26130258, 0.27577711)
_BICUBIC, _BILINEAR = 3, 2
_MOST_SIDE = 1 << 14  # pixels of what an image becomes
_LARGEST = 1e9  # number that pixels are multiplied by, or brought to
# Resample numbers are Pillow's.
_RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}

_COMMON = {
    "do_resize": True,
    "do_center_crop": False,
    "do_rescale": True,
    "do_normalize": True,
    "do_pad": False,
    "pad_size": None,
    "resample": _BICUBIC,
    "rescale_factor": 1 / 255,
    "image_mean": _STANDARD,
    "image_std": _STANDARD,
    "size": {"height": 224, "width": 224},
    "crop_size": {"height": 224, "width": 224},
    "default_to_square": True,
}
_CLIP = {
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "image_mean": _OPENAI_MEAN,
    "image_std": _OPENAI_STD,
    "default_to_square": False,
}
# Defaults of the image processors of transformers 5, by name without its endings. DINOv2 names Bit.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": {"resample": _BILINEAR},
    "DeiT": {"size": {"height": 256, "width": 256}, "do_center_crop": True},
    "Beit": {},
    "Bit": _CLIP,
    "CLIP": _CLIP,
    "ChineseCLIP": _CLIP,
    "Siglip": {"default_to_square": False},
    "Siglip2": {"resample": _BILINEAR, "size": None, "patch_size": 16, "max_num_patches": 256},
}
_ENDINGS = ("Fast", "Pil", "ImageProcessor", "FeatureExtractor")
# Switches that change no pixel value here: images are always made RGB, and labels are not read.
_EFFECTLESS = ("do_convert_rgb", "do_reduce_labels")


@dataclass(frozen=True)
class PatchLimit:
    """A size in whole patches, as near to the image's proportions as that allows and as large as
    `max_patches` patches of `patch_size` x `patch_size` pixels allow: how SigLIP 2 NaFlex
    (Tschannen et al., arXiv 2502.14786) resizes, small images too."""

    patch_size: int
    max_patches: int

    def __post_init__(self) -> None:
        for name in ("patch_size", "max_patches"):
            value = getattr(self, name)
            if type(value) is not int or not 0 < value <= 1 << 16:
                raise ValueError(f"{name} is {value!r:.80}, expected a number over 0")

    def size(self, height: int, width: int) -> Size:
        """The size that an image becomes. Scales are halved as transformers does: a size changes
        where a side is a whole number of patches, so the last digits count."""

        def at(scale: float) -> Size:
            rows, columns = (
                max(1, math.ceil(side * scale / self.patch_size)) for side in (height, width)
            )
            return rows, columns

        low, high = 1e-6, 100.0
        while high - low >= 1e-5:
            middle = (low + high) / 2
            rows, columns = at(middle)
            if rows * columns <= self.max_patches:
                low = middle
            else:
                high = middle
        rows, columns = at(low)
        return rows * self.patch_size, columns * self.patch_size


@dataclass(frozen=True)
class ImageSettings:
    """Steps that an upright RGB image goes through, in this order. Sizes are (height, width).

    `resize`: a size; an int, which the shorter side becomes; a `PatchLimit`; or None. `crop`: the
    size of the centre that is cut out; where the image is smaller, black is added around it.
    `rescale`, `mean` and `std`: numbers are (byte * rescale - mean) / std; any may be None. `pad`:
    the size to which numbers of 0 are added below and to the right.
    """

    resize: Size | int | PatchLimit | None = (224, 224)
    resample: str = "bicubic"
    crop: Size | None = None
    rescale: float | None = 1 / 255
    mean: tuple[float, ...] | None = _STANDARD
    std: tuple[float, ...] | None = _STANDARD
    pad: Size | None = None

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std are given both or neither")
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if numbers is not None and len(numbers) != 3:
                raise ValueError(f"{name} has {len(numbers)} numbers, expected 3, for RGB")

    @classmethod
    def from_folder(cls, folder: str | Path) -> ImageSettings:
        """Reads the preprocessor_config.json of a folder, or the part of its processor_config.json
        that is about images. Raises ValueError for what is not supported."""
        path = Path(folder) / "preprocessor_config.json"
        nested = Path(folder) / "processor_config.json"
        if not path.exists() and nested.exists():
            config = _read(nested).get("image_processor")
            if not isinstance(config, dict):
                raise ValueError(f"{nested} has no settings of an image_processor")
            return cls.from_config(config)
        return cls.from_config(_read(path))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ImageSettings:
        """Takes the fields of a preprocessor_config.json; those that are missing or null are as in
        transformers 5. Raises ValueError for what is not supported."""
        name = _family(config)
        given = {key: value for key, value in config.items() if value is not None}
        fields = {**_COMMON, **_DEFAULTS[name], **given}
        known = (*_COMMON, *_EFFECTLESS)
        unknown = [key for key in given if key.startswith("do_") and key not in known]
        if wrong := [key for key in unknown if given[key]]:
            raise ValueError(f"the image processor asks for {', '.join(wrong)}, not supported")
        crop = fields["crop_size"] if fields["do_center_crop"] else None
        pad = fields["pad_size"] if fields["do_pad"] else None
        if fields["do_pad"] and pad is None:
            raise ValueError("the image processor pads images to the largest of a batch: pad_size")
        return cls(
            resize=_resize(fields) if fields["do_resize"] else None,
            resample=_resample(fields["resample"]),
            crop=None if crop is None else _full_size("crop_size", crop),
            rescale=_number("rescale_factor", fields) if fields["do_rescale"] else None,
            mean=_numbers("image_mean", fields) if fields["do_normalize"] else None,
            std=_numbers("image_std", fields, zero=False) if fields["do_normalize"] else None,
            pad=None if pad is None else _full_size("pad_size", pad),
        )

    @property
    def fixed_size(self) -> Size | None:
        """The size of every result, or None if it depends on the image."""
        if self.pad or self.crop:
            return self.pad or self.crop
        return self.resize if isinstance(self.resize, tuple) else None

    def resized(self, height: int, width: int) -> Size:
        """The size that an image is resized to."""
        if self.resize is None:
            return height, width
        if isinstance(self.resize, tuple):
            return self.resize
        if isinstance(self.resize, PatchLimit):
            return self.resize.size(height, width)
        shorter, longer = sorted((height, width))
        other = int(self.resize * longer / shorter)
        return (self.resize, other) if height <= width else (other, self.resize)

    def values(self, backend: Backend) -> npt.NDArray[np.float32]:
        """The number of each byte, float32 [3, 256], by the operations of transformers 5."""
        byte = np.arange(256, dtype=np.float32)[None, :].repeat(3, axis=0)
        if self.mean is None or self.std is None:
            if self.rescale is None:
                return byte
            if backend == "torchvision":
                return np.multiply(byte, self.rescale, dtype=np.float32)
            return (byte.astype(np.float64) * self.rescale).astype(np.float32)
        mean = np.array(self.mean, np.float32)[:, None]
        std = np.array(self.std, np.float32)[:, None]
        if self.rescale is not None:
            if backend == "torchvision":  # it brings mean and std to the scale of bytes
                mean, std = (x * np.float32(1.0 / self.rescale) for x in (mean, std))
            else:
                byte = (byte.astype(np.float64) * self.rescale).astype(np.float32)
        values: npt.NDArray[np.float32] = (byte - mean) / std
        return values


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not a JSON object")
    return config


def _family(config: Mapping[str, Any]) -> str:
    found = config.get("image_processor_type") or config.get("feature_extractor_type")
    name = str(found)
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    if name not in _DEFAULTS:
        expected = ", ".join(f"{family}ImageProcessor" for family in _DEFAULTS)
        raise ValueError(f"the image processor is {found}, expected one of {expected}")
    return name


def _resample(value: Any) -> str:
    name = _RESAMPLE.get(value) if isinstance(value, int) else value
    if name not in _RESAMPLE.values():
        raise ValueError(
            f"resample is {value!r}, expected 0 to 5 or one of {list(_RESAMPLE.values())}"
        )
    return str(name)


def _resize(fields: Mapping[str, Any]) -> Size | int | PatchLimit:
    if "max_num_patches" in fields and "patch_size" in fields:
        return PatchLimit(fields["patch_size"], fields["max_num_patches"])
    return _size("size", fields["size"], bool(fields["default_to_square"]))


def _size(field: str, value: Any, square: bool) -> Size | int:
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"height": value, "width": value} if square else {"shortest_edge": value}
    elif isinstance(value, list | tuple) and len(value) == 2:
        value = {"height": value[0], "width": value[1]}
    if isinstance(value, Mapping):
        sides = {key: side for key, side in value.items() if side is not None}
        whole = all(type(side) is int and 0 < side <= _MOST_SIDE for side in sides.values())
        if whole and set(sides) == {"height", "width"}:
            return sides["height"], sides["width"]
        if whole and set(sides) == {"shortest_edge"}:
            return int(sides["shortest_edge"])
    raise ValueError(
        f"{field} is {value!r:.80}, expected height and width, or shortest_edge, over 0 and at "
        f"most {_MOST_SIDE}"
    )


def _full_size(field: str, value: Any) -> Size:
    size = _size(field, value, square=True)
    if isinstance(size, int):
        raise ValueError(f"{field} is {value!r:.80}, expected height and width")
    return size


def _number(field: str, fields: Mapping[str, Any]) -> float:
    value = fields[field]
    if not _is_number(value) or value == 0:
        raise ValueError(f"{field} is {value!r:.80}, expected a number other than 0")
    return float(value)


def _numbers(field: str, fields: Mapping[str, Any], *, zero: bool = True) -> tuple[float, ...]:
    value = fields[field]
    numbers = value if isinstance(value, list | tuple) else [value] * 3
    if not all(_is_number(number) and (zero or number != 0) for number in numbers):
        others = "" if zero else " other than 0"
        raise ValueError(f"{field} is {value!r:.80}, expected 3 numbers{others}")
    return tuple(float(number) for number in numbers)


def _is_number(value: Any) -> bool:
    """True for a number that float32 holds; NaN is none."""
    return type(value) in (int, float) and -_LARGEST <= value <= _LARGEST
