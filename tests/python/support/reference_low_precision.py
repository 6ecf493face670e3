"""Low precision as kernels should compute it, in NumPy: e4m3 and integers, scales, sums, recipes.

`Recipe` says what of a model is rounded and how, and `LowPrecision` is the arithmetic of
`reference_encoder.encoder` that follows it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import reference
from packhorse_weights.spec import stack_of, upgraded
from reference import Array
from reference_encoder import Exact

Float32s = npt.NDArray[np.float32]
Number = Literal["e4m3", "int8", "uint8", "int4", "uint4"]

E4M3_MAX = np.float32(448)
_SMALLEST_NORMAL = np.float32(2**-6)
_LARGEST = {"e4m3": 448, "int8": 127, "int4": 7}  # forms that are symmetric around 0
_LEVELS = {"uint8": 255, "uint4": 15}  # forms that go from the smallest value to the largest


def e4m3(x: Any) -> Float32s:
    """Rounds float32 to the nearest e4m3 (OCP FP8: 3 bits of mantissa, no infinities), ties to
    even. What is beyond 448 becomes 448 (cvt.rn.satfinite.e4m3x2.f32), NaN stays NaN."""
    x = np.ascontiguousarray(np.clip(np.asarray(x, np.float32), -E4M3_MAX, E4M3_MAX))
    bits = x.view(np.uint32)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & np.uint32(0xFFF00000)).view(np.float32)
    small = np.rint(x * np.float32(512)) / np.float32(512)
    found = np.where(np.abs(x) < _SMALLEST_NORMAL, small, normal)
    return np.where(np.isnan(x), x, found).astype(np.float32)


def e4m3_values() -> Float32s:
    """The value of each of the 256 bytes: sign, 4 bits of exponent with bias 7, 3 of mantissa."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    size = np.where(exponent == 0, mantissa / 512, (8 + mantissa) * 2.0 ** (exponent - 10))
    size[(code & 127) == 127] = np.nan
    return np.where(code < 128, size, -size).astype(np.float32)


def e4m3_bytes(x: Any) -> npt.NDArray[np.uint8]:
    """The bytes of e4m3(x)."""
    rounded = e4m3(x)
    code = np.searchsorted(e4m3_values()[:127], np.abs(rounded)).astype(np.uint8)
    return code | (np.signbit(rounded).astype(np.uint8) << 7)


@dataclass(frozen=True)
class Form:
    """A form of few bits for values [rows, columns].

    number  "e4m3", "int8" and "int4": scale x number, where the scale takes the largest absolute
            value to 448, 127 and 7. "uint8" and "uint4": low + scale x number, from the smallest
            value to the largest in 255 or 15 steps
    per     what shares a scale: the "tensor", a "row", or so many columns of a row
    """

    number: Number
    per: Literal["tensor", "row"] | int = "row"


class Quantized(NamedTuple):
    """q [rows, columns], as float32; scale and low [rows or 1, groups of `columns` columns]."""

    q: Float32s
    scale: Float32s
    low: Float32s
    columns: int

    def values(self) -> Float32s:
        """Values that the numbers stand for, [rows, columns]."""
        if self.scale.shape[1] == 1:
            return self.q * self.scale + self.low
        wide = (np.repeat(part, self.columns, axis=1) for part in (self.scale, self.low))
        scale, low = (part[:, : self.q.shape[1]] for part in wide)
        return self.q * scale + low


def quantize(x: Any, form: Form, largest: float | None = None) -> Quantized:
    """Quantises x. largest: for a static scale, the absolute value that was the largest in
    calibration; larger ones saturate. None: the scale is dynamic, of x itself."""
    x = np.asarray(x, np.float32)
    rows, width = x.shape
    columns = form.per if isinstance(form.per, int) else width
    groups = -(-width // columns)
    cut = np.pad(x, ((0, 0), (0, groups * columns - width)), mode="edge")
    cut = cut.reshape(rows, groups, columns)
    axes: Any = (0, 2) if form.per == "tensor" else 2

    def of(function: Callable[..., Any], values: Float32s) -> Float32s:
        return np.asarray(function(values, axis=axes, keepdims=True), np.float32)

    low = np.zeros((1, groups, 1), np.float32)
    if form.number in _LEVELS:
        low = of(np.min, cut)
        size = of(np.max, cut) - low
        top = _LEVELS[form.number]
    else:
        size = of(np.max, np.abs(cut)) if largest is None else np.full_like(low, largest)
        top = _LARGEST[form.number]
    scale = size / np.float32(top)
    q = (cut - low) / np.where(scale > 0, scale, np.float32(1))
    q = e4m3(q) if form.number == "e4m3" else np.clip(np.rint(q), -top, top)
    flat = q.reshape(rows, -1)[:, :width].astype(np.float32)
    return Quantized(flat, scale[:, :, 0], low[:, :, 0], columns)


def hopper_sum(x: Any, w: Any, interval: int | None = None, bits: int = 14) -> Float32s:
    """x [T, K] times w [N, K] transposed, summed as Hopper's FP8 tensor cores are understood to.

    32 products and the sum so far are cut (towards zero) at `bits` bits below the largest of them,
    then added exactly: DeepSeek-V3 (arXiv 2412.19437, 3.3.2) found about 14 bits. The sum so far
    is added to a float32 one, and starts anew, every `interval` columns (a multiple of 32); None:
    never. This is a model of the hardware: exact products of e4m3 go in, the rest of its order is
    not known.
    """
    x, w = np.asarray(x, np.float32), np.asarray(w, np.float32)
    total = np.zeros((len(x), len(w)), np.float32)
    for row in range(len(x)):  # a row at a time fits in cache
        part = np.zeros(len(w), np.float32)
        for begin in range(0, x.shape[1], 32):
            if interval is not None and begin % interval == 0:
                total[row] += part
                part[:] = 0
            products = x[row, begin : begin + 32] * w[:, begin : begin + 32]
            largest = np.maximum(np.abs(products).max(axis=1), np.abs(part))
            unit = np.ldexp(np.float32(1), np.frexp(largest)[1] - bits).astype(np.float32)
            cut = np.trunc(products / unit[:, None]).sum(axis=1, dtype=np.float32)
            part = (cut + np.trunc(part / unit)) * unit
        total[row] += part
    return total


def _gelu(x: Float32s) -> Float32s:
    """GELU in float32: the error function by Abramowitz and Stegun 7.1.26, within 1.5e-7."""
    out = np.empty_like(x)
    factors = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    for begin in range(0, len(x), 32):  # rows that fit in cache
        rows = x[begin : begin + 32]
        far = np.abs(rows) * np.float32(0.5**0.5)
        t = 1 / (1 + np.float32(0.3275911) * far)
        powers = np.zeros_like(t)
        for factor in factors:
            powers += np.float32(factor)
            powers *= t
        powers *= np.exp(-far * far)
        out[begin : begin + 32] = rows * (0.5 + np.copysign(0.5 - 0.5 * powers, rows))
    return out


_ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {**reference.ACTIVATIONS, "gelu": _gelu}


@dataclass(frozen=True)
class Recipe:
    """Parts of a model that are rounded. None leaves a part as it is.

    weights    of the dense layers of the blocks; a row is an output channel
    norm       inputs of dense layers that a norm made
    attention  inputs that attention made; so many columns as a head has: per token and head
    inner      inputs that the activation made, of the second layer of the feed-forward block
    static     scales of inputs are of `Calibration`, one for each layer that it knows
    smooth     exponent of SmoothQuant (Xiao et al. 2022, arXiv 2211.10438) for inputs that a norm
               made: columns are divided by max|x| ** smooth / max|w| ** (1 - smooth), and weights
               multiplied. None: not at all
    other      dtype of what is not rounded to 8 bits or fewer: outputs of dense layers, norms
               and the residual stream, "float32", "float16" or "bfloat16"
    cache      keys and values; so many columns as a head has: per token and head
    interval   sums as `hopper_sum` makes them; None: float32 ones, 0: without promotion
    """

    weights: Form | None = None
    norm: Form | None = None
    attention: Form | None = None
    inner: Form | None = None
    static: bool = False
    smooth: float | None = None
    other: Literal["float32", "float16", "bfloat16"] = "float32"
    cache: Form | None = None
    interval: int | None = None


def _source(name: str) -> str:
    """Name of the field of `Recipe` that the input of a dense layer falls under; "" for none."""
    if not name.startswith("layers."):
        return ""
    return {"attention.output": "attention", "ffn.down": "inner"}.get(
        name.partition(".")[2].partition(".")[2], "norm"
    )


class Calibration(Exact):
    """Records, for each dense layer, the largest absolute value of each column of its input."""

    def __init__(self) -> None:
        self.columns: dict[str, Float32s] = {}

    def dense(self, name: str, x: Array, weight: Array, bias: Any, activation: str) -> Array:
        found = np.abs(x).max(axis=0).astype(np.float32)
        self.columns[name] = np.maximum(self.columns.get(name, found), found)
        return _in_float32(x, weight, bias, activation)


def _in_float32(x: Array, weight: Array, bias: Any, activation: str) -> Array:
    return _finish(np.asarray(x, np.float32) @ np.asarray(weight, np.float32).T, bias, activation)


def _finish(product: Float32s, bias: Any, activation: str) -> Array:
    return _ACTIVATIONS[activation](product if bias is None else product + np.float32(bias))


class Bounds(Calibration):
    """Bounds that follow from weights and take the place of a calibration: of the outputs of
    attention and of inner activations in a spec's blocks. A norm's rows gamma z + beta have |z| <=
    sqrt(E)."""

    def __init__(self, spec: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
        super().__init__()
        stack = stack_of(upgraded(spec))
        norm = stack["norm"]
        pre = norm["placement"] != "post"
        for i in range(len(stack["layers"])):
            block = f"layers.{i}"
            before = f"{block}.attention" if pre else f"layers.{i - 1}.ffn" if i else ""
            if f"{before}.norm.weight" not in tensors:  # a norm of the embeddings, if any
                before = "embeddings"
            shared = not pre or f"{block}.ffn.norm.weight" not in tensors
            inner = f"{block}.attention" if shared else f"{block}.ffn"
            values = self._largest(norm, tensors, before, f"{block}.attention.value").max()
            up = self._largest(norm, tensors, inner, f"{block}.ffn.up")
            if f"{block}.ffn.gate.weight" in tensors:
                gate = self._largest(norm, tensors, inner, f"{block}.ffn.gate")
                up = np.maximum(gate, 1) * up
            # Rounding to e4m3 may add 2^-4 to either factor of a product.
            self._set(f"{block}.attention.output", 1.15 * values)
            self._set(f"{block}.ffn.down", 1.15 * max(1, up.max()))

    def _set(self, name: str, bound: float) -> None:
        self.columns[name] = np.array([bound], np.float32)

    @staticmethod
    def _largest(
        form: Mapping[str, Any], tensors: Mapping[str, Array], norm: str, layer: str
    ) -> Array:
        weight = np.asarray(tensors[f"{layer}.weight"], np.float64)
        gamma = tensors[f"{norm}.norm.weight"] + form.get("gamma_offset", 0)
        shift = weight @ tensors.get(f"{norm}.norm.bias", np.zeros(len(gamma)))
        shift = shift + tensors.get(f"{layer}.bias", 0)
        found: Array = len(gamma) ** 0.5 * np.linalg.norm(weight * gamma, axis=1) + np.abs(shift)
        return found


# Computation of a session in float8, with `Bounds`.
FLOAT8 = Recipe(
    weights=Form("e4m3"),
    norm=Form("e4m3"),
    attention=Form("e4m3", "tensor"),
    inner=Form("e4m3", "tensor"),
    static=True,
    other="float16",
)


class LowPrecision(Exact):
    """A recipe. Products are float32 ones of the rounded values: sums of products of e4m3 or bytes
    differ from exact ones by 1e-6 of their size at most."""

    def __init__(
        self, recipe: Recipe, tensors: Mapping[str, Array], calibration: Calibration | None = None
    ) -> None:
        """Reads a model. calibration: numbers for a recipe with `static` or `smooth`."""
        self.recipe, self._tensors = recipe, tensors
        self._maxima = {} if calibration is None else calibration.columns
        self._weights: dict[str, tuple[Quantized | None, Float32s, Float32s | None]] = {}
        self._last: tuple[Any, Any, Any] = (None, None, None)

    def _smoothing(self, name: str) -> Float32s | None:
        """Divisors of the input's columns: the same for all layers that read it."""
        alpha = self.recipe.smooth
        if alpha is None or _source(name) != "norm":
            return None
        block = name.rpartition(".")[0]
        ends = ("query", "key", "value") if block.endswith("attention") else ("up", "gate")
        weights = [self._tensors.get(f"{block}.{end}.weight") for end in ends]
        largest = np.max([np.abs(w).max(axis=0) for w in weights if w is not None], axis=0)
        inputs = np.maximum(self._maxima[name], np.float32(1e-5))
        factors = inputs**alpha / np.maximum(largest, np.float32(1e-5)) ** (1 - alpha)
        return factors.astype(np.float32)

    def _prepared(
        self, name: str, weight: Array
    ) -> tuple[Quantized | None, Float32s, Float32s | None]:
        """(the weight's numbers, its values, what its input is divided by)."""
        if name not in self._weights:
            factors = self._smoothing(name)
            values = np.asarray(weight, np.float32)
            values = values if factors is None else values * factors
            numbers = None
            if self.recipe.weights is not None:
                numbers = quantize(values, self.recipe.weights)
                values = numbers.values()
            self._weights[name] = numbers, values, factors
        return self._weights[name]

    def _rounded(self, name: str, x: Array, factors: Float32s | None) -> Quantized | None:
        form: Form | None = getattr(self.recipe, _source(name))
        if form is None:
            return None
        scaled = x if factors is None else x / factors
        largest = None
        if self.recipe.static and name in self._maxima:
            columns = self._maxima[name]
            largest = float((columns if factors is None else columns / factors).max())
        elif self._last[0] is x and self._last[1] is form:  # queries, keys and values read one row
            return self._last[2]
        numbers = quantize(scaled, form, largest)
        self._last = x, form, numbers
        return numbers

    def dense(self, name: str, x: Array, weight: Array, bias: Any, activation: str) -> Array:
        if not _source(name):
            return self.residual(_in_float32(x, weight, bias, activation))
        numbers, values, factors = self._prepared(name, weight)
        rounded = self._rounded(name, x, factors)
        if rounded is None:
            exact = np.asarray(x if factors is None else x / factors, np.float32)
            product = exact @ values.T
        elif self.recipe.interval is None or numbers is None:
            product = rounded.values() @ values.T
        else:
            product = self._as_hopper(rounded, numbers)
        out = _finish(product, bias, activation)
        # Residuals are added, and inner activations rounded, before anything is written.
        return self.residual(out) if name.endswith(("query", "key", "value")) else out

    def _as_hopper(self, x: Quantized, weight: Quantized) -> Float32s:
        """Product of symmetric numbers, weights with a scale for each row: scales of x enter the
        sum in the k loop, those of the weight at its end."""
        step = x.columns
        parts = [
            hopper_sum(
                x.q[:, begin : begin + step],
                weight.q[:, begin : begin + step],
                self.recipe.interval or None,
            )
            * x.scale[:, [i]]
            for i, begin in enumerate(range(0, x.q.shape[1], step))
        ]
        product: Float32s = np.sum(parts, axis=0, dtype=np.float32) * weight.scale.T
        return product

    def residual(self, x: Array) -> Array:
        if self.recipe.other == "float16":
            return np.asarray(x, np.float16).astype(np.float32)
        return reference.bfloat16(x) if self.recipe.other == "bfloat16" else x

    def attention(
        self,
        q: Array,
        k: Array,
        v: Array,
        cu_seqlens: Any,
        heads: int,
        kv_heads: int,
        **options: Any,
    ) -> Array:
        """Attention over keys and values as the cache holds them; in float32 where there is nothing
        but a causal mask."""
        if self.recipe.cache is not None:
            k, v = (quantize(part, self.recipe.cache).values() for part in (k, v))
        if options["window"] != (-1, -1) or options.keys() - {"causal", "scale", "window"}:
            return super().attention(q, k, v, cu_seqlens, heads, kv_heads, **options)
        out = np.empty(q.shape, np.float32)
        size = q.shape[1] // heads
        scale = options.get("scale", size**-0.5)
        for begin, end in itertools.pairwise(cu_seqlens):
            if begin == end:
                continue
            rows = slice(begin, end)
            own, keys, values = (
                np.asarray(part[rows], np.float32).reshape(end - begin, -1, size).swapaxes(0, 1)
                for part in (q, k, v)
            )
            keys, values = (np.repeat(part, heads // kv_heads, axis=0) for part in (keys, values))
            scores = own @ keys.swapaxes(1, 2) * np.float32(scale)
            if options["causal"]:
                scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            found = weights @ values / weights.sum(axis=-1, keepdims=True)
            out[rows] = found.swapaxes(0, 1).reshape(end - begin, -1)
        return out


Groups = tuple[Array, Array, Array | None]  # values, scales and minima of ops.gemm_groupwise


def random_groups(
    rng: np.random.Generator, n: int, k: int, bits: int, group: int, minima: bool
) -> Groups:
    """A weight [n, k] that is quantised in groups, of magnitude k^-0.5."""
    half = 2 ** (bits - 1)
    shape = (n, -(-k // group))
    scales = (rng.uniform(0.5, 1.5, shape) / half / k**0.5).astype(np.float16)
    lowest = (-rng.uniform(0.7, 1.3, shape) * scales * half).astype(np.float16)
    values = rng.integers(0, 2**bits, (n, k)).astype(np.float32)
    return values, scales.astype(np.float32), lowest.astype(np.float32) if minima else None


def groups_weight(
    weight: Groups, bits: int, group: int, round_to: Callable[[Array], Array] | None = None
) -> Array:
    """The weights that these values stand for, in float64; with `round_to`, rounded to a dtype, as
    CUDA makes float16 numbers of them."""
    values, scales, minima = weight
    half = 2 ** (bits - 1)

    def spread(of_groups: Array) -> Array:
        return np.repeat(of_groups.astype(np.float64), group, 1)[:, : values.shape[1]]

    lowest = -half * scales.astype(np.float64) if minima is None else minima
    result: Array = values.astype(np.float64) * spread(scales) + spread(lowest)
    return result if round_to is None else round_to(result)
