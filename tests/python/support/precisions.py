"""The dtypes in which tests run, each with its tolerance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import packhorse
import pytest
import reference
from models import tiny_spec
from processor import multiplies_bfloat16

ModelMaker = Callable[..., Path]


@dataclass(frozen=True)
class Precision:
    """A dtype of the runtime, and how far one operator may be from float64.

    `tolerance` counts once absolutely and once relatively, for values around 1: two roundings in
    bfloat16 (8 significant bits), the sum of a few hundred products in float32. `widened`: only
    weights have this dtype, and are multiplied with rows of float32.
    """

    name: str
    tolerance: float
    widened: bool = False

    def round(self, x: Any) -> npt.NDArray[np.float32]:
        """Numbers that the device takes as they are: as weights and as activations."""
        return reference.bfloat16(x) if self.name == "bfloat16" else np.asarray(x, np.float32)

    def activations(self, x: Any) -> npt.NDArray[np.float32]:
        """Activations as the device keeps them."""
        return np.asarray(x, np.float32) if self.widened else self.round(x)

    def check(self, actual: npt.NDArray[np.float32], expected: Any, steps: float = 1) -> None:
        """`steps`: how many roundings follow one another, at most about."""
        assert actual.dtype == np.float32
        tolerance = steps * self.tolerance
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


PRECISIONS = [Precision("float32", 5e-6), Precision("bfloat16", 2**-7)]


def available(chosen: Precision, device: str) -> Precision:
    """Returns the precision that the device has for `chosen`. Skips the test where it has none."""
    if device == "cpu" and chosen.name == "bfloat16" and not multiplies_bfloat16():
        return replace(chosen, tolerance=PRECISIONS[0].tolerance, widened=True)
    try:
        packhorse.plan_memory(tiny_spec(), device=device, dtype=chosen.name)
    except RuntimeError as error:
        pytest.skip(str(error))
    return chosen
