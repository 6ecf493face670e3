"""Fits the exponents of runtime/cuda/common/activations.cuh (needs NumPy only).

gelu(x) = x Phi(x) = max(x, 0) - t Phi(-t) with t = |x|, and Phi(-t) = 2^P(t). A quartic replaces P,
both for the normal distribution function Phi and for its approximation by tanh. Its highest
coefficient is the largest, and so the best, for which P still falls until the power is zero in
float32. The others minimise the largest absolute error of gelu (Lawson's reweighted least squares
in float64, linearised around the exact P).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
LIMIT = 16.0  # upper limit of t
HIGHEST = {"erf": 0.0025, "tanh": -0.0043}


def fit(tail: Array, t: Array, highest: float, rounds: int = 1000) -> tuple[float, Array]:
    """Returns the largest error, and the coefficients of P in ascending order, for tail =
    Phi(-t)."""
    target = np.log2(tail) - highest * t**4
    slope = t * tail * math.log(2)  # derivative of gelu with respect to the exponent
    basis = np.stack([t**power for power in range(4)], axis=1)
    weight = np.ones_like(t)
    best: tuple[float, Array] = (math.inf, np.zeros(5))
    for _ in range(rounds):
        scale = slope * weight
        solved = np.linalg.lstsq(basis * scale[:, None], target * scale, rcond=None)[0]
        coefficients = np.array([*solved, highest], np.float32).astype(np.float64)
        power = np.exp2(np.polynomial.polynomial.polyval(t, coefficients))
        error = np.abs(t * tail - t * power)
        if error.max() < best[0]:
            best = (float(error.max()), coefficients)
        weight *= (error / error.max() + 1e-3) ** 0.15
        weight /= weight.max()
    return best


def main() -> None:
    t = np.linspace(0, 8, 8001)
    erf = np.array([0.5 * math.erfc(v / math.sqrt(2)) for v in t])
    tanh = 1 / (1 + np.exp(math.sqrt(8 / math.pi) * (t + 0.044715 * t**3)))
    for name, tail in (("erf", erf), ("tanh", tanh)):
        error, coefficients = fit(tail, t, HIGHEST[name])
        exponent = np.polynomial.polynomial.polyval(np.linspace(0, LIMIT, 1001), coefficients)
        if exponent[-1] >= -126 or (np.diff(exponent) >= 0).any():
            raise SystemExit(f"{name}: the exponent does not fall to where the power is zero")
        print(f"{name}: largest error {error:.2e}")
        print("  ", ", ".join(f"{a:.9g}f" for a in coefficients))


if __name__ == "__main__":
    main()
