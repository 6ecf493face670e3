"""The rotation of positions in a GGUF file, as a config.json says it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.errors import CheckpointError
from packhorse_weights.formats.gguf.metadata import Fields, Metadata, shortest

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_CONTEXT = 8192


def _llama3(factors: NDArray[np.float32], theta: float) -> Fields | None:
    """Returns the fields of Llama 3.1's scaling if it gives these factors, as llama.cpp's converter
    computes them, else None."""
    count, largest = len(factors), round(float(factors.max()), 4)
    lengths = 2 * np.pi * theta ** (np.arange(count) / count)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    ramp = (_LLAMA3_CONTEXT / lengths - low) / (high - low)
    made = 1 / ((1 - ramp) / largest + ramp)
    made = np.where(lengths < _LLAMA3_CONTEXT / high, 1, made)
    made = np.where(lengths > _LLAMA3_CONTEXT / low, largest, made)
    if not np.allclose(made, factors, rtol=1e-4):
        return None
    return {
        "rope_type": "llama3",
        "factor": largest,
        **_LLAMA3,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }


def _scaling(data: Metadata, fields: Fields, theta: float, rotated: int) -> Fields | None:
    kinds = {"none": "", "linear": "linear", "yarn": "yarn", "longrope": "longrope"}
    # Older files have only a factor.
    linear = data.decimal("rope.scale_linear", 1.0)
    kind = data.choice("rope.scaling.type", kinds, "linear" if linear != 1 else "none")
    factor = data.decimal("rope.scaling.factor", linear) or 1.0
    trained = data.tokens(
        "rope.scaling.original_context_length", default=fields["max_position_embeddings"]
    )
    attention = data.decimal("rope.scaling.attn_factor", 1.0)
    factors = data.factors("rope_freqs.weight", rotated // 2)
    short = data.factors("rope_factors_short.weight", rotated // 2)
    long = data.factors("rope_factors_long.weight", rotated // 2)
    if short is not None and long is not None:
        return {
            "rope_type": "longrope",
            "short_factor": short.tolist(),
            "long_factor": long.tolist(),
            "attention_factor": attention,
            "original_max_position_embeddings": trained,
        }
    if kind == "longrope":
        raise CheckpointError(f"{data.where}: longrope without rope_factors_short.weight")
    if factors is not None and (factors != 1).any():
        if kind:
            raise CheckpointError(f"{data.where}: {kind} scaling beside rope_freqs.weight")
        return _llama3(factors, theta) or {
            "rope_type": "longrope",
            "short_factor": factors.tolist(),
            "long_factor": factors.tolist(),
            "attention_factor": 1.0,
            "original_max_position_embeddings": fields["max_position_embeddings"],
        }
    if kind == "yarn":
        scaling: Fields = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": trained,
        }
        for name in ("beta_fast", "beta_slow"):
            if data.fields.get(f"rope.scaling.yarn_{name}") is not None:
                scaling[name] = data.decimal(f"rope.scaling.yarn_{name}")
        if attention != 1:
            scaling["attention_factor"] = attention * (0.1 * float(np.log(factor)) + 1)
        return scaling
    return {"rope_type": "linear", "factor": factor} if kind and factor != 1 else None


def read_rope(data: Metadata, fields: Fields, head_dim: int, theta: float = 10000.0) -> Fields:
    """Returns rope_theta, and where the file says so partial_rotary_factor and rope_scaling.

    `fields` are those of config.json so far, and `theta` is what counts without a key. Raises
    CheckpointError for a scaling that is not supported.
    """
    theta = shortest(data.positive("rope.freq_base", theta))
    rotated = data.integer("rope.dimension_count", default=head_dim)
    if rotated > head_dim or rotated % 2:
        raise CheckpointError(
            f"{data.where}.rope.dimension_count: {rotated} of heads of {head_dim} values; expected "
            "an even number of them"
        )
    found: Fields = {"rope_theta": theta}
    if rotated != head_dim:
        share = rotated / head_dim
        whole = int(share * head_dim) == rotated
        found["partial_rotary_factor"] = share if whole else float(np.nextafter(share, 1))
    if (scaling := _scaling(data, fields, theta, rotated)) is not None:
        found["rope_scaling"] = scaling
    return found
