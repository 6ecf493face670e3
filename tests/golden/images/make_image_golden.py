"""Writes pixel_values.json: digests of what the image processors of transformers 5 make of
tests/python/support/image_cases.py, for both of its backends.

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
from image_cases import CONFIGS, SIZES, image

HERE = Path(__file__).parent
FAMILIES = {"ViTFeatureExtractor": "ViTImageProcessor"}


def main() -> None:
    golden: dict[str, object] = {
        name: version(name) for name in ("transformers", "torch", "torchvision", "pillow")
    }
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
