"""Reads LoRA adapters: folders that PEFT wrote."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from packhorse_weights.adapters.module_patterns import ModulePattern
from packhorse_weights.architectures import FAMILIES
from packhorse_weights.architectures.base import Architecture
from packhorse_weights.config import Config, read_config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import has_file
from packhorse_weights.layout import STACKS, weight_shapes
from packhorse_weights.spec import Spec, upgraded, weight_sets
from packhorse_weights.tensor import Tensor, cast
from packhorse_weights.weight_files import read_file

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_LAYERS = (
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.output",
    "cross_attention.query",
    "cross_attention.key",
    "cross_attention.value",
    "cross_attention.output",
    "ffn.gate",
    "ffn.up",
    "ffn.down",
    *STACKS,
)
# Fields for changes beyond the product of a dense layer.
_REFUSED = (
    "use_dora",
    "use_qalora",
    "lora_bias",
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
    "layer_replication",
    "megatron_config",
    "alora_invocation_tokens",
    "arrow_config",
)
# Ways to begin a training that change the base model too.
_CHANGED_BASES = ("pissa", "olora", "corda", "loftq")
_NAME = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")
_MAX_ALPHA = 1e9
_MOST_PATTERNS = 4096  # names of modules, mostly
_MOST_EXPRESSIONS = 64
_MOST_NAME = 512  # characters of a tensor's name
_RANK = 8  # where the config says nothing; so is lora_alpha


@dataclass(frozen=True)
class Adapter:
    """Tensors of a LoRA adapter. tensors: `NAME.lora_a` [rank, in] and `NAME.lora_b` [out, rank],
    float32, for every dense layer NAME of ours that is adapted; the scale is in lora_b. rank: the
    largest one."""

    tensors: dict[str, Tensor]
    rank: int


@dataclass(frozen=True)
class _Module:
    """A dense layer under our name, and the shape [out, in] of its weight."""

    name: str
    shape: tuple[int, int]


class _Known(NamedTuple):
    """Dense layers that a stack has in each of its layers."""

    begin: str  # beginning of our names: the stack, where there are several
    ours: str
    theirs: str  # name in transformers, with {i} for the number
    num_layers: int


def _known_layers(family: Architecture, spec: Spec) -> list[_Known]:
    """The layers that adapters may have, as far as the family names them."""
    stacks = upgraded(spec)["stacks"]
    shapes = weight_shapes(spec)
    found = []
    for stack in stacks:
        begin = f"{stack}." if len(stacks) > 1 else ""
        count = len(weight_sets(spec, stack))
        for ours in _LAYERS:
            theirs = family.names.get(f"{begin}layers.{{i}}.{ours}")
            parts = (f"{begin}layers.0.{part}.weight" for part in STACKS.get(ours, (ours,)))
            if theirs is not None and all(part in shapes for part in parts):
                found.append(_Known(begin, ours, theirs, count))
    return found


def _layers_of(spec: Spec) -> list[_Known]:
    """Raises CheckpointError for a model whose names in transformers nobody knows."""
    families = [family for family in FAMILIES if spec["family"] in family.classes]
    if not families:
        raise CheckpointError(
            "adapters are known by the names that transformers gives to the layers of a family, "
            f"and {spec['family']!r:.80} is none"
        )
    # Several may have the name: encoders alone beside those with a decoder, and blocks with a gate
    # beside those without. The one of the model names all of its layers, and no gate too many.
    gated = any(name.endswith("layers.0.ffn.gate.weight") for name in weight_shapes(spec))

    def fits(family: Architecture) -> tuple[int, bool]:
        named = any("ffn.gate" in ours for ours in family.names)
        return len(_known_layers(family, spec)), named == gated

    return _known_layers(max(families, key=fits), spec)


class _Modules:
    """Finds which dense layer of ours a module of transformers is."""

    def __init__(self, spec: Spec) -> None:
        self._known = _layers_of(spec)
        self._shapes = weight_shapes(spec)

    def find(self, module: str, where: str) -> _Module:
        for known in self._known:
            if (found := _pattern(known.theirs).fullmatch(module)) is None:
                continue
            number = int(found[1])
            if number >= known.num_layers:
                raise CheckpointError(
                    f"{where}: {module}: the model has {known.num_layers} layers: the adapter is "
                    "of another base model"
                )
            layer = f"{known.begin}layers.{number}."
            return _Module(f"{layer}{known.ours}", self._shape(layer, known.ours))
        names = dict.fromkeys(known.theirs.rpartition(".")[2] for known in self._known)
        raise CheckpointError(
            f"{where}: {module} is not one of the layers that adapters of this model may have: "
            f"{', '.join(names)}"
        )

    def _shape(self, layer: str, ours: str) -> tuple[int, int]:
        parts = [self._shapes[f"{layer}{part}.weight"] for part in STACKS.get(ours, (ours,))]
        return sum(shape[0] for shape in parts), parts[0][1]


def _pattern(theirs: str) -> re.Pattern[str]:
    return re.compile(r"(?:.*\.)?" + re.escape(theirs).replace(r"\{i\}", r"(\d+)"))


class _Numbers:
    """The numbers that rank_pattern or alpha_pattern gives to modules, as PEFT finds them: by the
    first key that a module's name, or the end of its name after a dot, matches."""

    def __init__(self, config: Config, field: str) -> None:
        self._section = config.section(field)
        keys = list(self._section.fields)
        if len(keys) > _MOST_PATTERNS:
            raise CheckpointError(
                f"{self._section.where}: {len(keys)} patterns, at most {_MOST_PATTERNS} are taken"
            )
        self._patterns: list[tuple[str, ModulePattern]] = []
        for key in keys:
            if sum(not pattern.plain for _, pattern in self._patterns) > _MOST_EXPRESSIONS:
                raise CheckpointError(
                    f"{self._section.where}: more than {_MOST_EXPRESSIONS} regular expressions"
                )
            try:
                self._patterns.append((key, ModulePattern(key)))
            except ValueError as error:
                raise CheckpointError(
                    f"{self._section.where}: {key!r:.80} is no pattern of modules: {error}"
                ) from None

    def of(self, module: str, default: float) -> float:
        for key, pattern in self._patterns:
            if pattern.matches(module):
                return self._section.number(key, default, high=_MAX_ALPHA)
        return default


class _Scales:
    """Factors that the products of an adapter are multiplied by, module by module."""

    def __init__(self, config: Config) -> None:
        self._ranks = _Numbers(config, "rank_pattern")
        self._alphas = _Numbers(config, "alpha_pattern")
        self._rank = config.integer("r", default=_RANK)
        self._alpha = config.number("lora_alpha", _RANK, high=_MAX_ALPHA)
        self._by_root = config.boolean("use_rslora", False)

    def of(self, module: str, rank: int, where: str) -> float:
        said = self._ranks.of(module, self._rank)
        if said != rank:
            raise CheckpointError(
                f"{where}: {module}.lora_A has rank {rank}, adapter_config.json says {said:g}"
            )
        alpha = self._alphas.of(module, self._alpha)
        return alpha / (math.sqrt(rank) if self._by_root else rank)


def _check_config(config: Config) -> None:
    kind = config.fields.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(f"{config.where}: peft_type is {kind!r:.80}, expected 'LORA'")
    for name in _REFUSED:
        config.refuse(name, [], {})
    config.refuse("bias", "none")
    begun = config.fields.get("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(_CHANGED_BASES):
        raise CheckpointError(
            f"{config.where}: init_lora_weights = {begun!r:.80} changes the base model too, which "
            "is not supported; convert the adapter to a plain one (PEFT's save_pretrained with "
            "path_initial_model_for_weight_conversion)"
        )


def _read_tensors(folder: Path) -> tuple[Mapping[str, Tensor], Path]:
    for name in ADAPTER_FILES:
        if has_file(path := folder / name):
            return read_file(path)[0], path
    there = ", ".join(sorted(path.name for path in folder.iterdir())[:20])
    raise CheckpointError(
        f"{folder}: no weights; expected {' or '.join(ADAPTER_FILES)}, found: {there or 'nothing'}"
    )


def _check(module: str, a: Tensor, b: Tensor, shape: tuple[int, int], where: str, base: str) -> int:
    """The rank."""
    rank = a.shape[0] if len(a.shape) == 2 else 0
    for kind, tensor, expected in (("A", a, (rank, shape[1])), ("B", b, (shape[0], rank))):
        if rank > 0 and tensor.shape == expected:
            continue
        raise CheckpointError(
            f"{where}: {module}.lora_{kind} has shape {list(tensor.shape)}, expected "
            f"{[size or 'rank' for size in expected]}: the adapter is of another base model{base}"
        )
    return rank


def _read_config(folder: Path) -> Config:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; expected one that PEFT saved")
    path = folder / ADAPTER_CONFIG
    if not has_file(path):
        raise CheckpointError(f"{folder}: no {ADAPTER_CONFIG}: expected a folder of PEFT")
    config = read_config(path)
    _check_config(config)
    return config


def read_adapter_rank(path: str | PathLike[str]) -> int:
    """The largest rank that an adapter may have, by its config alone. Raises as `read_adapter`."""
    config = _read_config(Path(path))
    patterns = config.section("rank_pattern")
    ranks = [patterns.integer(key, default=_RANK) for key in patterns.fields]
    return max([config.integer("r", default=_RANK), *ranks])


class _Files(NamedTuple):
    """An adapter under the names of its modules. pairs: module -> "A" and "B"."""

    pairs: dict[str, dict[str, Tensor]]
    scales: _Scales
    where: str
    base: str  # what to say of its base model


def _read_files(folder: Path) -> _Files:
    config = _read_config(folder)
    base = config.fields.get("base_model_name_or_path")
    of_base = f" ({base!r:.120})" if isinstance(base, str) and base else ""
    found, file = _read_tensors(folder)
    scales = _Scales(config)
    pairs: dict[str, dict[str, Tensor]] = {}
    for name, tensor in found.items():
        match = None if len(name) > _MOST_NAME else _NAME.fullmatch(name)
        if match is None:
            raise CheckpointError(
                f"{file}: tensor {name!r:.160} is not supported: expected lora_A and lora_B of "
                "dense layers"
            )
        pairs.setdefault(match[1], {})[match[2]] = tensor
    if not pairs:
        raise CheckpointError(f"{file}: no tensors, expected lora_A and lora_B of dense layers")
    return _Files(pairs, scales, str(file), of_base)


def _scaled(files: _Files, module: str, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """lora_A [rank, in] and lora_B [out, rank] times the scale, float32, of a module whose weight
    has this shape."""
    pair, where = files.pairs[module], files.where
    if pair.keys() != {"A", "B"}:
        raise CheckpointError(f"{where}: {module} has lora_{min(pair)} alone, expected both")
    rank = _check(module, pair["A"], pair["B"], shape, where, files.base)
    scale = np.float32(files.scales.of(module, rank, where))
    a = cast(pair["A"], "float32", f"{module}.lora_A")
    b = cast(pair["B"], "float32", f"{module}.lora_B")
    return a, Tensor(b.data * scale, "float32")


def read_adapter(path: str | PathLike[str], spec: Spec) -> Adapter:
    """Reads the folder of an adapter for the model of `spec`, whatever form that model is in.

    Raises CheckpointError that names what is wrong, or not supported, and FileNotFoundError where
    there is no such folder.
    """
    files = _read_files(Path(path))
    modules = _Modules(spec)
    tensors: dict[str, Tensor] = {}
    largest = 0
    for module in files.pairs:
        ours = modules.find(module, files.where)
        a, b = _scaled(files, module, ours.shape)
        tensors[f"{ours.name}.lora_a"], tensors[f"{ours.name}.lora_b"] = a, b
        largest = max(largest, a.shape[0])
    return Adapter(tensors, largest)


def read_changes(
    folder: Path, tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(name of a matrix among `tensors`, lora_A, lora_B with the scale) of each module that the
    adapter in `folder` changes, under the names that the model's files have. Raises as
    `read_adapter`."""
    files = _read_files(folder)
    for module in files.pairs:
        name = f"{module}.weight"
        if name not in tensors or len(tensors[name].shape) != 2:
            raise CheckpointError(
                f"{files.where}: {module} is no dense layer of the model: the adapter is of "
                f"another base model{files.base}"
            )
        rows, columns = tensors[name].shape
        yield name, *_scaled(files, module, (rows, columns))
