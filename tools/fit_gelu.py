"""Fits the quadratic of runtime/cuda/gemm/epilogue.cuh (needs NumPy only).

gelu(x) = x Phi(x), and Phi(x) = 1 / (1 + 2^(x Q(x^2))) for Q(u) = -log2(Phi(x) / Phi(-x)) / x. A
quadratic in u replaces Q; its coefficients minimise the largest absolute error of gelu (Lawson's
reweighted least squares in float64, linearised around the exact Q).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
DEGREE = 2
LIMIT = 36.0  # u stays below: Q turns around at u = 53, and 2^-29 there leaves x itself


def gelu_error(x: Array, tail: Array, coefficients: Array) -> Array:
    """Approximation minus gelu at -x, where tail = Phi(-x); at +x it is the same."""
    q = np.polynomial.polynomial.polyval(np.minimum(x * x, LIMIT), coefficients)
    return np.asarray(x * tail - x / (1 + np.exp2(-x * q)))


def fit(points: int = 8001, rounds: int = 400) -> tuple[float, Array]:
    """Largest error and the coefficients of Q, lowest first."""
    x = np.linspace(1e-3, 8, points)
    tail = np.array([0.5 * math.erfc(v / math.sqrt(2)) for v in x])
    target = np.log2(tail) - np.log2(1 - tail)
    slope = x * tail * (1 - tail)  # of gelu in the exponent
    u = np.minimum(x * x, LIMIT)
    basis = np.stack([x * u**power for power in range(DEGREE + 1)], axis=1)
    weight = np.ones(points)
    best: tuple[float, Array] = (math.inf, np.zeros(DEGREE + 1))
    for _ in range(rounds):
        scale = slope * weight
        coefficients = np.linalg.lstsq(basis * scale[:, None], target * scale, rcond=None)[0]
        error = np.abs(gelu_error(x, tail, coefficients))
        if error.max() < best[0]:
            best = (float(error.max()), np.asarray(coefficients, np.float64))
        weight *= (error / error.max() + 1e-3) ** 0.15
        weight /= weight.max()
    return best


def main() -> None:
    error, coefficients = fit()
    print(f"largest error {error:.2e}")
    print("  ", ", ".join(f"{np.float32(a):.9g}f" for a in coefficients))


if __name__ == "__main__":
    main()
