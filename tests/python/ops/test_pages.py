"""Keys and values in pages, and attention over them, on every device and dtype."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import reference
from cases import offsets
from packhorse import ops
from pages import PAGE, PagedSequences, quantize_heads
from precisions import Precision

pytestmark = pytest.mark.arm

Random = np.random.Generator
SLOPES = [0.5, 0.25, 0.0, 1.0, 0.02, 0.125]
BIASES = np.random.default_rng(1).normal(0, 2, (6, 130)).astype(np.float32)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 0.3},
    "narrow window": {"window": 5},
    "window": {"window": 100},
    "wide window": {"window": 700},
    "soft cap": {"soft_cap": 5.0},
    "alibi": {"alibi_slopes": SLOPES},
    "all": {"alibi_slopes": SLOPES, "soft_cap": 30.0, "window": 300},
    "near distances": {"distance_bias": BIASES[:, :3]},
    "distances": {"distance_bias": BIASES, "scale": 1.0},
    "distances with a cap": {"distance_bias": BIASES, "soft_cap": 30.0, "window": 300},
}


def on(device: str) -> dict[str, Any]:
    """The device with a dtype that it computes in."""
    return {"device": device, "dtype": "float32" if device == "cpu" else "float16"}


@pytest.fixture(params=[False, True], ids=["pages", "float8 pages"])
def float8(request: pytest.FixtureRequest, device: str) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def head_dim_multiple(device: str) -> int:
    """The number that head sizes must be a multiple of on this device, by its own error message."""
    try:
        one = np.ones((1, 1, PAGE, 1))
        ops.paged_attention(
            np.ones((1, 1)), one, one, [0, 1], [[0]], [1], num_heads=1, **on(device)
        )
    except ValueError as error:
        return int(re.findall(r"head_dim 1 is not a positive multiple of (\d+)", str(error))[0])
    return 1


def check(sequences: PagedSequences, takes: dict[int, int], precision: Precision, **options: Any):
    """One step against the reference."""
    before = list(sequences.done)
    for name in ("alibi_slopes", "distance_bias"):
        if name in options:
            options[name] = options[name][: sequences.num_heads]
    found = sequences.step(takes, **options)
    window = options.pop("window", -1)
    head_dim = sequences.q[0].shape[1] // sequences.num_heads
    for b, count in takes.items():
        queries = slice(before[b], before[b] + count)
        expected = reference.attention(
            sequences.q[b][queries],
            sequences.as_cached(sequences.k[b][: queries.stop]),
            sequences.as_cached(sequences.v[b][: queries.stop]),
            [0, count],
            [0, queries.stop],
            sequences.num_heads,
            sequences.k[b].shape[1] // head_dim,
            causal=options.pop("causal", True),
            window=(window, -1),
            **options,
        )
        # The weights of the values are rounded as well as the result.
        precision.check(found[b], expected, steps=2)


@pytest.mark.parametrize("head_dim", [8, 16, 24, 32, 40, 64, 80, 96, 104, 112, 128, 256])
def test_head_sizes(
    precision: Precision, device: str, head_dim: int, head_dim_multiple: int, float8: bool
) -> None:
    sequences = PagedSequences(
        [70, 1, 3], num_heads=3, num_kv_heads=1, head_dim=head_dim, precision=precision,
        device=device, float8=float8,
    )  # fmt: skip
    if head_dim % head_dim_multiple != 0:
        with pytest.raises(ValueError, match=f"head_dim {head_dim} is not a positive multiple"):
            sequences.step({0: 1})
        return
    check(sequences, {0: 68, 1: 1, 2: 2}, precision)
    check(sequences, {2: 1, 0: 2}, precision)


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads"), [(1, 1), (2, 2), (4, 2), (9, 3), (6, 1), (40, 2)]
)
def test_grouped_queries(
    precision: Precision, device: str, num_heads: int, num_kv_heads: int, float8: bool
) -> None:
    sequences = PagedSequences(
        [130, 9, 65], num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=32,
        precision=precision, device=device, float8=float8,
    )  # fmt: skip
    check(sequences, {0: 129, 1: 0, 2: 64}, precision)
    check(sequences, {0: 1, 1: 9, 2: 1}, precision)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_prompts_and_single_tokens(
    precision: Precision, device: str, options: dict[str, Any], float8: bool
) -> None:
    sequences = PagedSequences(
        [1100, 600, 1, 40, 513, 512], num_heads=6, num_kv_heads=2, head_dim=32,
        precision=precision, device=device, float8=float8,
    )  # fmt: skip
    for b, count in ((0, 1027), (1, 512), (4, 512), (5, 511)):
        sequences.skip(b, count)
    check(sequences, {0: 70, 1: 1, 2: 1, 3: 30, 4: 1, 5: 1}, precision, **options)
    check(sequences, {3: 1, 1: 87, 0: 1}, precision, **options)


@pytest.mark.parametrize("group", [1, 3])
def test_all_keys(precision: Precision, device: str, group: int, float8: bool) -> None:
    """Not causal: queries see all keys of their sequence, as many as there are, and their bits do
    not depend on other queries."""
    lengths, counts = [70, 0, 1, 600, 64, 5], [1, 3, 9, 2, 100, 0]
    sequences = PagedSequences(
        lengths, num_heads=2 * group, num_kv_heads=2, head_dim=32, precision=precision,
        device=device, float8=float8,
    )  # fmt: skip
    for b, length in enumerate(lengths):
        sequences.skip(b, length)
    rng = np.random.default_rng(3)
    q = precision.round(rng.normal(0, 1.5, (sum(counts), 64 * group)))

    def attend(rows: Any, counts: list[int], of: list[int]) -> Any:
        return ops.paged_attention(
            rows, sequences.keys, sequences.values, offsets(counts), sequences.table[of],
            [lengths[b] for b in of], num_heads=2 * group, causal=False, **sequences.scales,
            **sequences.on,
        )  # fmt: skip

    found = attend(q, counts, [0, 1, 2, 3, 4, 5])
    k, v = (sequences.as_cached(np.concatenate(rows)) for rows in (sequences.k, sequences.v))
    expected = reference.attention(q, k, v, offsets(counts), offsets(lengths), 2 * group, 2)
    precision.check(found, expected, steps=2)
    first = offsets(counts)[4]
    for row in (first, first + 50):
        np.testing.assert_array_equal(attend(q[row : row + 1], [1], [4])[0], found[row])
    with pytest.raises(ValueError, match="not causal has a window or a term"):
        ops.paged_attention(
            q[:1], sequences.keys, sequences.values, [0, 1], sequences.table[:1], [70],
            num_heads=2 * group, causal=False, window=3, **sequences.scales, **sequences.on,
        )  # fmt: skip


def test_appended_rows(precision: Precision, device: str, rng: Random) -> None:
    """Rows of pages beside those of new tokens stay as they are."""
    keys, values = (precision.round(rng.normal(0, 1, (5, 2, PAGE, 16))) for _ in range(2))
    expected = keys.copy(), values.copy()
    k, v = (rng.normal(0, 1, (5, 32)).astype(np.float32) for _ in range(2))
    table = [[3, 0], [1, -1], [2, 4]]
    cu_seqlens, kv_lens = [0, 2, 2, 5], [65, 0, 66]
    where = [(3, 63), (0, 0), (2, 63), (4, 0), (4, 1)]
    for pages, rows in zip(expected, (k, v), strict=True):
        for (page, at), row in zip(where, rows, strict=True):
            pages[page, :, at] = precision.activations(row.reshape(2, 16))
    ops.append_kv_cache(
        keys, values, k, v, cu_seqlens, table, kv_lens, device=device, dtype=precision.name
    )
    np.testing.assert_array_equal(keys, expected[0])
    np.testing.assert_array_equal(values, expected[1])


def test_appended_rows_in_float8(precision: Precision, device: str, rng: Random) -> None:
    """Each head of a token has a scale of its own, by its largest number; float32's whole range."""
    d = 48
    k = rng.normal(0, 1, (6, 2, d)).astype(np.float32)
    k[1] *= np.float32(1e38)
    k[2] *= np.float32(1e-35)
    k[3, 0] = 0
    k[4] *= np.logspace(-8, 3, d, dtype=np.float32)  # down to numbers that become zero
    k[5, 1, 7] = np.inf
    k = precision.round(k)
    v = precision.round(rng.normal(0, 1, (6, 2, d)))
    v[3, 1, 0] = np.nan
    shape = (2, 2, PAGE, d)
    keys, values = (np.full(shape, 5.0, np.float32) for _ in range(2))
    key_scales, value_scales = (np.full(shape[:3], 0.25, np.float32) for _ in range(2))
    ops.append_kv_cache(
        keys, values, k.reshape(6, -1), v.reshape(6, -1), [0, 6], [[1]], [9],
        key_scales=key_scales, value_scales=value_scales, dtype=precision.name, device=device,
    )  # fmt: skip
    for pages, scales, rows in ((keys, key_scales, k), (values, value_scales, v)):
        assert (pages[0] == 5).all()
        assert (pages[1, :, [0, 1, 2, 9]] == 5).all()
        assert (scales[0] == 0.25).all()
        assert (scales[1, :, [0, 1, 2, 9]] == 0.25).all()
        finite = np.isfinite(rows).all(axis=2)
        with np.errstate(invalid="ignore"):
            numbers, expected = quantize_heads(rows.reshape(-1, d))
        found = pages[1, :, 3:9].swapaxes(0, 1)
        of = scales[1, :, 3:9].swapaxes(0, 1)
        np.testing.assert_array_equal(found[finite], numbers.reshape(6, 2, d)[finite])
        np.testing.assert_array_equal(of[finite], expected.reshape(6, 2)[finite])
        assert np.isnan(of[~finite]).all()
        assert (~finite).sum() == 1


def test_errors_of_float8_pages(device: str) -> None:
    d = 16
    pages, scales = np.zeros((3, 1, PAGE, d), np.float32), np.zeros((3, 1, PAGE), np.float32)
    rows = np.zeros((4, d))

    def append(**changed: Any) -> None:
        given = {"key_scales": scales, "value_scales": scales, **changed}
        ops.append_kv_cache(pages, pages, rows, rows, [0, 4], [[2]], [4], **given, **on(device))

    append()
    with pytest.raises(ValueError, match="key_scales and value_scales: one is given"):
        append(key_scales=None)
    with pytest.raises(ValueError, match=r"value_scales have shape \(3, 1, 8\), expected .*64"):
        append(value_scales=scales[:, :, :8])
    with pytest.raises(ValueError, match="key_scales: expected a writeable C-contiguous float32"):
        append(key_scales=scales.astype(float))


def test_empty(precision: Precision, device: str) -> None:
    none = np.zeros((0, 2, PAGE, 16), np.float32)
    rows = np.zeros((0, 32))
    on: dict[str, Any] = {"device": device, "dtype": precision.name}
    for offset, table, lens in (
        ([0], np.zeros((0, 3), int), []),
        ([0, 0], np.zeros((1, 0), int), [0]),
    ):
        ops.append_kv_cache(none, none, rows, rows, offset, table, lens, **on)
        found = ops.paged_attention(rows, none, none, offset, table, lens, num_heads=2, **on)
        assert found.shape == (0, 32)


def test_pages_out_of_sight_are_not_read(precision: Precision, device: str) -> None:
    """Pages before a window may belong to others: the table's entries for them are not read."""
    sequences = PagedSequences([300], precision=precision, device=device)
    sequences.skip(0, 290)
    whole = sequences.table.copy()
    with_all = sequences.step({0: 10}, window=100)[0]
    sequences.done[0] = 290
    gone = sequences.table[0, :2]
    sequences.keys[gone] = sequences.values[gone] = np.nan
    found = ops.paged_attention(
        sequences.q[0][290:300], sequences.keys, sequences.values, [0, 10],
        np.where(np.isin(whole, gone), -5, whole), [300], num_heads=2, window=100, **sequences.on,
    )  # fmt: skip
    np.testing.assert_array_equal(found, with_all)


def test_tokens_before_a_window_do_not_leak(precision: Precision, device: str) -> None:
    """A page that a window begins in may hold anything before it, for a single token on the CPU."""
    if device != "cpu":
        pytest.skip("kernels of other devices multiply such values by 0")
    sequences = PagedSequences([300], precision=precision, device=device)
    sequences.skip(0, 299)
    expected = sequences.step({0: 1}, window=100)[0]
    sequences.done[0] = 299
    page, begin = divmod(299 - 100, PAGE)
    sequences.values[sequences.table[0, page], :, :begin] = np.nan
    found = ops.paged_attention(
        sequences.q[0][299:300], sequences.keys, sequences.values, [0, 1], sequences.table, [300],
        num_heads=2, window=100, **sequences.on,
    )  # fmt: skip
    np.testing.assert_array_equal(found, expected)


def test_neighbours_do_not_leak(precision: Precision, device: str, float8: bool) -> None:
    """NaN and Inf in one sequence leave the bits of the others alone."""
    for poison in (np.nan, np.inf):
        clean = PagedSequences([70, 30, 5], precision=precision, device=device, float8=float8)
        dirty = PagedSequences([70, 30, 5], precision=precision, device=device, float8=float8)
        for rows in (dirty.q, dirty.k, dirty.v):
            rows[1][:] = poison
        takes = {0: 70, 1: 30, 2: 5}
        expected, found = clean.step(takes), dirty.step(takes)
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[2], expected[2])
        assert not np.isfinite(found[1]).any()


def test_errors(device: str, head_dim_multiple: int) -> None:
    d = head_dim_multiple
    pages = np.zeros((3, 1, PAGE, d), np.float32)
    q, kv = np.zeros((4, 2 * d)), np.zeros((4, d))
    good: dict[str, Any] = {
        "keys": pages, "values": pages, "cu_seqlens": [0, 4], "table": [[2]], "kv_lens": [4],
        **on(device),
    }  # fmt: skip

    def attention(**changed: Any) -> None:
        ops.paged_attention(**{"q": q, "num_heads": 2, **good, **changed})

    def append(**changed: Any) -> None:
        ops.append_kv_cache(**{"k": kv, "v": kv, **good, **changed})

    attention()
    append()
    for call, changed, message in [
        (attention, {"q": q[:, :d]}, r"q is .*, expected \[4, "),
        (attention, {"num_heads": 0}, "num_heads 0"),
        (attention, {"soft_cap": -1.0}, "soft_cap is -1"),
        (attention, {"soft_cap": np.nan}, "soft_cap is nan"),
        (attention, {"alibi_slopes": np.ones(3)}, "alibi_slopes: expected a vector of 2"),
        (attention, {"distance_bias": np.ones((3, 4))}, "distance_bias: expected .num_heads"),
        (attention, {"distance_bias": np.ones((2, 4)), "alibi_slopes": np.ones(2)}, "one of them"),
        (attention, {"cu_seqlens": [0, 3]}, "4 tokens"),
        (append, {"k": q}, r"k is .*, expected \[4, "),
        (append, {"v": kv[:3]}, r"v is .*, expected \[4, "),
        (append, {"keys": [[[[1.0]]]]}, "keys have shape"),
        (append, {"keys": pages.astype(float)}, "keys: expected a writeable C-contiguous float32"),
        (append, {"keys": pages[:, :, :, ::2]}, "values have shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            call(**changed)
    for changed, message in [
        ({"keys": pages[:, :, :8]}, r"keys have shape \(3, 1, 8, .*expected \(pages, heads"),
        ({"values": pages[:2]}, "values have shape"),
        ({"kv_lens": [3]}, r"kv_lens\[0\] is 3, expected 4 to 64"),
        ({"kv_lens": [65]}, r"kv_lens\[0\] is 65, expected 4 to 64"),
        ({"kv_lens": [4, 4]}, "for 1 sequences"),
        ({"table": [[2], [1]]}, "for 1 sequences"),
        ({"table": [2]}, "table has shape"),
        ({"table": [[3]]}, r"table\[0, 0\] is 3, expected 0 to 2"),
        ({"table": [[-1]]}, r"table\[0, 0\] is -1, expected 0 to 2"),
        ({"table": [[0.5]]}, "table has dtype float64, expected integers"),
    ]:
        for call in (attention, append):
            with pytest.raises(ValueError, match=message):
                call(**changed)


@pytest.mark.parametrize("with_positions", [False, True])
@pytest.mark.parametrize(("head_dim", "dims"), [(16, 16), (64, 32), (48, 2), (80, 80)])
def test_rope(
    precision: Precision, device: str, rng: Random, head_dim: int, dims: int, with_positions: bool
) -> None:
    cu_seqlens = offsets([3, 0, 70, 1])
    x = precision.round(rng.normal(0, 1, (74, 3 * head_dim)))
    frequencies = reference.rope_frequencies(10000, dims)
    position_ids = rng.integers(0, 5000, 74) if with_positions else None
    found = ops.rope(
        x, cu_seqlens, frequencies, num_heads=3, position_ids=position_ids, device=device,
        dtype=precision.name,
    )  # fmt: skip
    at = reference.positions(cu_seqlens) if position_ids is None else position_ids
    expected = reference.rotate(x.reshape(74, 3, head_dim), at, frequencies)
    precision.check(found, expected.reshape(74, -1))


def test_keys_without_values_are_refused() -> None:
    pages, one = np.zeros((1, 1, PAGE, 16), np.float32), np.ones((1, 16))
    with pytest.raises(ValueError, match="k and v: one is given, expected both or none"):
        ops.paged_attention(one, pages, pages, [0, 1], [[0]], [1], num_heads=1, k=one)
    frozen = pages.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="values: expected a writeable"):
        ops.paged_attention(one, pages, frozen, [0, 1], [[0]], [1], num_heads=1, k=one, v=one)
