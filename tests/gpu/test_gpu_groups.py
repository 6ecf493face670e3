"""Dense layers whose weights are quantised in groups, on CUDA: kernels for few rows, for many rows
and for other devices than Hopper, which give the same bits. Reference: float64 on the float16
numbers that the values stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
import quantized_folders as folders
import torch
from checkpoints import GOLDEN
from gpu_support import (
    ACTIVATIONS,
    DEVICE,
    PRECISIONS,
    Array,
    linear,
    to_host,
    using_kernels,
    vector,
)
from models import tiny_spec, write_model
from packhorse import GenerationSession, Sampling, ops
from packhorse_weights import convert
from reference_low_precision import Groups, groups_weight, random_groups
from torch import Generator, Tensor

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
ROWS = [0, 1, 3, 8, 12, 17, 32, 33, 65, 300]
MOST = max(ROWS)
# n and k: less than a strip, a block and a group; odd multiples of 8; sums in parts of which the
# last is shorter, and in eight.
SHAPES = [(8, 8), (24, 200), (264, 72), (136, 1160), (72, 2104), (24, 4168), (2000, 4096)]


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


def check_rows(compute: Callable[[int], Array], expected: Tensor, steps: float = 2) -> None:
    """compute(rows): the result for so many first rows, computed at once."""
    whole = compute(MOST)
    HALF.check(whole, expected, steps)
    for rows in ROWS:
        same_bits(compute(rows), whole[:rows])


@pytest.mark.parametrize("form", [(4, 32, True), (4, 128, False), (8, 16, True), (8, 32, False)])
@pytest.mark.parametrize(("n", "k"), [(264, 72), (136, 1160), (72, 2048), (2000, 4096), (24, 4168)])
def test_last_bits(random: Generator, n: int, k: int, form: tuple[int, int, bool]) -> None:
    """Rows have the same sums in any number of them, to the bits that rounding hides until a
    residual takes the rounded result away."""
    weight, _ = make(8, n, k, form)
    x = to_host(HALF.normal(random, MOST, k))

    def compute(rows: int, residual: Array | None = None) -> Array:
        added = None if residual is None else residual[:rows]
        found: Array = ops.gemm_groupwise(x[:rows], *weight, residual=added, **options(form))
        return found

    with using_kernels("sm90"):
        whole = compute(MOST)
        rest = compute(MOST, -whole)
        assert np.count_nonzero(rest) > rest.size / 2
        for rows in (1, 17, 33, 128):
            same_bits(compute(rows), whole[:rows])
            same_bits(compute(rows, -whole), rest[:rows])


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_products(
    kernels: str, random: Generator, n: int, k: int, form: tuple[int, int, bool]
) -> None:
    weight, values = make(n + k, n, k, form)
    x = HALF.normal(random, MOST, k)
    bias = vector(random, n)
    residual = HALF.normal(random, MOST, n)
    added = to_host(residual)

    def compute(rows: int) -> Array:
        found: Array = ops.gemm_groupwise(
            to_host(x)[:rows], *weight, to_host(bias), residual=added[:rows], **options(form)
        )
        return found

    check_rows(compute, residual + linear(x, values, bias))


@pytest.mark.parametrize("activation", ["gelu", "silu", "relu"])
def test_activations(kernels: str, random: Generator, activation: ops.Activation) -> None:
    form = (4, 64, True)
    weight, values = make(1, 72, 264, form)
    x = HALF.normal(random, MOST, 264)

    def compute(rows: int) -> Array:
        found: Array = ops.gemm_groupwise(
            to_host(x)[:rows], *weight, activation=activation, **options(form)
        )
        return found

    check_rows(compute, linear(x, values, None, activation))


@pytest.mark.parametrize(("n", "k"), [(32, 8), (96, 72), (544, 1160), (64, 4096)])
def test_gate(kernels: str, random: Generator, n: int, k: int) -> None:
    form = (4, 32, True)
    weight, values = make(2, n, k, form)
    x = HALF.normal(random, MOST, k)
    bias = vector(random, n)

    def compute(rows: int) -> Array:
        found: Array = ops.gemm_groupwise(
            to_host(x)[:rows],
            *weight,
            to_host(bias),
            activation="silu",
            gated=True,
            **options(form),
        )
        return found

    sums = linear(x, values, bias).reshape(MOST, n // 32, 2, 16)
    gate, other = (sums[:, :, i].reshape(MOST, n // 2) for i in (0, 1))
    # The portable kernels round gate and other before they multiply them.
    check_rows(compute, ACTIVATIONS["silu"](gate) * other, 4)


@pytest.mark.parametrize(("n", "k"), [(8, 8), (24, 200), (136, 1160), (72, 2104)])
@pytest.mark.parametrize("form", [(4, 32, True), (8, 128, False)], ids=str)
def test_input_order(
    kernels: str, random: Generator, n: int, k: int, form: tuple[int, int, bool]
) -> None:
    """The bits are those of x with its columns in that order."""
    weight, values = make(6, n, k, form)
    order = np.random.default_rng(k).permutation(k)
    x = HALF.normal(random, MOST, k)
    ordered = to_host(x)[:, order]

    def compute(rows: int) -> Array:
        found: Array = ops.gemm_groupwise(
            to_host(x)[:rows], *weight, input_order=order, **options(form)
        )
        return found

    check_rows(compute, linear(x[:, torch.as_tensor(order, device="cuda")], values, None))
    for rows in (1, MOST):
        same_bits(compute(rows), ops.gemm_groupwise(ordered[:rows], *weight, **options(form)))


def test_input_order_of_a_gate(kernels: str, random: Generator) -> None:
    form = (4, 32, True)
    weight, _ = make(7, 96, 72, form)
    order = np.random.default_rng(1).permutation(72)
    x = to_host(HALF.normal(random, MOST, 72))
    given: dict[str, Any] = {"activation": "silu", "gated": True, **options(form)}
    for rows in (1, 17, MOST):
        found = ops.gemm_groupwise(x[:rows], *weight, input_order=order, **given)
        same_bits(found, ops.gemm_groupwise(x[:rows, order], *weight, **given))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_both_kernels(random: Generator, form: tuple[int, int, bool]) -> None:
    """The Hopper kernels have the bits of the portable one."""
    if torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("needs compute capability 9.0")
    weight, _ = make(3, 136, 2104, form)
    x = to_host(HALF.normal(random, 100, 2104))
    found = []
    for name in ("sm90", "portable"):
        for rows in (5, 40, 100):
            with using_kernels(name):
                found.append(ops.gemm_groupwise(x[:rows], *weight, **options(form)))
    for few in found:
        same_bits(few, found[2][: len(few)])


def test_one_part_is_a_dense_layer(random: Generator) -> None:
    """Where the sum is not cut, bits are those of a float16 layer of the same numbers, by the
    kernels of Hopper. (The portable kernel of float16 layers sums otherwise.)"""
    form = (4, 128, False)
    weight, values = make(4, 200, 392, form)
    x = to_host(HALF.normal(random, 70, 392))
    with using_kernels("sm90"):
        for rows in (1, 8, 30, 70):
            dense = ops.gemm(x[:rows], to_host(values), **HALF.options())
            same_bits(ops.gemm_groupwise(x[:rows], *weight, **options(form)), dense)


def test_values(random: Generator) -> None:
    """Every value of 8 bits with scales of all sizes, one at a time."""
    k = 256
    scales = np.float32([0.01, 1e-4, 3e-6, 6e-8, 100, -0.3]).astype(np.float16).astype(np.float32)
    values = np.tile(np.arange(256, dtype=np.float32), (len(scales) * 8, 1))
    of_rows = np.repeat(scales, 8)[:, None] * np.ones((1, 2), np.float32)
    minima = np.float32([-1e-3, 0.5]) * np.ones_like(of_rows)
    minima = minima.astype(np.float16).astype(np.float32)
    x = np.eye(k, dtype=np.float32)
    for low in (None, minima):
        found = ops.gemm_groupwise(x, values, of_rows, low, bits=8, group=128, **HALF.options())
        expected = groups_weight((values, of_rows, low), 8, 128, lambda a: a.astype(np.float16))
        np.testing.assert_array_equal(found, expected.T.astype(np.float32))


def test_device_arrays(random: Generator) -> None:
    form = (4, 32, False)
    weight, values = make(5, 40, 136, form)
    x = HALF.normal(random, 9, 136)
    bias = vector(random, 40)
    found = ops.gemm_groupwise(
        x.half(),
        *weight,
        bias.float(),
        residual=torch.ones_like(x[:, :40]).half(),
        bits=4,
        group=32,
    )
    here = torch.from_dlpack(found)
    assert here.is_cuda
    assert here.dtype == torch.float16
    HALF.check(to_host(here), 1 + linear(x, values, bias), 2)
    with pytest.raises(ValueError, match="scales lies on a device, expected host memory"):
        ops.gemm_groupwise(
            x.half(), weight[0], torch.ones((40, 5), device="cuda"), bits=4, group=32
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "bfloat16"}, "by float16, not bfloat16"),
        ({"x": np.zeros((1, 60)), "values": np.zeros((32, 60))}, "multiples of 8"),
        ({"scales": np.full((32, 2), 9000.0)}, "scale 9000, .* beyond float16's 65504"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    values, scales, _ = random_groups(np.random.default_rng(0), 32, 64, 4, 32, False)
    given = {"x": np.zeros((1, 64)), "values": values, "scales": scales, "bits": 4, "group": 32}
    with pytest.raises((ValueError, RuntimeError), match=message):
        ops.gemm_groupwise(**(given | HALF.options() | changes))


# --- sessions

PROMPTS = [[5, 9, 2, 33, 17, 40, 8], [12], [61, 3, 3, 7, 50] * 16, [1, 2]]
GREEDY = Sampling(max_new_tokens=12, ignore_eos=True, logprobs=2)


def generated(session: GenerationSession, prompts: list[list[int]]) -> list[Any]:
    return [
        (result.ids, np.asarray(result.logprobs).tobytes())
        for result in session.generate(prompts, GREEDY)
    ]


def load(path: Path, dtype: Any, **more: Any) -> GenerationSession:
    session = packhorse.Session.load(
        path, DEVICE, dtype, kv_tokens=1024, max_tokens=96, max_sequences=8, **more
    )
    assert isinstance(session, GenerationSession)
    return session


@pytest.mark.parametrize("quantize", ["int4", "int8"])
@pytest.mark.parametrize("model", ["llama", "gpt2", "qwen2"])
def test_generation(kernels: str, model: str, quantize: str, tmp_path: Path) -> None:
    """Alone and in a batch, bit for bit; the hidden states are near those of decoded weights."""
    folder = convert(
        GOLDEN / "generation" / model, tmp_path / "out", quantize=quantize, group_size=32
    )
    with load(folder, "stored") as session:
        assert session.dtype == "stored"
        together = generated(session, PROMPTS)
        alone = [generated(session, [ids])[0] for ids in PROMPTS]
        planned = packhorse.plan_memory(folder, DEVICE, "stored", kv_tokens=1024)
        assert planned.weights == session.memory_plan.weights
    assert together == alone
    hidden = []
    for dtype in ("stored", "float16"):
        with packhorse.Session.load(folder, DEVICE, dtype, kv_tokens=0, max_tokens=128) as encoder:
            hidden.append(encoder.run(PROMPTS, outputs=["hidden"]).hidden)
    error = np.square(hidden[0] - hidden[1]).mean() / np.square(hidden[1]).mean()
    assert error**0.5 < 0.01


@pytest.mark.parametrize(("quantize", "most"), [("int4", 0.35), ("int8", 0.6)])
def test_planned_bytes(quantize: str, most: float, tmp_path: Path) -> None:
    """The layers are no smaller than the blocks that they are packed in."""
    spec = tiny_spec(
        hidden_size=256,
        num_heads=4,
        intermediate_size=1024,
        max_seqlen=256,
        positions={"kind": "none"},
        attention={"mask": "causal", "rope": {"theta": 10000}},
        heads={"lm": {"tied": True}},
    )
    folder = convert(
        write_model(tmp_path / "whole", spec), tmp_path / "out", quantize=quantize, group_size=32
    )
    planned, decoded = (
        packhorse.plan_memory(folder, DEVICE, dtype, kv_tokens=64).weights
        for dtype in ("stored", "float16")
    )

    def of_layers(plan: Any) -> int:
        return sum(part.bytes for part in plan.buffers if ".ffn." in part.name)

    assert 0 < of_layers(planned) < most * of_layers(decoded)


def test_gguf(kernels: str) -> None:
    path = GOLDEN / "gguf" / "llama.gguf"
    with load(path, "stored") as session:
        together = generated(session, PROMPTS)
        assert together == [generated(session, [ids])[0] for ids in PROMPTS]
    assert packhorse.plan_memory(path, DEVICE, kv_tokens=64) == packhorse.plan_memory(
        path, DEVICE, "float16", kv_tokens=64
    )


def test_gptq(tmp_path: Path) -> None:
    layers = folders.all_layers(4, 32, True)
    packed = {name: folders.gptq(one, 4, 1) for name, one in layers.items()}
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}
    folder = folders.write_folder(tmp_path / "gptq", packed, quantization)
    found = []
    for dtype in ("stored", "float16"):
        with packhorse.Session.load(folder, DEVICE, dtype, kv_tokens=0, max_tokens=64) as session:
            found.append(session.run([[5, 9, 2], [12]], outputs=["hidden"]).hidden)
    np.testing.assert_allclose(found[0], found[1], rtol=0.02, atol=0.02)


def test_gptq_with_groups_by_activation(kernels: str, tmp_path: Path) -> None:
    """Alone and in a batch, bit for bit; the hidden states are near those of decoded weights."""
    layers = folders.all_layers(4, 32)
    folders.order_by_activation(layers)
    folder = folders.gptq_folder(tmp_path / "gptq", layers, 4)
    with load(folder, "stored") as session:
        together = generated(session, PROMPTS)
        assert together == [generated(session, [ids])[0] for ids in PROMPTS]
        planned = packhorse.plan_memory(folder, DEVICE, "stored", kv_tokens=1024)
        assert planned.weights == session.memory_plan.weights
        names = {buffer.name for buffer in planned.weights.buffers}
        assert {f"layers.1.{name}.input_order" for name in ("attention.qkv", "ffn.down")} <= names
    floats = folders.float_folder(tmp_path / "floats", layers)
    found = []
    for path, dtype in ((folder, "stored"), (floats, "float16")):
        with packhorse.Session.load(path, DEVICE, dtype, kv_tokens=0, max_tokens=128) as encoder:
            found.append(encoder.run(PROMPTS, outputs=["hidden"]).hidden)
    error = np.square(found[0] - found[1]).mean() / np.square(found[1]).mean()
    assert error**0.5 < 0.01
