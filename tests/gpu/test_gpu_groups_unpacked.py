"""Dense layers of many rows whose weights, quantised in groups, are unpacked to float16 first: the
bits are those of the kernels that multiply them packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
import torch
from gpu_groups import FORMS, HALF, make, options, same_bits
from gpu_support import DEVICE, Array, linear, to_host, using_kernels, vector
from models import tiny_spec, write_model
from packhorse import ops
from packhorse_weights import convert
from torch import Generator

pytestmark = pytest.mark.skipif(
    torch.cuda.get_device_capability(0) != (9, 0), reason="needs compute capability 9.0"
)
LEAST_UNPACKED_ROWS = 1024  # kLeastUnpackedRows
ROWS = 300
# n and k whose sums have one part, two, four, eight, and six of which the last is shorter.
SHAPES = [(264, 72), (136, 1160), (72, 2048), (2000, 4096), (24, 4168)]


@pytest.mark.parametrize("form", [(4, 32, True), (4, 128, False), (8, 16, True), (8, 32, False)])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_unpacked_rows(random: Generator, n: int, k: int, form: tuple[int, int, bool]) -> None:
    """From LEAST_UNPACKED_ROWS rows on the weight is unpacked, which changes no bit: not even those
    that rounding hides, until a residual takes the rounded result away."""
    weight, values = make(8, n, k, form)
    x = HALF.normal(random, 3000, k)
    bias = vector(random, n)
    rows_of_x = to_host(x)
    given: dict[str, Any] = {"bias": to_host(bias), **options(form)}

    def compute(rows: int, residual: Array | None = None) -> Array:
        added = None if residual is None else residual[:rows]
        found: Array = ops.gemm_groups(rows_of_x[:rows], *weight, residual=added, **given)
        return found

    with using_kernels("sm90"):
        whole = compute(3000)
        HALF.check(whole, linear(x, values, bias), 2)
        rest = compute(3000, -whole)
        assert np.count_nonzero(rest) > rest.size / 2
        for rows in (1, 17, 128, LEAST_UNPACKED_ROWS - 1, LEAST_UNPACKED_ROWS):
            same_bits(compute(rows), whole[:rows])
            same_bits(compute(rows, -whole), rest[:rows])


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("n", "k"), [(8, 8), (24, 200), (96, 1160), *SHAPES])
def test_unpacked_and_packed(
    random: Generator, n: int, k: int, form: tuple[int, int, bool]
) -> None:
    """Of few rows, too, with all that may follow a product."""
    weight, _ = make(9, n, k, form)
    x = to_host(HALF.normal(random, ROWS, k))
    bias = to_host(vector(random, n))
    order = np.random.default_rng(k).permutation(k)
    extras: list[dict[str, Any]] = [
        {"bias": bias, "activation": "gelu"},
        {"residual": to_host(HALF.normal(random, ROWS, n)), "activation": "relu"},
        {"bias": bias, "input_order": order},
    ]
    if n % 32 == 0:
        extras.append({"bias": bias, "activation": "silu", "gated": True})
    for extra in extras:
        found = []
        for least in (1, 1 << 40):
            with using_kernels("sm90", least):
                found.append(ops.gemm_groups(x, *weight, **extra, **options(form)))
        same_bits(*found)
        part = {name: each[:9] if name == "residual" else each for name, each in extra.items()}
        with using_kernels("sm90", 1):
            same_bits(ops.gemm_groups(x[:9], *weight, **part, **options(form)), found[0][:9])


@pytest.mark.parametrize(("n", "k"), [(32, 8), (96, 72), (544, 1160), (64, 4096)])
def test_unpacked_gate(random: Generator, n: int, k: int) -> None:
    form = (4, 32, True)
    weight, _ = make(10, n, k, form)
    x = to_host(HALF.normal(random, 1300, k))
    given: dict[str, Any] = {"activation": "silu", "gated": True, **options(form)}
    with using_kernels("sm90"):
        whole = ops.gemm_groups(x, *weight, **given)
        for rows in (1, 17, LEAST_UNPACKED_ROWS - 1, LEAST_UNPACKED_ROWS):
            same_bits(ops.gemm_groups(x[:rows], *weight, **given), whole[:rows])


@pytest.mark.parametrize("gated", [False, True])
def test_unpacked_slices(random: Generator, gated: bool) -> None:
    """A weight that is unpacked in two slices, of 4,224 and 4,096 output features."""
    form = (4, 128, False)
    n, k = 8320, 8200
    integers = np.random.default_rng(0)
    values = integers.integers(0, 16, (n, k)).astype(np.float32)
    scales = integers.uniform(0.001, 0.002, (n, (k + 127) // 128)).astype(np.float16)
    x = to_host(HALF.normal(random, LEAST_UNPACKED_ROWS, k))
    bias = to_host(vector(random, n))
    found = {}
    with using_kernels("sm90"):
        for rows in (LEAST_UNPACKED_ROWS, 100):
            found[rows] = ops.gemm_groups(
                x[:rows],
                values,
                scales.astype(np.float32),
                None,
                bias,
                gated=gated,
                **options(form),
            )
    same_bits(found[LEAST_UNPACKED_ROWS][:100], found[100])


@pytest.mark.parametrize("quantize", ["int4", "int8"])
def test_unpacked_session(quantize: str, tmp_path: Path) -> None:
    """Texts whose layers unpack their weights have the bits of each text alone, which does not:
    with rotated heads, a gate and residuals."""
    spec = tiny_spec(
        hidden_size=256,
        num_heads=4,
        intermediate_size=1024,
        max_seqlen=256,
        type_vocab_size=None,
        positions={"kind": "none"},
        attention={"mask": "causal", "rope": {"theta": 10000}},
        ffn={"kind": "gated", "activation": "silu"},
        heads={"lm": {"tied": True}},
    )
    folder = convert(
        write_model(tmp_path / "whole", spec), tmp_path / "out", quantize=quantize, group_size=32
    )
    integers = np.random.default_rng(3)
    texts = [integers.integers(0, 50, length).tolist() for length in (256, 1, 250, 200, 256, 249)]
    assert sum(map(len, texts)) > LEAST_UNPACKED_ROWS > max(map(len, texts))
    with packhorse.Session.load(folder, DEVICE, "stored", kv_tokens=0, max_tokens=2048) as session:
        together = session.run(texts, outputs=["hidden"]).hidden
        alone = [session.run([text], outputs=["hidden"]).hidden for text in texts]
    same_bits(together, np.concatenate(alone))
