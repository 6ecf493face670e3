"""What tests of weights in groups share: forms, random weights, and a comparison of bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gpu_support import PRECISIONS, Array
from reference_low_precision import Groups, groups_weight, random_groups
from torch import Tensor

HALF = PRECISIONS["float16"]
# bits, group, whether there are minima: Q4_0, Q4_1, AWQ and GPTQ, whole rows, Q6_K, Q8_0
FORMS = [
    (4, 32, False),
    (4, 32, True),
    (4, 64, True),
    (4, 128, False),
    (4, 128, True),
    (4, 1024, False),
    (8, 16, False),
    (8, 16, True),
    (8, 32, False),
    (8, 128, True),
]


def make(seed: int, n: int, k: int, form: tuple[int, int, bool]) -> tuple[Groups, Tensor]:
    """A weight, and in float64 the numbers that it stands for."""
    bits, group, minima = form
    weight = random_groups(np.random.default_rng(seed), n, k, bits, group, minima)
    values = groups_weight(weight, bits, group, lambda x: x.astype(np.float16).astype(np.float64))
    return weight, torch.as_tensor(values, device="cuda")


def options(form: tuple[int, int, bool]) -> dict[str, Any]:
    return {"bits": form[0], "group": form[1], **HALF.options()}


def same_bits(found: Array, expected: Array) -> None:
    different = found.view(np.int32) != expected.view(np.int32)
    assert not different.any(), (
        f"{np.count_nonzero(different)} of {found.size}: {found[different][:4]} where "
        f"{expected[different][:4]} is expected"
    )
