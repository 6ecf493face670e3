"""Every function of packhorse.ops with arguments that need not fit together: a result of the right
shape or an exception that Python knows, never a crash. `nox -s test-asan-python` runs this under
AddressSanitizer, with more examples (PACKHORSE_FUZZ_EXAMPLES)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import packhorse
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packhorse import ops

pytestmark = pytest.mark.skipif(
    "cpu" not in packhorse.available_devices(), reason="for the CPU backend"
)
EXAMPLES = int(os.environ.get("PACKHORSE_FUZZ_EXAMPLES", "40"))
# OutOfMemory is a MemoryError; TypeError and OverflowError are what Python says of single numbers.
EXPECTED = (ValueError, RuntimeError, MemoryError, TypeError, OverflowError)
DTYPES = [
    "float32",
    "float64",
    "float16",
    "int64",
    "int32",
    "uint8",
    "bool",
    "complex64",
    "O",
    "S1",
]
SPECIAL = [0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, 1e-45, 3e38, -1e30]


def draw_array(data: st.DataObject, shape: tuple[int, ...], kinds: list[str]) -> Any:
    """Values with NaN, infinities and the ends of integers among them, in some layout of memory."""
    dtype = np.dtype(data.draw(st.sampled_from(kinds)))
    seed = data.draw(st.integers(0, 1000))
    values: Any = np.random.default_rng(seed).normal(0, 1, shape)
    if values.size and data.draw(st.integers(0, 3)) == 0:
        values.flat[seed % values.size] = data.draw(st.sampled_from(SPECIAL))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = values.astype(dtype)
    layout = data.draw(st.sampled_from(["plain", "plain", "fortran", "reversed", "apart", "zero"]))
    if layout == "fortran":
        return np.asfortranarray(array)
    if layout == "reversed":
        return array[::-1] if array.ndim else array
    if layout == "apart":
        return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array
    if layout == "zero":  # strides of 0
        return np.broadcast_to(array[:1], array.shape) if array.ndim and len(array) else array
    return array


SIZES = st.sampled_from([0, 1, 2, 3, 5, 8, 16, 17, 32, 33, 64, 65, 80, 130])
FITS = ["float32", "float64", "float16", "int32"]


class Draw:
    """Arguments that fit together, but for one in about eight."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.wild = data.draw(st.integers(0, 2)) == 0

    def of(self, *choices: Any) -> Any:
        return self.data.draw(st.sampled_from(choices))

    def size(self) -> int:
        return self.data.draw(SIZES)

    def strays(self) -> bool:
        return self.wild and self.data.draw(st.integers(0, 7)) == 0

    def floats(self, *shape: int) -> Any:
        if self.strays():
            other = self.of("rank", "huge", "dtype", "none", "list", "size")
            if other == "rank":
                return draw_array(self.data, (*shape, 2)[: self.of(0, 1, 3)], FITS)
            if other == "huge":  # without elements; or one element that is said to be many
                return np.empty(self.of((0, 1 << 40), (1 << 40, 0), (1 << 33, 0), (0, 0)), "f4")
            if other == "none":
                return None
            if other == "list":
                return self.of([], [[]], [[1.0, 2.0]], [[None]], [[1], [1, 2]], "text", 7, object())
            if other == "size":
                shape = tuple(max(0, n + self.of(-1, 0, 1)) for n in shape)
            else:
                return draw_array(self.data, shape, DTYPES)
        return draw_array(self.data, shape, FITS)

    def ints(self, count: int, limit: int) -> Any:
        seed = self.data.draw(st.integers(0, 1000))
        values = np.random.default_rng(seed).integers(0, max(1, limit), count)
        if self.strays():
            bad = self.of(-1, limit, 2**31 - 1, -(2**31), 2**31, 2**32, 2**63 - 1, -(2**63))
            if count:
                values[seed % count] = bad
            return self.of(
                values, values.astype(float), values.astype("u8"), [1.5], [], None, [[0]]
            )
        return values.astype(self.of("i4", "i8", "u1" if limit < 256 else "i2"))

    def offsets(self, total: int) -> Any:
        cuts = sorted(self.data.draw(st.lists(st.integers(0, total), max_size=4)))
        values = np.array([0, *cuts, total])
        if self.strays():
            at = self.data.draw(st.integers(0, len(values) - 1))
            values[at] = self.of(-1, total + 1, 2**31 - 1, 2**31, -(2**63), 2**63 - 1)
            return self.of(values, values.astype(float), [], None, [0.5], values[:-1], [[0, total]])
        return values.astype(self.of("i4", "i8"))

    def number(self, good: Any) -> Any:
        if self.strays():
            return self.of(-1, 0, 1, 7, 2**31 - 1, -(2**31), 2**40, 2**70, 1.5, None, "x")
        return good

    def maybe(self, value: Any) -> Any:
        return value if self.of(True, False) else None

    def norm(self, size: int) -> Any:
        return self.floats(size), self.maybe(self.floats(size)), self.of(1e-5, 0.0, -1.0, np.nan)

    def options(self) -> dict[str, Any]:
        dtype = self.of("float32", "float32", "bfloat16", "int8", *["int4"] * self.strays())
        return {"dtype": dtype, "threads": self.of(1, 3)}

    def activation(self) -> Any:
        known = ("none", "gelu", "gelu_tanh", "relu", "silu", "tanh", "sigmoid")
        return self.of(*known, *["gelu2"] * self.strays())


def gemm(d: Draw) -> Any:
    rows, k, n = d.size(), d.size(), d.size()
    return ops.gemm(
        d.floats(rows, k),
        d.floats(n, k),
        d.maybe(d.floats(n)),
        activation=d.activation(),
        residual=d.maybe(d.floats(rows, n)),
        norm=d.maybe(d.norm(n)),
        **d.options(),
    )


def feed_forward(d: Draw) -> Any:
    rows, hidden, inner = d.size(), d.size(), d.size()
    return ops.feed_forward(
        d.floats(rows, hidden),
        (d.floats(inner, hidden), d.maybe(d.floats(inner))),
        (d.floats(hidden, inner), d.maybe(d.floats(hidden))),
        gate=d.maybe((d.floats(inner, hidden), d.maybe(d.floats(inner)))),
        activation=d.activation(),
        residual=d.maybe(d.floats(rows, hidden)),
        norm=d.maybe(d.norm(hidden)),
        **d.options(),
    )


def qkv_rope(d: Draw) -> Any:
    rows, k, head_dim = d.size(), d.size(), d.of(0, 8, 16, 32, 48, 4096, 4112, 8192)
    heads, kv_heads = d.of(1, 2, 3), d.of(1, 2)
    if head_dim > 64:  # large heads are few
        rows, k, heads, kv_heads = min(rows, 2), min(k, 3), 1, 1
    columns = (heads + 2 * kv_heads) * head_dim
    return ops.qkv_rope(
        d.floats(rows, k),
        d.floats(columns, k),
        d.maybe(d.floats(columns)),
        d.offsets(rows),
        num_heads=d.number(heads),
        num_kv_heads=d.number(kv_heads),
        frequencies=d.maybe(d.floats(d.of(0, 1, head_dim // 4, head_dim // 2))),
        position_ids=d.maybe(d.ints(rows, 100)),
        query_norm=d.maybe((d.floats(head_dim), 1e-6)),
        key_norm=d.maybe((d.floats(head_dim), 1e-6)),
        **d.options(),
    )


def attention(d: Draw) -> Any:
    heads, group, head_dim = d.of(1, 2, 3), d.of(1, 2), d.of(8, 16, 32, 48, 128, 272, 4112)
    rows, more = d.size(), d.of(0, 1, 70)
    if head_dim > 64:
        rows, more = min(rows, 5), min(more, 5)
    keys = rows + more
    slots = d.of(0, 4, 8, 16)
    position = d.of(None, slots or 4)  # distances
    return ops.attention(
        d.floats(rows, heads * group * head_dim),
        d.floats(keys, heads * head_dim),
        d.floats(keys, heads * head_dim),
        [0, rows] if more else d.offsets(rows),
        [0, keys] if more else None,
        num_heads=d.number(heads * group),
        num_kv_heads=d.number(heads),
        scale=d.of(None, 0.1, 0.0, -1.0, np.nan, np.inf),
        causal=d.of(False, True),
        window=(d.number(d.of(-1, 0, 3)), d.number(d.of(-1, 0, 3))),
        alibi_slopes=d.of(None, None, d.floats(heads * group)),
        bucket_table=d.of(None, None, d.floats(d.of(4, 8, 32, 2048), heads * group)),
        max_distance=d.number(d.of(4, 16, 128, 1 << 14)),
        bidirectional=d.of(False, True),
        position_keys=position and d.floats(2 * position, heads * group * head_dim),
        position_queries=position and d.maybe(d.floats(2 * position, heads * group * head_dim)),
        buckets=d.number(slots),
        **d.options(),
    )


class Pages:
    """A cache, and steps that fit it but for one in about eight."""

    def __init__(self, d: Draw) -> None:
        self.heads, self.group = d.of(1, 2, 3), d.of(1, 2)
        self.head_dim = d.of(8, 16, 32, 48, 128, 272)
        lengths = [d.of(0, 1, 2, 17, 70) for _ in range(d.of(0, 1, 2, 3))]
        self.rows = sum(lengths)
        self.cu_seqlens = d.offsets(self.rows) if d.strays() else np.cumsum([0, *lengths])
        self.num_pages = d.of(1, 3, 5)
        shape = (self.num_pages, self.heads, d.number(ops.PAGE_TOKENS) or 64, self.head_dim)
        if d.strays() or not isinstance(shape[2], int) or not 0 <= shape[2] < 100:
            shape = (self.num_pages, self.heads, d.of(0, 1, 63), self.head_dim)
        self.keys, self.values = (np.ones(shape, np.float32) for _ in range(2))
        pages = d.of(2, 3, 4)
        self.table = d.ints(len(lengths) * pages, self.num_pages)
        if isinstance(self.table, np.ndarray):
            self.table = self.table.reshape(len(lengths), pages)
        self.kv_lens = [d.number(length + d.of(0, 0, 5, 58)) for length in lengths]

    @property
    def places(self) -> tuple[Any, Any, Any]:
        return self.cu_seqlens, self.table, self.kv_lens


def append_kv_cache(d: Draw) -> Any:
    pages = Pages(d)
    columns = pages.heads * pages.head_dim
    k, v = d.floats(pages.rows, columns), d.floats(pages.rows, columns)
    ops.append_kv_cache(pages.keys, pages.values, k, v, *pages.places, **d.options())
    return pages.keys.reshape(-1, pages.head_dim)


def paged_attention(d: Draw) -> Any:
    pages = Pages(d)
    heads = pages.heads * pages.group
    return ops.paged_attention(
        d.floats(pages.rows, heads * pages.head_dim),
        pages.keys,
        pages.values,
        *pages.places,
        num_heads=d.number(heads),
        scale=d.of(None, 0.1, 0.0, -1.0, np.nan, np.inf),
        window=d.number(d.of(-1, 0, 3)),
        soft_cap=d.of(0.0, 0.0, 5.0, -1.0, np.nan, np.inf, 1e-30),
        alibi_slopes=d.of(None, None, d.floats(heads)),
        **d.options(),
    )


def rope(d: Draw) -> Any:
    rows, heads, head_dim = d.size(), d.of(1, 2, 3), d.of(0, 8, 16, 48, 4112)
    return ops.rope(
        d.floats(min(rows, 5), heads * head_dim),
        d.offsets(min(rows, 5)),
        d.floats(d.of(0, 1, head_dim // 4, head_dim // 2)),
        num_heads=d.number(heads),
        position_ids=d.maybe(d.ints(min(rows, 5), 100)),
        **d.options(),
    )


def layer_norm(d: Draw) -> Any:
    rows, columns = d.size(), d.size()
    gamma, beta, eps = d.norm(columns)
    residual = d.maybe(d.floats(rows, columns))
    x, dtype = d.floats(rows, columns), d.of("float32", "bfloat16")
    if d.of(True, False):
        return ops.rms_norm(x, gamma, eps=eps, residual=residual, dtype=dtype)
    return ops.layer_norm(x, gamma, beta, eps=eps, residual=residual, dtype=dtype)


def embed(d: Draw) -> Any:
    tokens, rows, columns, types = d.size(), d.of(1, 7, 70), d.size(), d.of(1, 2)
    return ops.embed(
        d.ints(tokens, rows),
        d.offsets(tokens),
        d.floats(rows, columns),
        position=d.maybe(d.floats(140, columns)),
        type=d.maybe(d.floats(types, columns)),
        type_ids=d.maybe(d.ints(tokens, types)),
        position_ids=d.maybe(d.ints(tokens, 130)),
        position_offset=d.number(d.of(0, 2, 140)),
        norm=d.maybe(d.norm(columns)),
        **d.options(),
    )


def log_softmax(d: Draw) -> Any:
    return ops.log_softmax(d.floats(d.size(), d.size()), dtype=d.of("float32", "bfloat16"))


def pool(d: Draw) -> Any:
    rows, columns = d.size(), d.size()
    known = ("cls", "mean", "max", "last", "mean_sqrt", "weighted_mean")
    pooling = d.of(*known, *["median"] * d.strays())
    normalize, dtype = d.of(False, True), d.of("float32", "bfloat16")
    return ops.pool(
        d.floats(rows, columns), d.offsets(rows), pooling, normalize=normalize, dtype=dtype
    )


def sparse_pool(d: Draw) -> Any:
    rows, k, n = d.size(), d.size(), d.of(0, 1, 63, 64, 65, 192, 193, 400)
    return ops.sparse_pool(
        d.floats(rows, k),
        d.floats(n, k),
        d.offsets(rows),
        bias=d.maybe(d.floats(n)),
        sum=d.of(False, True),
        twice=d.of(False, True),
        dtype=d.of("float32", "bfloat16"),
    )


FUNCTIONS = [
    gemm, feed_forward, qkv_rope, attention, append_kv_cache, paged_attention, rope, layer_norm,
    embed, log_softmax, pool, sparse_pool,
]  # fmt: skip


def test_every_function_is_here() -> None:
    names = ("dense", "kv_cache", "rowwise", "varlen_attention")
    modules = [f"{ops.__name__}.{name}" for name in names]
    named = {name for name in vars(ops) if getattr(vars(ops)[name], "__module__", "") in modules}
    public = {name for name in named if not name.startswith("_")} - {"FloatArray"}
    assert public == {function.__name__ for function in FUNCTIONS} | {"rms_norm"}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_result_or_an_exception(function: Callable[[Draw], Any], data: st.DataObject) -> None:
    try:
        found = function(Draw(data))
    except EXPECTED:
        return
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    assert found.ndim == 2


def test_heads_that_are_too_large() -> None:
    """Scratch of 4,096 floats: heads of 8,192 columns used to write beyond it."""
    x, weight = np.ones((2, 1)), np.ones((3 * 8192, 1))
    with pytest.raises(ValueError, match="head_dim is 8192, expected at most 4096"):
        ops.qkv_rope(x, weight, None, [0, 2], num_heads=1, query_norm=(np.ones(8192), 1e-6))
    most = ops.qkv_rope(x, weight[: 3 * 4096], None, [0, 2], num_heads=1)
    np.testing.assert_array_equal(most, np.ones((2, 3 * 4096)))


def test_arrays_without_elements_take_no_memory() -> None:
    """Orders of columns used to be made for as many as a shape says."""
    wide, tall = np.empty((0, 1 << 40), np.float32), np.empty((1 << 40, 0), np.float32)
    x = np.ones((1, 16))
    with pytest.raises(ValueError, match="weight has shape"):
        ops.qkv_rope(x, tall, None, [0, 1], num_heads=2, num_kv_heads=1)
    with pytest.raises(OverflowError, match="too large"):
        ops.rope(wide, [0, 0], np.ones(2), num_heads=1)
    with pytest.raises(ValueError, match="input_order"):
        ops.gemm_groupwise(x, wide, np.ones((1, 1)), bits=4, group=32, input_order=[0])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([2**31], "ids ranges from 2147483648"),
        (np.array([-(2**40)]), "ids ranges from -1099511627776"),
        (np.array([2**32 + 1], np.uint64), "ids ranges from 4294967297"),
        ([1.0], "ids has dtype float64, expected integers"),
        ([True], "ids has dtype bool, expected integers"),
        ([[1]], r"ids has shape \(1, 1\), expected one dimension"),
    ],
)
def test_ids_are_neither_wrapped_nor_truncated(ids: Any, message: str) -> None:
    word = np.arange(8, dtype=np.float32).reshape(4, 2)
    with pytest.raises(ValueError, match=message):
        ops.embed(ids, [0, 1], word)
    with pytest.raises(ValueError, match=message.replace("ids", "cu_seqlens")):
        ops.pool(word, ids, "mean")
    np.testing.assert_array_equal(ops.embed(np.array([3], np.int64), [0, 1], word), word[3:])


def test_what_are_no_numbers() -> None:
    for bad in ("text", [[1j]], [[None]]):
        with pytest.raises(ValueError, match=r"weight has dtype .*, expected numbers"):
            ops.gemm(np.ones((1, 1)), bad)


def test_tables_of_too_many_distances() -> None:
    x = np.ones((2, 16))
    with pytest.raises(ValueError, match="max_distance is 2147483647, expected at most"):
        ops.attention(
            x, x, x, [0, 2], num_heads=1, bucket_table=np.ones((8, 1)), max_distance=2**31 - 1
        )
    with pytest.raises(ValueError, match="both at most 16384"):
        ops.attention(
            x, x, x, [0, 2], num_heads=1, position_keys=np.ones((16, 16)), buckets=8,
            max_distance=2**31 - 1,
        )  # fmt: skip
