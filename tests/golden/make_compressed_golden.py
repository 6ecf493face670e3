"""Writes compressed_tensors.npz: layers that the package compressed-tensors packed, and what it
makes of them again.

    pip install compressed-tensors
    python tests/golden/make_compressed_golden.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

# Name -> (format, shape, arguments of the quantisation).
CASES: dict[str, tuple[str, tuple[int, int], dict[str, Any]]] = {
    "int4 groups": (
        "pack-quantized",
        (10, 128),
        {"num_bits": 4, "strategy": "group", "group_size": 32},
    ),
    "int4 groups zeros": (
        "pack-quantized",
        (12, 128),
        {"num_bits": 4, "strategy": "group", "group_size": 64, "symmetric": False},
    ),
    "int4 rows": ("pack-quantized", (5, 70), {"num_bits": 4, "strategy": "channel"}),
    "int4 rows zeros": (
        "pack-quantized",
        (5, 70),
        {"num_bits": 4, "strategy": "channel", "symmetric": False},
    ),
    "int4 narrow groups": (
        "pack-quantized",
        (6, 48),
        {"num_bits": 4, "strategy": "group", "group_size": 16},
    ),
    "int8 groups": (
        "pack-quantized",
        (10, 128),
        {"num_bits": 8, "strategy": "group", "group_size": 32},
    ),
    "int8 packed rows": ("pack-quantized", (6, 66), {"num_bits": 8, "strategy": "channel"}),
    "int8 rows": ("int-quantized", (6, 66), {"num_bits": 8, "strategy": "channel"}),
    "int8 rows zeros": (
        "int-quantized",
        (6, 66),
        {"num_bits": 8, "strategy": "channel", "symmetric": False},
    ),
    "int8 whole": ("int-quantized", (6, 64), {"num_bits": 8, "strategy": "tensor"}),
}


def _parameters(
    weight: torch.Tensor, bits: int, groups: int, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points [rows, groups], from the range of values of each group."""
    rows = weight.reshape(len(weight), groups, -1)
    low, high = rows.amin(2).clamp(max=0), rows.amax(2).clamp(min=0)
    most = (1 << (bits - 1)) - 1
    if symmetric:
        scale = torch.maximum(-low, high) / most
        return scale, torch.zeros_like(scale, dtype=torch.int8)
    scale = (high - low) / ((1 << bits) - 1)
    zero = torch.clamp(torch.round(-low / scale) - most - 1, -most - 1, most)
    return scale, zero.to(torch.int8)


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    found: dict[str, np.ndarray] = {}
    for name, (form, shape, arguments) in CASES.items():
        weight = torch.randn(shape, generator=generator) * 0.1
        strategy, bits = arguments["strategy"], arguments["num_bits"]
        symmetric = arguments.get("symmetric", True)
        groups = shape[1] // arguments["group_size"] if strategy == "group" else 1
        whole = weight.reshape(1, -1) if strategy == "tensor" else weight
        scale, zero = _parameters(whole, bits, groups, symmetric)
        if strategy == "tensor":
            scale, zero = scale.reshape(1), zero.reshape(1)
        scale = scale.half().float()
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments))
        compressor = BaseCompressor.get_value_from_registry(form)
        state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
        packed = compressor.compress(state, scheme)
        for part, tensor in packed.items():
            found[f"{name}|{part}"] = tensor.numpy()
        values = compressor.decompress(dict(packed), scheme)["weight"]
        found[f"{name}|values"] = values.numpy()
    np.savez_compressed(Path(__file__).parent / "compressed_tensors.npz", **found)


if __name__ == "__main__":
    main()
