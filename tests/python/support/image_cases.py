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

# Settings of SigLIP 2 NaFlex: patches of any grid.
FLEXIBLE: dict[str, dict[str, Any]] = {
    "naflex": {"image_processor_type": "Siglip2ImageProcessor"},
    "naflex old": {
        "image_processor_type": "Siglip2ImageProcessorFast",
        "size": None,
        "patch_size": 14,
        "max_num_patches": 49,
        "resample": 3,
    },
}
# Sides of images that become a number of patches, in all pairs.
SIDES = (1, 2, 15, 16, 17, 37, 100, 999, 4096, 60_000)

# Settings of Idefics3: images cut into tiles.
TILES: dict[str, dict[str, Any]] = {
    "tiles": {"size": {"longest_edge": 728}},
    "small tiles": {"size": {"longest_edge": 150}, "max_image_size": {"longest_edge": 56}},
    "one tile": {
        "do_image_splitting": False,
        "size": {"longest_edge": 84},
        "max_image_size": {"longest_edge": 28},
    },
    "tiles as they are": {
        "do_resize": False,
        "max_image_size": {"longest_edge": 60},
        "resample": 3,
    },
}


def image(number: int) -> npt.NDArray[np.uint8]:
    """Smooth with noise: uint8 [height, width, 3]."""
    height, width = SIZES[number]
    rows, columns = np.mgrid[:height, :width]
    planes = [rows * 2 + columns, rows * 3 - columns, (rows * columns) // 7]
    noise = np.random.default_rng(number).integers(0, 90, (height, width, 3))
    return ((np.stack(planes, -1) + noise) % 256).astype(np.uint8)
