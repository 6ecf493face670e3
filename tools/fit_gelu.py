"""Fits the polynomials of runtime/cuda/epilogue.cuh (needs NumPy only).

gelu(x) = max(x, 0) - h(|x|), where h(t) = t * Phi(-t) (erf form) or its tanh twin decays to zero.
With s = max(c - t, 0) we write h(t) = t * s^2 * P(s): exactly 0 at t = 0 and for t >= c, so both
sides saturate exactly. P minimises the largest absolute error (Lawson's reweighted least squares in
float64) and c balances it against the tail that is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from numpy.polynomial import Polynomial, chebyshev

Array = npt.NDArray[np.float64]
DEGREE = 7


def h_erf(t: Array) -> Array:
    """t * Phi(-t), Phi the normal distribution."""
    return np.asarray(t * 0.5 * np.vectorize(math.erfc)(t / math.sqrt(2)))


def h_tanh(t: Array) -> Array:
    """The same for the tanh form of Hendrycks and Gimpel (arXiv 1606.08415)."""
    return np.asarray(t / (1 + np.exp(2 * math.sqrt(2 / math.pi) * (t + 0.044715 * t**3))))


def fit(h: Callable[[Array], Array], c: float, points: int = 600) -> tuple[float, Array]:
    """Largest error on [0, inf) and the coefficients of P, lowest first."""
    s = c * (0.5 - 0.5 * np.cos(np.pi * (np.arange(points) + 0.5) / points))
    basis = ((c - s) * s**2)[:, None] * chebyshev.chebvander(2 * s / c - 1, DEGREE)
    target = h(c - s)
    weight = np.ones(points)
    best: tuple[float, Array] = (math.inf, np.zeros(DEGREE + 1))
    for _ in range(60):
        root = np.sqrt(weight)
        coef = np.linalg.lstsq(basis * root[:, None], target * root, rcond=None)[0]
        error = np.abs(basis @ coef - target)
        if error.max() < best[0]:
            best = (float(error.max()), np.asarray(coef, np.float64))
        weight *= error
        weight /= weight.sum()
    p = Polynomial(chebyshev.cheb2poly(best[1]))(Polynomial([-1, 2 / c]))
    return max(best[0], float(h(np.array([c]))[0])), np.asarray(p.coef, np.float64)


def main() -> None:
    for name, h in (("erf", h_erf), ("tanh", h_tanh)):
        c = min(np.arange(3.8, 5.4, 0.05), key=lambda c: fit(h, c)[0])
        error, coef = fit(h, c)
        print(f"{name}: c = {c:.2f}, largest error {error:.2e}")
        print("  ", ", ".join(f"{np.float32(a):.9g}f" for a in coef))


if __name__ == "__main__":
    main()
