"""Operators on device arrays give what they give on host arrays of the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gpu_support import DEVICE, Precision, norm_of, to_host, vector
from packhorse import DeviceArray, ops

OFFSETS = [0, 5, 5, 70, 96]
TOKENS, WIDTH = OFFSETS[-1], 64


class Case:
    """One call of every operator with PyTorch's arrays on the device."""

    def __init__(self, precision: Precision, random: torch.Generator) -> None:
        def matrix(*shape: int) -> torch.Tensor:
            return precision.normal(random, *shape).to(precision.dtype)

        def floats(size: int) -> torch.Tensor:
            return vector(random, size).float()

        gamma, beta, eps = norm_of(random, WIDTH)
        norm = (gamma.float(), beta.float(), eps)
        x, weight = matrix(TOKENS, WIDTH), matrix(WIDTH, WIDTH)
        up, down = (matrix(128, WIDTH), floats(128)), (matrix(WIDTH, 128), None)
        offsets = torch.tensor(OFFSETS, dtype=torch.int32, device="cuda")
        ids = torch.arange(TOKENS, dtype=torch.int32, device="cuda") % 50
        types = ids % 2
        self.calls: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
            "gemm": (ops.gemm, (x, weight), {}),
            "gemm-all": (
                ops.gemm,
                (x, weight, floats(WIDTH)),
                {"activation": "gelu", "residual": x, "norm": norm},
            ),
            "feed_forward": (ops.feed_forward, (x, up, down), {"residual": x, "norm": norm}),
            "attention": (ops.attention, (x, x, x, offsets), {"num_heads": 2}),
            "attention-host-offsets": (
                ops.attention,
                (x, x, x, OFFSETS, offsets),
                {"num_heads": 2, "alibi_slopes": floats(2), "causal": True},
            ),
            "layer_norm": (ops.layer_norm, (x, *norm[:2]), {"residual": x}),
            "rms_norm": (ops.rms_norm, (x, norm[0]), {}),
            "pool": (ops.pool, (x, offsets), {"normalize": True}),
            "pool-max": (ops.pool, (x, OFFSETS, "max"), {}),
            "embed": (
                ops.embed,
                (ids, offsets, matrix(50, WIDTH)),
                {
                    "position": matrix(80, WIDTH),
                    "type": matrix(2, WIDTH),
                    "type_ids": types,
                    "norm": norm,
                },
            ),
        }


def on_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu().numpy() if value.dtype == torch.int32 else to_host(value)
    return tuple(map(on_host, value)) if isinstance(value, tuple) else value


NAMES = [
    "gemm",
    "gemm-all",
    "feed_forward",
    "attention",
    "attention-host-offsets",
    "layer_norm",
    "rms_norm",
    "pool",
    "pool-max",
    "embed",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_bits_of_host_arrays(
    kernels: str, precision: Precision, random: torch.Generator, name: str
) -> None:
    function, arguments, options = Case(precision, random).calls[name]
    expected = function(
        *map(on_host, arguments),
        **{key: on_host(value) for key, value in options.items()},
        **precision.options(),
    )
    stream = torch.cuda.Stream()
    for order in (None, stream):
        found = function(*arguments, **options, stream=order)
        assert isinstance(found, DeviceArray)
        assert found.dtype == ("float32" if name.startswith("pool") else precision.name)
        assert found.numpy().tobytes() == expected.tobytes()
        assert torch.from_dlpack(found).float().cpu().numpy().tobytes() == expected.tobytes()


def test_chains_and_streams(precision: Precision, random: torch.Generator) -> None:
    """A result can be an argument, and inputs may be written late on the caller's stream."""
    x = precision.normal(random, TOKENS, WIDTH).to(precision.dtype)
    late = torch.zeros_like(x)
    weight = precision.normal(random, WIDTH, WIDTH).to(precision.dtype)
    expected = ops.gemm(ops.gemm(x, weight), weight).numpy()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(x)
        found = ops.gemm(ops.gemm(late, weight, stream=stream), weight)
    assert found.numpy().tobytes() == expected.tobytes()


def test_refusals(precision: Precision, random: torch.Generator) -> None:
    x = precision.normal(random, 16, WIDTH).to(precision.dtype)
    vector_of = torch.ones(WIDTH, device="cuda")
    other = torch.bfloat16 if precision.name == "float16" else torch.float16
    bad = torch.tensor([0, 9, 3, 16], dtype=torch.int32, device="cuda")
    ids = torch.full((16,), 64, dtype=torch.int32, device="cuda")
    one = torch.tensor([0, 16], dtype=torch.int32, device="cuda")
    host = np.ones((16, WIDTH), np.float32)
    on = precision.options()
    cases: list[tuple[Any, type[Exception], str]] = [
        (lambda: ops.gemm(x, host), ValueError, "weight is in host memory, the first argument"),
        (
            lambda: ops.gemm(host, x, **on),
            ValueError,
            "weight lies on a device, the first argument does",
        ),
        (lambda: ops.gemm(x.float(), x.float()), RuntimeError, "float16, bfloat16 or int8"),
        (lambda: ops.gemm(x, x.to(other)), ValueError, "weight is b?float16, expected b?float16"),
        (lambda: ops.gemm(x, x.T), ValueError, "weight is not contiguous"),
        (lambda: ops.layer_norm(x, x[0]), ValueError, "gamma is b?float16, expected float32"),
        (lambda: ops.layer_norm(x, vector_of[1:]), ValueError, "gamma: expected a vector of 64"),
        (
            lambda: ops.pool(x, bad),
            ValueError,
            r"cu_seqlens\[2\] = 3 after 9",
        ),
        (lambda: ops.pool(x, bad.long()), ValueError, "cu_seqlens is int64, expected int32"),
        (lambda: ops.pool(x, [0, 15]), ValueError, r"cu_seqlens\[1\] = 15, but there are 16"),
        (lambda: ops.embed(ids, one, x), ValueError, r"ids\[\d+\] = 64 is out of range"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()
    assert ops.pool(x, one).shape == (1, WIDTH)
    assert ops.gemm(x[:0], x).numpy().shape == (0, 16)
    assert ops.gemm(x, x).device == DEVICE
