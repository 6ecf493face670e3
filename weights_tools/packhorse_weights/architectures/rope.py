"""Scaled rotary positions: what transformers makes of `rope_parameters` or `rope_scaling`.

linear   frequencies divided by a factor (Chen et al., arXiv 2306.15595)
llama3   low frequencies divided by a factor, high ones kept, a ramp in between (Llama 3.1)
yarn     likewise, by rotations within the trained length, and scores scaled (arXiv 2309.00071)
dynamic  theta grows with the longest sequence of a batch beyond the trained length (NTK-aware
         scaling): within it, to which sequences are held here, plain rotation
longrope each frequency divided by a factor of its own (arXiv 2402.13753); those of sequences within
         the trained length: others would change them from one sequence to the next
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Set
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError

Floats = npt.NDArray[np.float32]

_ALWAYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_FIELDS = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": {
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    },
    "yarn": {
        "factor",
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "original_max_position_embeddings",
    },
    "longrope": {
        "factor",
        "short_factor",
        "long_factor",
        "attention_factor",
        "original_max_position_embeddings",
    },
}


class Rope(NamedTuple):
    spec: dict[str, Any]  # `attention.rope` of the spec
    longest: int | None = None  # longest sequence in tokens for which it is right; None: no limit


def rope_section(config: Config) -> Config:
    """The section of a config on the rotation; the newer form counts where the older is absent."""
    older = config.section("rope_scaling")
    section = older if older.fields else config.section("rope_parameters")
    for name, value in section.fields.items():
        if isinstance(value, dict):
            raise CheckpointError(
                f"{section.where}: {name!r:.80}: a rotation of its own for layers of one kind is "
                "not supported in this family"
            )
    return section


def rope_kind(section: Config) -> object:
    """The name of the way in which positions are scaled."""
    return section.fields.get("rope_type", section.fields.get("type", "default"))


def of_layers(config: Config, kind: str, theta: str, scaled: bool) -> Config:
    """The config as it is for layers of one kind, in families whose layers rotate differently.

    theta: the field of the older form. scaled: whether its `rope_scaling` is for these layers.
    """
    sections = config.section("rope_parameters")
    _ignore(sections, sections.fields.keys() - {"full_attention", "sliding_attention"})
    older = config.section("rope_scaling").fields if scaled else {}
    return Config(
        {
            **config.fields,
            "rope_theta": config.fields.get(theta),
            "rope_scaling": {**sections.section(kind).fields, **older},
            "rope_parameters": None,
        },
        config.where,
    )


def rope_theta(config: Config, default: float) -> float:
    """Theta of rotary positions, in families that do not scale them."""
    section = rope_section(config)
    if (kind := rope_kind(section)) != "default":
        raise CheckpointError(
            f"{section.where}: rope_type = {kind!r:.80} is not supported in this family"
        )
    found: float = rope(config, default, 2).spec["theta"]
    return found


def rope(config: Config, default_theta: float, head_dim: int, partial: bool = False) -> Rope:
    """The rotation of a decoder's config.json, in either form. Raises CheckpointError.

    partial: whether the family may rotate a part of each head alone (`partial_rotary_factor`).
    """
    scaling = rope_section(config)
    dims = head_dim
    if partial:
        share = config.number("partial_rotary_factor", 1.0)
        dims = int(head_dim * scaling.number("partial_rotary_factor", share))
        if dims < 2 or dims % 2:
            raise CheckpointError(
                f"{config.where}: partial_rotary_factor: {dims} of {head_dim} columns are rotated, "
                "expected an even number from 2 on"
            )
    else:
        config.refuse("partial_rotary_factor", 1, 1.0)
        scaling.refuse("partial_rotary_factor", 1, 1.0)
    found = _scaled(config, scaling, default_theta, dims)
    if dims == head_dim:
        return found
    if found.spec.get("attention_factor", 1.0) != 1:
        raise CheckpointError(
            f"{scaling.where}: scores are scaled, but {dims} of {head_dim} columns are rotated, "
            "which is not supported together"
        )
    return Rope({**found.spec, "dims": dims}, found.longest)


def _ignore(section: Config, names: Set[str]) -> None:
    if names:
        warnings.warn(
            f"{section.where}: {', '.join(sorted(names))}: ignored, as transformers does",
            stacklevel=2,
        )


def _scaled(config: Config, scaling: Config, default_theta: float, dims: int) -> Rope:
    """The rotation of `dims` columns. scaling: the section of the config that says how."""
    kind = rope_kind(scaling)
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise CheckpointError(
            f"{scaling.where}: rope_type = {kind!r:.80} is not supported; "
            f"supported: {', '.join(_FIELDS)}"
        )
    _ignore(scaling, scaling.fields.keys() - _ALWAYS - _FIELDS[kind])
    theta = scaling.positive("rope_theta", config.positive("rope_theta", default_theta))
    if kind == "default":
        return Rope({"theta": theta})
    if kind == "dynamic":
        scaling.positive("factor")
        return Rope({"theta": theta}, config.tokens("max_position_embeddings"))
    if kind == "linear":
        return Rope({"theta": theta, "factor": scaling.positive("factor")})
    exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    powers = (np.float64(theta) ** exponents.astype(np.float64)).astype(np.float32)
    trained = _trained_length(config, scaling)
    if kind == "llama3":
        return Rope({"frequencies": _listed(_llama3(scaling, powers, trained))})
    if scaling.fields.get("factor") is None:
        factor = config.tokens("max_position_embeddings") / trained
    else:
        factor = scaling.positive("factor")
    if kind == "yarn":
        frequencies = _yarn(scaling, powers, trained, theta, factor)
        scale = _yarn_scale(scaling, factor)
    else:
        frequencies = np.float32(1) / (_factors(scaling, "short_factor", len(powers)) * powers)
        scale = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    if scaling.fields.get("attention_factor") is not None:
        scale = scaling.positive("attention_factor")
    spec = {"frequencies": _listed(frequencies), "attention_factor": scale}
    return Rope(spec, trained if kind == "longrope" else None)


def _trained_length(config: Config, scaling: Config) -> int:
    """The length before scaling. Phi-3 keeps it beside the section, which takes precedence."""
    name = "original_max_position_embeddings"
    for place in (config, scaling):
        if place.fields.get(name) is not None:
            return place.tokens(name, low=2)
    return config.tokens("max_position_embeddings", low=2)


def _factors(config: Config, name: str, count: int) -> Floats:
    values = config.fields.get(name)
    if not isinstance(values, list) or len(values) != count:
        raise CheckpointError(f"{config.where}: {name}: expected a list of {count} numbers")
    fields: Mapping[str, Any] = {str(i): value for i, value in enumerate(values)}
    one = Config(fields, f"{config.where}: {name}")
    return np.array([one.positive(str(i)) for i in range(count)], np.float32)


def _listed(frequencies: Floats) -> list[float]:
    return [float(one) for one in frequencies]


def _llama3(config: Config, powers: Floats, trained: int) -> Floats:
    factor = config.positive("factor")
    low, high = (config.positive(name) for name in ("low_freq_factor", "high_freq_factor"))
    if high <= low:
        raise CheckpointError(
            f"{config.where}: high_freq_factor {high} is not above low_freq_factor {low}"
        )
    plain = np.float32(1) / powers
    lengths = np.float32(2 * math.pi) / plain  # tokens in a whole turn
    ramp = (np.float32(trained) / lengths - np.float32(low)) / np.float32(high - low)
    between = (1 - ramp) * plain / np.float32(factor) + ramp * plain
    slow = np.where(lengths > trained / low, plain / np.float32(factor), between)
    result: Floats = np.where(lengths < trained / high, plain, slow).astype(np.float32)
    return result


def _yarn(config: Config, powers: Floats, trained: int, theta: float, factor: float) -> Floats:
    dims = 2 * len(powers)

    def rotations(name: str, usual: float) -> float:
        return usual if config.fields.get(name) == 0 else config.positive(name, usual)

    def column(turns: float) -> float:
        """The column whose frequency makes so many turns within the trained length."""
        return dims * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))

    if theta == 1:
        raise CheckpointError(f"{config.where}: rope_theta is 1, which yarn cannot scale")
    first, last = column(rotations("beta_fast", 32.0)), column(rotations("beta_slow", 1.0))
    if config.boolean("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    last = last + 0.001 if first == last else last
    ramp = np.clip((np.arange(len(powers), dtype=np.float32) - first) / (last - first), 0, 1)
    kept = 1 - ramp.astype(np.float32)
    slowed = np.float32(1) / (np.float32(factor) * powers)
    result: Floats = (slowed * (1 - kept) + kept / powers).astype(np.float32)
    return result


def _yarn_scale(config: Config, factor: float) -> float:
    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    weights = [config.number(name, 0.0, 1e6) for name in ("mscale", "mscale_all_dim")]
    return scale(weights[0]) / scale(weights[1]) if all(weights) else scale(1.0)
