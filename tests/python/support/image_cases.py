"""Images and settings whose pixel values are recorded from transformers (tests/golden/images)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

SIZES = [(97, 131), (131, 97), (30, 41), (224, 224), (400, 60)]

CONFIGS: dict[str, dict[str, Any]] = {
    "vit": {"image_processor_type": "ViTImageProcessor"},
    "vit old": {"feature_extractor_type": "ViTFeatureExtractor", "size": 48, "resample": 2},
    "deit": {"image_processor_type": "DeiTImageProcessor", "size": 80, "crop_size": 64},
    "beit": {"image_processor_type": "BeitImageProcessor", "do_rescale": False},
    "dinov2": {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": 72},
        "crop_size": {"height": 56, "width": 56},
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    },
    "clip": {"image_processor_type": "CLIPImageProcessor"},
    "clip smaller than its crop": {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 31},
        "crop_size": {"height": 64, "width": 47},
    },
    "clip that only crops": {
        "image_processor_type": "CLIPImageProcessorFast",
        "do_resize": False,
        "crop_size": 101,
    },
    "siglip": {"image_processor_type": "SiglipImageProcessor", "resample": 1, "size": [60, 70]},
    "only rescaled": {
        "image_processor_type": "ViTImageProcessor",
        "do_normalize": False,
        "rescale_factor": 1 / 127.5,
    },
    "neither": {
        "image_processor_type": "ViTImageProcessor",
        "do_normalize": False,
        "do_rescale": False,
        "resample": 0,
    },
}


def image(number: int) -> npt.NDArray[np.uint8]:
    """Smooth with noise: uint8 [height, width, 3]."""
    height, width = SIZES[number]
    rows, columns = np.mgrid[:height, :width]
    planes = [rows * 2 + columns, rows * 3 - columns, (rows * columns) // 7]
    noise = np.random.default_rng(number).integers(0, 90, (height, width, 3))
    return ((np.stack(planes, -1) + noise) % 256).astype(np.uint8)
