"""Folders of CTranslate2: model.bin, config.json and vocabularies, as a spec, our tensors and the
settings of generation. Source: `transformer_spec.py` and the converters of CTranslate2."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packhorse_weights.config import MOST_LAYERS, Config, optional_config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import has_file, read_bytes
from packhorse_weights.formats.ctranslate2 import (
    Variables,
    is_ctranslate2,
    read_ctranslate2,
    rows_of,
    scaled,
)
from packhorse_weights.layout import weight_shapes
from packhorse_weights.spec import Spec, from_encoder_decoder
from packhorse_weights.tensor import LazyTensor, Tensor

FILE = "model.bin"
_ACTIVATIONS = {0: "relu", 1: "gelu_tanh", 2: "silu", 3: "gelu", 5: "tanh"}
MULTILINGUAL_ROWS = 51865  # entries of a table of Whisper that has languages
_GELU = 3  # an encoder of audio has it, whatever its file says
_LONGEST = 1024  # positions of tables that are computed
_LONGEST_OF_DISTANCES = 4096  # longest sequence of models without such tables
# Logit of a token that is never meant, small in float16 too.
_NEVER = -1e4
# Variables that change a model, where they are there and not zero.
_REFUSED = (
    "alibi",
    "final_logit_softcapping",
    "project_in/weight",
    "project_out/weight",
    "sliding_window",
    "embeddings_1/weight",
)
# Variables that change nothing that is computed here.
_HARMLESS = (
    "alibi_use_positive_positions",
    "alignment_heads",
    "alignment_layer",
    "embeddings_merge",
    "multi_query_attention",
    "scale_alibi",
    "multiply_by_sqrt_depth",
)
_REFUSED_IN_LAYERS = (
    "relative_position_keys",
    "relative_asymmetric_position_keys",
    "rotary_dim",
    "num_heads_kv",
    "q_norm/gamma",
    "merged_encoder_attention",
    "layer_norm/layer_norm_use_residual",
)


@dataclass(frozen=True)
class CTranslate2Model:
    """spec, tensors: as a session takes them, under our names. vocabularies: those of source and
    target. settings: what generation_config.json of transformers would say."""

    spec: Spec
    tensors: dict[str, Tensor]
    vocabularies: tuple[list[str], list[str]]
    settings: dict[str, Any]


def find_ctranslate2(root: Path, file: Path | None = None) -> Path | None:
    """The file of a folder that CTranslate2 converted; None: it is no such folder."""
    path = file or root / FILE
    if path.name != FILE or not has_file(path):
        return None
    return path if is_ctranslate2(path) else None


def read_vocabularies(root: Path) -> tuple[list[str], list[str]]:
    """(the source's, the target's). Raises CheckpointError."""
    shared = _vocabulary(root, "shared_vocabulary")
    if shared is not None:
        return shared, shared
    found = [_vocabulary(root, f"{side}_vocabulary") for side in ("source", "target")]
    if found[0] is None or found[1] is None:
        raise CheckpointError(
            f"{root}: no shared_vocabulary.json, nor source_vocabulary.json and "
            "target_vocabulary.json (or .txt)"
        )
    return found[0], found[1]


def _vocabulary(root: Path, name: str) -> list[str] | None:
    path = root / f"{name}.json"
    if has_file(path):
        try:
            tokens = json.loads(read_bytes(path))
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: not valid JSON: {error!s:.120}") from None
        if not isinstance(tokens, list) or not all(isinstance(one, str) for one in tokens):
            raise CheckpointError(f"{path}: expected a list of texts")
        return tokens
    path = root / f"{name}.txt"
    if not has_file(path):
        return None
    try:
        return read_bytes(path).decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8: {error!s:.120}") from None


class _Stack:
    """The variables of an encoder or decoder."""

    def __init__(self, variables: Variables, name: str, where: str) -> None:
        self._all, self.name, self.where = variables, name, where
        self._read: set[str] = set()
        self.depth = self._count_layers()
        embeddings = f"{name}/embeddings_0" if name == "encoder" else f"{name}/embeddings"
        if f"{embeddings}/weight" not in variables.tensors:
            embeddings = f"{name}/embeddings"
        self._embeddings = embeddings
        layers = [f"layer_{i}/{block}" for i in range(self.depth) for block in self.blocks]
        refused = [*_REFUSED, *(f"{layer}/{one}" for layer in layers for one in _REFUSED_IN_LAYERS)]
        for one in refused:
            found = variables.tensors.get(f"{name}/{one}")
            if found is not None and found.data.any():
                raise CheckpointError(f"{where}: {name}/{one} is not supported")

    @property
    def blocks(self) -> tuple[str, ...]:
        of_decoder = ("self_attention", "attention") if self.name == "decoder" else ()
        return of_decoder or ("self_attention",)

    def _count_layers(self) -> int:
        depth = 0
        while f"{self.name}/layer_{depth}/ffn/linear_0/weight" in self._all.tensors:
            depth += 1
        if not 1 <= depth <= MOST_LAYERS:
            raise CheckpointError(f"{self.where}: {depth} layers in {self.name}")
        return depth

    def has(self, name: str) -> bool:
        return f"{self.name}/{name}" in self._all.tensors

    def refuse_unread(self) -> None:
        """Raises CheckpointError for a variable that nothing has asked for."""
        for name, tensor in self._all.tensors.items():
            if not name.startswith(f"{self.name}/") or name in self._read:
                continue
            is_scale = name.endswith("_scale") and name.removesuffix("_scale") in self._read
            if is_scale or name.endswith(_HARMLESS) or not tensor.data.any():
                continue
            raise CheckpointError(f"{self.where}: {name} is not supported")

    def number(self, name: str, default: float) -> float:
        self._read.add(f"{self.name}/{name}")
        return self._all.scalar(f"{self.name}/{name}", default, self.where)

    def tensor(self, name: str) -> Tensor:
        """A variable of the stack, as floats."""
        whole = f"{self.name}/{name}"
        self._read.add(whole)
        found = self._all.tensors.get(whole)
        if found is None:
            raise CheckpointError(f"{self.where}: there is no {whole}")
        owner = self._all.aliases.get(whole, whole)  # the scale has no alias of its own
        return scaled(found, self._all.tensors.get(f"{owner}_scale"), f"{self.where}: {whole}")

    def shape(self, name: str) -> tuple[int, int]:
        """The shape of a matrix."""
        shape = self.tensor(name).shape
        if len(shape) != 2 or not all(shape):
            raise CheckpointError(f"{self.where}: {self.name}/{name} has the shape {list(shape)}")
        return shape[0], shape[1]

    @property
    def table(self) -> str:
        """The name of the table of words, without the stack's."""
        return f"{self._embeddings.removeprefix(self.name + '/')}/weight"

    def embedding_scale(self, hidden: int) -> float:
        """A factor, or a choice between 1 and the root of the width."""
        name = f"{self.name}/scale_embeddings"
        self._read.add(name)
        found = self._all.tensors.get(name)
        if found is None or found.dtype != "int8":
            return self.number("scale_embeddings", math.sqrt(hidden))
        return math.sqrt(hidden) if found.data.reshape(-1)[0] else 1.0

    def linear(self, name: str) -> dict[str, Tensor]:
        """`weight` and, where there is one, `bias` of a layer."""
        found = {"weight": self.tensor(f"{name}/weight")}
        if self.has(f"{name}/bias"):
            found["bias"] = self.tensor(f"{name}/bias")
        return found

    def norm(self, name: str) -> dict[str, Tensor]:
        found = {"weight": self.tensor(f"{name}/gamma")}
        if self.has(f"{name}/beta"):
            found["bias"] = self.tensor(f"{name}/beta")
        return found


class _Folder:
    def __init__(self, variables: Variables, config: Config, path: Path) -> None:
        self.where, self.config = str(path), config
        self.variables = variables
        self.stacks = [_Stack(variables, name, self.where) for name in ("encoder", "decoder")]
        encoder, decoder = self.stacks
        self.of_speech = self.hears(encoder)
        self.shared = not self.of_speech and self._is_same(
            encoder, decoder.table, decoder, encoder.table
        )
        self.tied = self._same("decoder/projection/weight", f"decoder/{decoder.table}")
        self.from_zero = bool(decoder.number("start_from_zero_embedding", 0))

    def _same(self, one: str, two: str) -> bool:
        """True if two names are of one variable."""
        aliases = self.variables.aliases
        return aliases.get(one, one) == aliases.get(two, two)

    def _is_same(self, encoder: _Stack, of_decoder: str, decoder: _Stack, of_encoder: str) -> bool:
        return self._same(f"{decoder.name}/{of_decoder}", f"{encoder.name}/{of_encoder}")

    def hears(self, stack: _Stack) -> bool:
        """True for an encoder of audio."""
        return stack.name == "encoder" and stack.has("conv1/weight")

    def _filters(self, stack: _Stack) -> int:
        """Numbers of a frame that an encoder of audio reads."""
        shape = stack.tensor("conv1/weight").shape
        if len(shape) != 3:
            raise CheckpointError(f"{self.where}: encoder/conv1/weight has the shape {list(shape)}")
        return shape[1]

    def _width(self, stack: _Stack) -> int:
        table = "position_encodings/encodings" if self.hears(stack) else stack.table
        return stack.shape(table)[1]

    def describe(self, stack: _Stack) -> Spec:
        """The stack as `from_layer` takes it."""
        heads = round(stack.number("num_heads", self.variables.scalar("num_heads", 0, self.where)))
        hidden = self._width(stack)
        first = "layer_0/self_attention"
        rows = stack.shape(f"{first}/linear_0/weight")[0]
        if heads < 1 or rows % (3 * heads):
            raise CheckpointError(f"{self.where}: {stack.name} has {heads} heads in {rows} rows")
        pre = bool(stack.number("pre_norm", 1))
        rms = not stack.has(f"{first}/layer_norm/beta")
        gated = stack.has("layer_0/ffn/linear_0_noact/weight")
        activation = round(stack.number("activation", _GELU if self.hears(stack) else 0))
        if activation not in _ACTIVATIONS:
            raise CheckpointError(f"{self.where}: {stack.name}/activation {activation}: expected "
                                  f"one of {_ACTIVATIONS}")  # fmt: skip
        bias = stack.has(f"{first}/linear_0/bias")
        scale = 1.0 if self.hears(stack) else stack.embedding_scale(hidden)
        is_decoder = stack.name == "decoder"
        attention: Spec = {
            "mask": "causal" if is_decoder else "bidirectional",
            "qkv_bias": bias,
            "output_bias": stack.has(f"{first}/linear_1/bias"),
        }
        if stack.has(f"{first}/queries_scale"):
            attention["scale"] = stack.number(f"{first}/queries_scale", 1.0)
        self._check_alike(stack)
        positions, longest = self._positions(stack)
        if stack.has(f"{first}/relative_attention_bias"):
            buckets = stack.shape(f"{first}/relative_attention_bias")[0]
            most = round(stack.number(f"{first}/relative_attention_max_distance", 128))
            attention["score_term"] = {
                "kind": "bucketed", "buckets": buckets, "max_distance": most,
            }  # fmt: skip
            if not self._one_bias(stack):
                attention["score_term"]["per_layer"] = True
        stem: Spec
        if self.hears(stack):
            filters = self._filters(stack)
            heard = {"features": filters, "activation": "gelu", "positions": positions}
            stem = {"audio": heard}
        else:
            stem = {
                "vocab_size": self.rows(stack),
                **({"words": "encoder"} if is_decoder and self.shared else {}),
                **({"embedding_scale": scale} if scale != 1.0 else {}),
                "positions": positions,
            }
        return {
            "family": "whisper" if self.of_speech else "ctranslate2",
            **stem,
            "hidden_size": hidden,
            "num_layers": stack.depth,
            "num_heads": heads,
            "head_dim": rows // 3 // heads,
            "intermediate_size": stack.shape("layer_0/ffn/linear_0/weight")[0],
            "max_seqlen": longest,
            "norm": {
                "kind": "rms" if rms else "layer",
                "placement": "pre" if pre else "post",
                "eps": self.config.positive("layer_norm_epsilon", 1e-6 if rms else 1e-5),
                "embeddings": stack.has("layernorm_embedding/gamma"),
            },
            "attention": attention,
            "ffn": {
                "kind": "gated" if gated else "plain",
                "activation": _ACTIVATIONS[activation],
                "up_bias": stack.has("layer_0/ffn/linear_0/bias"),
                "down_bias": stack.has("layer_0/ffn/linear_1/bias"),
            },
        }

    def _check_alike(self, stack: _Stack) -> None:
        """Raises CheckpointError where blocks of attention differ in what a spec says once."""
        first = "layer_0/self_attention"
        for field in ("queries_scale", "relative_attention_max_distance"):
            wanted = (
                stack.number(f"{first}/{field}", math.nan)
                if stack.has(f"{first}/{field}")
                else None
            )
            for i in range(stack.depth):
                for block in stack.blocks:
                    if block == "attention" and field != "queries_scale":
                        continue
                    name = f"layer_{i}/{block}/{field}"
                    found = stack.number(name, math.nan) if stack.has(name) else None
                    if found != wanted:
                        raise CheckpointError(
                            f"{self.where}: {stack.name}/{name} is {found}, the first layer's "
                            f"{wanted}"
                        )

    def _one_bias(self, stack: _Stack) -> bool:
        """True if all layers have the biases of distances of the first."""
        names = [
            f"{stack.name}/layer_{i}/self_attention/relative_attention_bias"
            for i in range(stack.depth)
        ]
        return all(self._same(names[0], name) for name in names)

    def _positions(self, stack: _Stack) -> tuple[Spec, int]:
        if stack.has("position_encodings/encodings"):
            count = stack.shape("position_encodings/encodings")[0]
            return {"kind": "learned", "count": count}, count
        if stack.has("layer_0/self_attention/relative_attention_bias"):
            return {"kind": "none"}, _LONGEST_OF_DISTANCES
        return {"kind": "learned", "count": _LONGEST}, _LONGEST

    def rows(self, stack: _Stack) -> int:
        """Entries of a table; with one of zeros for the token that begins a target, where a decoder
        begins with zeros."""
        own = stack.shape(stack.table)[0]
        added = self.from_zero and (stack.name == "decoder" or self.shared)
        return own + added

    def stack_tensors(self, stack: _Stack, head_rows: tuple[int, int]) -> dict[str, Tensor]:
        """Our names -> tensors, without the stack's name. head_rows: of queries, and of keys."""
        found: dict[str, Tensor] = {}

        def add(ours: str, parts: Mapping[str, Tensor]) -> None:
            found.update({f"{ours}.{part}": tensor for part, tensor in parts.items()})

        if self.hears(stack):
            for i in range(2):
                add(f"embeddings.convolution.{i}", stack.linear(f"conv{i + 1}"))
        elif stack.name == "encoder" or not self.shared:
            table = stack.tensor(stack.table)
            rows = self.rows(stack)
            found["embeddings.word"] = table if rows == table.shape[0] else _with_zeros(table)
        if stack.has("position_encodings/encodings"):
            found["embeddings.position"] = stack.tensor("position_encodings/encodings")
        elif not stack.has("layer_0/self_attention/relative_attention_bias"):
            found["embeddings.position"] = _sines(_LONGEST, stack.shape(stack.table)[1])
        if stack.has("layernorm_embedding/gamma"):
            add("embeddings.norm", stack.norm("layernorm_embedding"))
        if stack.has("layer_norm/gamma"):
            add("final_norm", stack.norm("layer_norm"))
        queries, keys = head_rows
        for i in range(stack.depth):
            layer, ours = f"layer_{i}", f"layers.{i}"
            whole = stack.linear(f"{layer}/self_attention/linear_0")
            for part, layer_part in _split(whole, queries, keys).items():
                add(f"{ours}.attention.{part}", layer_part)
            add(f"{ours}.attention.output", stack.linear(f"{layer}/self_attention/linear_1"))
            add(f"{ours}.attention.norm", stack.norm(f"{layer}/self_attention/layer_norm"))
            bias = f"{layer}/self_attention/relative_attention_bias"
            if stack.has(bias):
                name = (
                    "relative_bias" if self._one_bias(stack) else f"{ours}.attention.relative_bias"
                )
                found[name] = stack.tensor(bias)
            if stack.name == "decoder":
                add(f"{ours}.cross_attention.query", stack.linear(f"{layer}/attention/linear_0"))
                both = _split(stack.linear(f"{layer}/attention/linear_1"), 0, keys)
                add(f"{ours}.cross_attention.key", both["key"])
                add(f"{ours}.cross_attention.value", both["value"])
                add(f"{ours}.cross_attention.output", stack.linear(f"{layer}/attention/linear_2"))
                add(f"{ours}.cross_attention.norm", stack.norm(f"{layer}/attention/layer_norm"))
            up = "linear_0"
            if stack.has(f"{layer}/ffn/linear_0_noact/weight"):
                add(f"{ours}.ffn.gate", stack.linear(f"{layer}/ffn/linear_0"))
                up = "linear_0_noact"
            add(f"{ours}.ffn.up", stack.linear(f"{layer}/ffn/{up}"))
            add(f"{ours}.ffn.down", stack.linear(f"{layer}/ffn/linear_1"))
            add(f"{ours}.ffn.norm", stack.norm(f"{layer}/ffn/layer_norm"))
        return found

    def head(self) -> tuple[Spec, dict[str, Tensor]]:
        """(`heads.lm` of the spec, its tensors)"""
        decoder = self.stacks[1]
        lm: Spec = {"tied": True} if self.tied else {}
        decoder.shape("projection/weight")
        found: dict[str, Tensor] = {}
        if not self.tied:
            table = decoder.tensor("projection/weight")
            found["lm.decoder.weight"] = _with_zeros(table) if self.from_zero else table
        bias = decoder.tensor("projection/bias") if decoder.has("projection/bias") else None
        if self.from_zero:
            rows = decoder.shape("projection/weight")[0]
            values = np.zeros(rows, np.float32) if bias is None else _floats(bias)
            bias = Tensor(np.append(values, np.float32(_NEVER)), "float32")
        if bias is not None:
            lm["bias"] = True
            found["lm.decoder.bias"] = bias
        if decoder.has("scale_outputs"):
            lm["scale"] = decoder.number("scale_outputs", 1.0)
        return lm, found


def _floats(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    if tensor.dtype == "bfloat16":
        return (tensor.data.astype(np.uint32) << 16).view(np.float32)
    return tensor.data.astype(np.float32)


def _with_zeros(table: Tensor) -> Tensor:
    """A table with one more row."""
    rows, columns = table.shape
    dtype = table.dtype

    def make() -> np.ndarray[Any, Any]:
        return np.concatenate([table.data, np.zeros((1, columns), table.data.dtype)])

    return LazyTensor(make, (rows + 1, columns), dtype, table.stored)


def _sines(count: int, width: int) -> Tensor:
    """Positions of models whose files have none: those of tensor2tensor from 1 on."""
    half = width // 2
    steps = np.exp(np.arange(half) * -(math.log(10000.0) / max(1, half - 1)))
    angles = (np.arange(count)[:, None] + 1) * steps
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return Tensor(table.astype(np.float32), "float32")


def _split(layer: Mapping[str, Tensor], queries: int, keys: int) -> dict[str, dict[str, Tensor]]:
    """Query, key and value of a layer that computes all three, or the last two."""
    ends = {"query": (0, queries), "key": (queries, queries + keys)}
    ends["value"] = (queries + keys, queries + 2 * keys)
    return {
        part: {name: rows_of(tensor, *its) for name, tensor in layer.items()}
        for part, its in ends.items()
        if its[1] > its[0]
    }


def open_ctranslate2(path: Path) -> CTranslate2Model:
    """The model of a folder that holds the model.bin `path`. Raises CheckpointError for kinds of
    models that are not supported, and for what no converter writes."""
    variables = read_ctranslate2(path)
    if variables.kind not in ("TransformerSpec", "WhisperSpec"):
        raise CheckpointError(
            f"{path}: {variables.kind!r:.80} is not supported; expected 'TransformerSpec', an "
            "encoder with a decoder, or 'WhisperSpec'"
        )
    root = path.parent
    config = optional_config(root / "config.json")
    folder = _Folder(variables, config, path)
    if folder.of_speech != (variables.kind == "WhisperSpec"):
        raise CheckpointError(f"{path}: {variables.kind!r} with an encoder of another kind")
    described = [folder.describe(stack) for stack in folder.stacks]
    spec = from_encoder_decoder(*described)
    lm, tensors = folder.head()
    for stack, one in zip(folder.stacks, described, strict=True):
        rows = one["num_heads"] * one["head_dim"]
        own = folder.stack_tensors(stack, (rows, rows))
        tensors |= {f"{stack.name}.{name}": tensor for name, tensor in own.items()}
    spec |= {"heads": {"lm": lm}, "embedding": {"pooling": "mean", "normalize": False}}
    _check(spec, tensors, str(path))
    for stack in folder.stacks:
        stack.refuse_unread()
    if folder.of_speech:
        rows = folder.stacks[1].shape(folder.stacks[1].table)[0]
        return CTranslate2Model(spec, tensors, ([], []), _speech_settings(config, rows))
    vocabularies = read_vocabularies(root)
    for tokens, stack in zip(vocabularies, folder.stacks, strict=True):
        if len(tokens) != stack.shape(stack.table)[0]:
            raise CheckpointError(
                f"{root}: a vocabulary of {len(tokens)} tokens, but the {stack.name}'s table has "
                f"{stack.shape(stack.table)[0]} rows"
            )
    settings = _settings(config, vocabularies[1], folder)
    return CTranslate2Model(spec, tensors, vocabularies, settings)


def ctranslate2_settings(path: Path) -> dict[str, Any]:
    """The fields that generation_config.json of transformers would have. Raises CheckpointError."""
    return open_ctranslate2(path).settings


def _check(spec: Spec, tensors: Mapping[str, Tensor], where: str) -> None:
    shapes = weight_shapes(spec)
    if differing := sorted(shapes.keys() ^ tensors.keys()):
        raise CheckpointError(
            f"{where}: {len(differing)} tensors that its other variables do not ask for, or that "
            f"are missing: {', '.join(differing[:6])}"
        )
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise CheckpointError(
                f"{where}: {name} has the shape {list(tensors[name].shape)}, expected {list(shape)}"
            )


def _speech_settings(config: Config, rows: int) -> dict[str, Any]:
    """The end of text, and pairs (layer, head) whose cross attention follows the audio."""
    found: dict[str, Any] = {"is_multilingual": rows >= MULTILINGUAL_ROWS}
    found["eos_token_id"] = 50257 if rows >= MULTILINGUAL_ROWS else 50256
    if "alignment_heads" in config.fields:
        found["alignment_heads"] = config.fields["alignment_heads"]
    return found


def _settings(config: Config, target: list[str], folder: _Folder) -> dict[str, Any]:
    numbers = {token: i for i, token in enumerate(target)}

    def number(name: str, default: str | None) -> int | None:
        token = config.fields.get(name, default)
        return numbers.get(token) if isinstance(token, str) else None

    end = number("eos_token", "</s>")
    if end is None:
        raise CheckpointError(
            f"{config.where}: eos_token {config.fields.get('eos_token')!r:.80} is no token of the "
            "target's vocabulary"
        )
    start = len(target) if folder.from_zero else number("decoder_start_token", "<s>")
    found: dict[str, Any] = {"eos_token_id": end}
    return found | ({} if start is None else {"decoder_start_token_id": start})
