"""Shapes that tests and benchmarks share."""

from __future__ import annotations

import numpy as np

# Lengths of the sequences of a batch, by name.
BATCHES: dict[str, list[int]] = {
    "empty": [],
    "only-empty-sequences": [0, 0],
    "one-token": [1],
    "empty-sequences": [0, 3, 0, 0, 5, 0],
    "ones": [1] * 9,
    "block-edges": [63, 64, 65, 1],
    "uneven": [2, 257, 1, 31, 128, 7],
}

# Head sizes that models have; what does not suit a kernel is padded when weights are loaded.
HEAD_DIMS = [8, 16, 24, 26, 32, 40, 64, 80, 96, 128, 256]

# (rows, in_features, out_features) of dense layers.
GEMM_SHAPES = [
    (0, 16, 16),
    (1, 8, 8),
    (1, 1, 1),
    (7, 33, 17),
    (64, 64, 64),
    (65, 48, 96),
    (130, 312, 78),
    (200, 129, 257),
]

HIDDEN_SIZES = [1, 8, 33, 64, 312, 768, 1023]

ACTIVATIONS = ["none", "gelu", "gelu_tanh", "relu", "silu", "tanh", "sigmoid"]
POOLINGS = ["cls", "mean", "max", "last", "mean_sqrt", "weighted_mean"]


def mixed_lengths(count: int, longest: int, seed: int = 0) -> list[int]:
    """Lengths as real text has them: many short, few long (log-normal), from 1 to `longest`."""
    lengths = np.random.default_rng(seed).lognormal(np.log(longest) - 1.5, 0.8, count)
    return [int(n) for n in np.clip(lengths, 1, longest)]


def offsets(lengths: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """cu_seqlens int32[B+1]"""
    return np.cumsum([0, *lengths], dtype=np.int32)
