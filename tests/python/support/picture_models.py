"""Tiny models of images with all files that a checkpoint has, and pictures for them."""

from __future__ import annotations

import base64
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import GOLDEN
from tiny_tokenizer import make_tokenizer

VISION = GOLDEN / "vision"
_SIDE = 28  # four patches by four of the tiny models
_PROCESSORS = {"clip": "CLIP", "siglip": "Siglip", "deit": "DeiT", "dinov2-classes": "Bit"}


def picture_model(golden: str, folder: Path) -> Path:
    """The model with settings of its processor and, where it has texts, a tokenizer."""
    shutil.copytree(VISION / golden, folder)
    size = {"height": _SIDE, "width": _SIDE}
    settings = {
        "image_processor_type": f"{_PROCESSORS[golden]}ImageProcessor",
        "size": size,
        "crop_size": size,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    if golden in ("clip", "siglip"):
        make_tokenizer().save(str(folder / "tokenizer.json"))
        names = {"pad_token": "[PAD]", "tokenizer_class": "PreTrainedTokenizerFast"}
        (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


def picture(number: int, form: str = "PNG", size: tuple[int, int] = (40, 33)) -> bytes:
    """A file of noise, [height, width] = size."""
    from PIL import Image

    pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def data_url(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def write_pictures(folder: Path, count: int) -> list[Path]:
    """Files of pictures of several formats, in the order of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds: list[tuple[str, str]] = [("png", "PNG"), ("JPG", "JPEG"), ("webp", "WEBP")]
    found: list[Any] = []
    for number in range(count):
        ending, form = kinds[number % 3]
        found.append(folder / f"{number:02}.{ending}")
        found[-1].write_bytes(picture(number, form, (20 + number, 31)))
    return found
