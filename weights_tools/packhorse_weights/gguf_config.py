"""From the metadata of a GGUF file to what the config.json of the same model says.

Keys: "GGUF" in the documentation of ggml, and how llama.cpp's converters write and llama.cpp reads
them. A key of the architecture that nothing here reads means that the model computes something
else, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.gguf_file import GgufFile
from packhorse_weights.gguf_tensor import open_tensor
from packhorse_weights.tensor import to_float32

Fields = dict[str, Any]

_HIGH = 1e12
# Keys that say nothing about the arithmetic.
_HARMLESS = ("rope.scaling.finetuned", "tensor_data_layout", "embedding_length_out")
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_CONTEXT = 8192
# The largest Gemma 2 and 3, known by their number of layers as in llama.cpp, scale scores by
# hidden_size / heads and not by head_dim. No key says so.
_GEMMA_WIDE = {"gemma2": 46, "gemma3": 62}


class _Noting(dict[str, Any]):
    """A dict that keeps in mind which keys somebody asked for."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


class Metadata(Config):
    """The keys of one architecture, without its name in front of them; and the tensors."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        prefix = f"{architecture}."
        own = {
            key.removeprefix(prefix): value
            for key, value in file.metadata.items()
            if key.startswith(prefix)
        }
        self._noting = _Noting(own)
        super().__init__(self._noting, f"{file.path}: {architecture}")
        self.file, self.architecture = file, architecture

    def has(self, tensor: str) -> bool:
        return tensor in self.file.tensors

    def decimal(self, name: str, default: float | None = None) -> float:
        """Returns the shortest decimal that is this float32: 1e-05, not 9.9999997e-06."""
        if default is None and self.fields.get(name) is None:
            raise CheckpointError(f"{self.where}: {name}: expected a number, found nothing")
        value = self.number(name, 0.0 if default is None else default, _HIGH)
        return float(str(np.float32(value)))

    def factors(self, tensor: str, count: int) -> NDArray[np.float32] | None:
        """Returns what each frequency is divided by, or None if the file has no such tensor."""
        stored = self.file.tensors.get(tensor)
        if stored is None:
            return None
        values = to_float32(open_tensor(stored))
        if values.shape != (count,) or not (np.isfinite(values) & (values > 0)).all():
            raise CheckpointError(
                f"{self.file.path}: tensor {tensor}: expected {count} positive numbers, found "
                f"shape {list(values.shape)}"
            )
        return values

    def refuse_rest(self) -> None:
        """Raises CheckpointError for a key that nothing has asked for."""
        for name, value in self.fields.items():
            harmless = isinstance(value, bool | int | float) and not value
            if name not in (*self._noting.asked, *_HARMLESS) and not harmless:
                raise CheckpointError(f"{self.where}.{name} = {value!r:.80} is not supported")


def _sizes(data: Metadata) -> Fields:
    """Returns the fields that every architecture has, under the usual names."""
    embedding = data.file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{data.file.path}: no matrix token_embd.weight")
    if data.fields.get("expert_count"):
        raise CheckpointError(f"{data.where}: mixtures of experts are not supported")
    hidden, heads = data.integer("embedding_length"), data.integer("attention.head_count")
    data.fields.get("vocab_size")  # the table itself counts
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "num_hidden_layers": data.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": data.integer("attention.head_count_kv", default=heads),
        "intermediate_size": data.integer("feed_forward_length"),
        "max_position_embeddings": data.integer("context_length"),
        "tie_word_embeddings": not data.has("output.weight"),
        **({} if data.boolean("attention.causal", True) else {"is_causal": False}),
    }


def _head_dim(data: Metadata, fields: Fields) -> int:
    usual = fields["hidden_size"] // fields["num_attention_heads"]
    size = data.integer("attention.key_length", default=max(usual, 1))
    if (values := data.integer("attention.value_length", default=size)) != size:
        raise CheckpointError(
            f"{data.where}: heads of {size} values for keys and {values} for values are not "
            "supported"
        )
    return size


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
    # In older files there is only a factor.
    linear = data.decimal("rope.scale_linear", 1.0)
    kind = data.choice("rope.scaling.type", kinds, "linear" if linear != 1 else "none")
    factor = data.decimal("rope.scaling.factor", linear) or 1.0
    trained = data.integer(
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


def _rope(data: Metadata, fields: Fields, head_dim: int, theta: float = 10000.0) -> Fields:
    theta = data.decimal("rope.freq_base", theta)
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


def _decoder(data: Metadata) -> Fields:
    """Returns the fields of a decoder with RMS norms, rotated positions and gated feed-forward
    blocks."""
    fields = _sizes(data)
    head_dim = _head_dim(data, fields)
    return {
        **fields,
        "head_dim": head_dim,
        "rms_norm_eps": data.decimal("attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        **_rope(data, fields, head_dim),
    }


def _llama(data: Metadata) -> Fields:
    return {
        **_decoder(data),
        "attention_bias": data.has("blk.0.attn_q.bias"),
        "mlp_bias": data.has("blk.0.ffn_up.bias"),
    }


def _qwen(data: Metadata) -> Fields:
    return {**_decoder(data), "use_sliding_window": False}


def _phi3(data: Metadata) -> Fields:
    fields = _decoder(data)
    window = data.integer("attention.sliding_window", default=0, low=0)
    trained = data.integer(
        "rope.scaling.original_context_length", default=fields["max_position_embeddings"]
    )
    return {
        **fields,
        "sliding_window": window or None,
        "original_max_position_embeddings": trained,
    }


def _gemma(data: Metadata, period: int) -> Fields:
    """Returns the fields of a Gemma. One layer in `period` sees all tokens, unless a key says
    otherwise."""
    fields = _decoder(data)
    layers, heads = fields["num_hidden_layers"], fields["num_attention_heads"]
    pattern = data.fields.get("attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray):
        local = [bool(one) for one in pattern[:layers]]
    else:
        period = data.integer("attention.sliding_window_pattern", default=period)
        local = [(i + 1) % period != 0 for i in range(layers)]
    wide = layers == _GEMMA_WIDE[data.architecture]
    scalar = fields["hidden_size"] // heads if wide else fields["head_dim"]
    fields.pop("hidden_act")
    return {
        **fields,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "sliding_window": data.integer("attention.sliding_window"),
        "layer_types": ["sliding_attention" if one else "full_attention" for one in local],
        "attn_logit_softcapping": data.decimal("attn_logit_softcapping", 0.0) or None,
        "final_logit_softcapping": data.decimal("final_logit_softcapping", 0.0) or None,
        "attention_bias": False,
    }


def _gemma2(data: Metadata) -> Fields:
    return _gemma(data, period=2)


def _gemma3(data: Metadata) -> Fields:
    return {
        **_gemma(data, period=6),
        "rope_local_base_freq": data.decimal("rope.freq_base_swa", 10000.0),
    }


def _gpt2(data: Metadata) -> Fields:
    sizes = _sizes(data)
    return {
        "vocab_size": sizes["vocab_size"],
        "n_embd": sizes["hidden_size"],
        "n_layer": sizes["num_hidden_layers"],
        "n_head": sizes["num_attention_heads"],
        "n_inner": sizes["intermediate_size"],
        "n_positions": sizes["max_position_embeddings"],
        "layer_norm_epsilon": data.decimal("attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
        "tie_word_embeddings": sizes["tie_word_embeddings"],
    }


def _gptneox(data: Metadata) -> Fields:
    fields = _sizes(data)
    del fields["num_key_value_heads"]
    rope = _rope(data, fields, _head_dim(data, fields))
    if "rope_scaling" in rope:
        raise CheckpointError(f"{data.where}: scaled rotary positions are not supported")
    return {
        **fields,
        "layer_norm_eps": data.decimal("attention.layer_norm_epsilon"),
        "hidden_act": "gelu",
        "rotary_pct": rope.get("partial_rotary_factor", 1.0),
        "rotary_emb_base": rope["rope_theta"],
        "use_parallel_residual": data.boolean("use_parallel_residual", True),
        "attention_bias": data.has("blk.0.attn_qkv.bias"),
    }


# general.architecture -> (model_type, class, what its keys mean). Mistral and SmolLM are "llama".
_ARCHITECTURES: dict[str, tuple[str, str, Callable[[Metadata], Fields]]] = {
    "llama": ("llama", "LlamaForCausalLM", _llama),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", _qwen),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", _qwen),
    "phi3": ("phi3", "Phi3ForCausalLM", _phi3),
    "gemma2": ("gemma2", "Gemma2ForCausalLM", _gemma2),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM", _gemma3),
    "gpt2": ("gpt2", "GPT2LMHeadModel", _gpt2),
    "gptneox": ("gpt_neox", "GPTNeoXForCausalLM", _gptneox),
}
_TOKEN_IDS = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}
# `pooling_type` -> `embedding.pooling`; 0 says nothing.
_POOLINGS = {1: "mean", 2: "cls", 3: "last"}


def read_architecture(file: GgufFile) -> str:
    """Returns general.architecture. Raises CheckpointError for one that is not supported."""
    found = file.metadata.get("general.architecture")
    if found not in _ARCHITECTURES:
        raise CheckpointError(
            f"{file.path}: general.architecture {found!r:.80} is not supported; supported: "
            f"{', '.join(_ARCHITECTURES)}"
        )
    return str(found)


def read_config(file: GgufFile) -> tuple[Fields, str | None]:
    """Returns what config.json would say, and the pooling of an embedder's file or None.

    Raises CheckpointError for an architecture, a key or a value that cannot be said there.
    """
    architecture = read_architecture(file)
    data = Metadata(file, architecture)
    model_type, class_name, read = _ARCHITECTURES[architecture]
    fields = {"model_type": model_type, "architectures": [class_name], **read(data)}
    pooling = data.integer("pooling_type", default=0, low=0)
    if pooling and pooling not in _POOLINGS:
        raise CheckpointError(
            f"{data.where}.pooling_type {pooling} is not supported; supported: "
            f"{', '.join(f'{number} ({name})' for number, name in _POOLINGS.items())}"
        )
    data.refuse_rest()
    tokens = Config(file.metadata, str(file.path))
    for name, key in _TOKEN_IDS.items():
        if file.metadata.get(key) is not None:
            fields[name] = tokens.integer(key, low=0)
    return fields, _POOLINGS.get(pooling)
