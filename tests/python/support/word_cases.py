"""Attention and probabilities of made-up readings of texts, of which words get times."""

from __future__ import annotations

import numpy as np

HEADS = ((1, 0), (1, 2))
FRAMES = 600  # frames of a window, which has half as many steps


def weights(seed: int, rows: int) -> np.ndarray:
    """float32 [2 heads, rows, 300 steps]: each row attends around a step of its own, later than the
    one before, within noise. Rows add up to 1."""
    rng = np.random.default_rng(seed)
    centers = np.sort(rng.random(rows)) * FRAMES / 2
    distances = np.arange(FRAMES // 2) - centers[:, None]
    found = np.exp(-np.square(distances / 6)) + 0.05 * rng.random((2, rows, FRAMES // 2))
    return (found / found.sum(-1, keepdims=True)).astype(np.float32)


def probabilities(seed: int, tokens: int) -> np.ndarray:
    """float64 [tokens]"""
    return 0.05 + 0.9 * np.random.default_rng([seed, 1]).random(tokens)
