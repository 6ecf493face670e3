"""Writes pixel_values.json, digests of what the image processors of transformers 5 make of
tests/python/support/image_cases.py for both of its backends; flexible_patches.json: those of
processors that make patches of any grid; tiles.json: those that cut images into tiles.

    python tests/golden/images/make_image_golden.py      (needs transformers 5, torchvision, pillow)
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import transformers
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2] / "python/support"))
from image_cases import CONFIGS, FLEXIBLE, SIDES, SIZES, TILES, image
from transformers.models.siglip2 import image_processing_pil_siglip2 as siglip2

HERE = Path(__file__).parent
FAMILIES = {"ViTFeatureExtractor": "ViTImageProcessor"}


def versions() -> dict[str, object]:
    return {name: version(name) for name in ("transformers", "torch", "torchvision", "pillow")}


def flexible() -> dict[str, object]:
    """Grids and digests of patches, without the padding behind them."""
    golden = versions()
    for name, config in FLEXIBLE.items():
        family = config["image_processor_type"].removesuffix("Fast")
        for backend, ending in (("torchvision", ""), ("pil", "Pil")):
            processor = getattr(transformers, family + ending)(**config)
            digests = []
            for number in range(len(SIZES)):
                made = processor(Image.fromarray(image(number)), return_tensors="np")
                rows, columns = (int(side) for side in made.spatial_shapes[0])
                values = made.pixel_values[0][: rows * columns]
                digest = hashlib.sha256(values.astype(np.float32).tobytes()).hexdigest()[:16]
                digests.append(f"{rows} {columns} {digest}")
            golden[f"{name}, {backend}"] = digests
    return golden


def sizes() -> list[list[int]]:
    """Sizes of images of each pair of sides, for at most 64 patches of 16 x 16 pixels."""
    return [
        list(siglip2.get_image_size_for_max_num_patches(height, width, 16, 64))
        for height in SIDES
        for width in SIDES
    ]


def tiles() -> dict[str, object]:
    """Rows and columns of tiles, and digests of all tiles and the whole."""
    golden = versions()
    for name, config in TILES.items():
        for backend, ending in (("torchvision", ""), ("pil", "Pil")):
            processor = getattr(transformers, f"Idefics3ImageProcessor{ending}")(**config)
            digests = []
            for number in range(len(SIZES)):
                made = processor(
                    [Image.fromarray(image(number))], return_tensors="np", return_row_col_info=True
                )
                values = np.ascontiguousarray(made.pixel_values[0], np.float32)
                digest = hashlib.sha256(values.tobytes()).hexdigest()[:16]
                digests.append(f"{made.rows[0][0]} {made.cols[0][0]} {digest}")
            golden[f"{name}, {backend}"] = digests
    return golden


def main() -> None:
    (HERE / "tiles.json").write_text(json.dumps(tiles(), indent=1) + "\n")
    made = json.dumps({**flexible(), "sizes": sizes()}, indent=1) + "\n"
    (HERE / "flexible_patches.json").write_text(made)
    golden = versions()
    for name, config in CONFIGS.items():
        family = config.get("image_processor_type") or config["feature_extractor_type"]
        family = FAMILIES.get(family, family).removesuffix("Fast")
        for backend, ending in (("torchvision", ""), ("pil", "Pil")):
            processor = getattr(transformers, family + ending)(**config)
            digests = []
            for number in range(len(SIZES)):
                made = processor(Image.fromarray(image(number)), return_tensors="np").pixel_values
                values = np.ascontiguousarray(made[0], np.float32)
                digest = hashlib.sha256(values.tobytes()).hexdigest()[:16]
                digests.append(f"{values.shape[1]} {values.shape[2]} {digest}")
            golden[f"{name}, {backend}"] = digests
    (HERE / "pixel_values.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
