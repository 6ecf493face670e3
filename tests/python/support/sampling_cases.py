"""Settings of sampling that tests and the script of their golden file share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

VOCAB_SIZE = 61

# Names are those of packhorse.ops.sample; `prompts` and `generated` are those of one row.
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.35},
    "hot": {"temperature": 3.0},
    "top-k": {"temperature": 0.8, "top_k": 7},
    "top-k-1": {"temperature": 0.8, "top_k": 1},
    "top-p": {"temperature": 1.0, "top_p": 0.6},
    "top-p-small": {"temperature": 1.0, "top_p": 0.01},
    "min-p": {"temperature": 1.2, "min_p": 0.1},
    "all": {"temperature": 1.3, "top_k": 30, "top_p": 0.9, "min_p": 0.05},
    "repetition": {
        "temperature": 1.0,
        "repetition_penalty": 1.4,
        "prompts": [3, 5, 5, 60],
        "generated": [7, 5, 0],
    },
    "bias": {"temperature": 1.0, "logit_bias": {4: 2.5, 60: -3.0, 0: 1.0}},
    "bias-and-repetition": {
        "temperature": 0.9,
        "top_k": 20,
        "repetition_penalty": 0.7,
        "prompts": [4, 9],
        "generated": [],
        "logit_bias": {4: 2.0, 11: 1.5},
    },
}


def logits() -> npt.NDArray[np.float32]:
    """One row."""
    return np.random.default_rng(11).normal(0, 2, VOCAB_SIZE).astype(np.float32)
