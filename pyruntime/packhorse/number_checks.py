"""Numbers among the arguments of a call: Python's and NumPy's, and no booleans."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """True for a finite number."""
    real = isinstance(value, int | float | np.integer | np.floating)
    return real and not isinstance(value, bool) and math.isfinite(value)
