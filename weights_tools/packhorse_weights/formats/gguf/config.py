"""Fields of a config.json from the metadata of a GGUF file of the model.

Keys: "GGUF" in the documentation of ggml, and how llama.cpp's converters write and llama.cpp reads
them. A key of the architecture that nothing here reads means that the model computes something
else, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from packhorse_weights.config import MOST_LAYERS, Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.formats.gguf.file import GgufFile
from packhorse_weights.formats.gguf.metadata import Fields, Metadata
from packhorse_weights.formats.gguf.rope import read_rope

# The largest Gemma 2 and 3, known by their number of layers as in llama.cpp, scale scores by
# hidden_size / heads and not by head_dim. No key says so.
_GEMMA_WIDE = {"gemma2": 46, "gemma3": 62}


def _sizes(data: Metadata) -> Fields:
    """Returns the fields that every architecture has, under the usual names."""
    embedding = data.file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{data.file.path}: no matrix token_embd.weight")
    if data.integer("expert_count", default=0, low=0):
        raise CheckpointError(f"{data.where}: mixtures of experts are not supported")
    hidden, heads = data.integer("embedding_length"), data.integer("attention.head_count")
    data.fields.get("vocab_size")  # the table itself counts
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "num_hidden_layers": data.integer("block_count", high=MOST_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": data.integer("attention.head_count_kv", default=heads),
        "intermediate_size": data.integer("feed_forward_length"),
        "max_position_embeddings": data.tokens("context_length"),
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
        **read_rope(data, fields, head_dim),
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
    window = data.tokens("attention.sliding_window", default=0, low=0)
    trained = data.tokens(
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
        "sliding_window": data.tokens("attention.sliding_window"),
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
    rope = read_rope(data, fields, _head_dim(data, fields))
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


def _t5(data: Metadata) -> Fields:
    """Returns the fields of T5, or of UMT5, each layer of which has biases of distances. Distances
    are cut at 128 in all of them: no key says so."""
    fields = _sizes(data)
    data.fields.get("attention.layer_norm_epsilon")  # the norms are RMS norms: the other key counts
    return {
        "model_type": "umt5" if data.has("enc.blk.1.attn_rel_b.weight") else "t5",
        "vocab_size": fields["vocab_size"],
        "d_model": fields["hidden_size"],
        "d_kv": _head_dim(data, fields),
        "d_ff": fields["intermediate_size"],
        "num_layers": fields["num_hidden_layers"],
        "num_decoder_layers": data.integer(
            "decoder_block_count", default=fields["num_hidden_layers"], high=MOST_LAYERS
        ),
        "num_heads": fields["num_attention_heads"],
        "n_positions": fields["max_position_embeddings"],
        "relative_attention_num_buckets": data.integer("attention.relative_buckets_count"),
        "layer_norm_epsilon": data.decimal("attention.layer_norm_rms_epsilon"),
        "feed_forward_proj": "gated-gelu" if data.has("enc.blk.0.ffn_gate.weight") else "relu",
        "tie_word_embeddings": fields["tie_word_embeddings"],
        "decoder_start_token_id": data.tokens("decoder_start_token_id", default=0, low=0),
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
    "t5": ("t5", "T5ForConditionalGeneration", _t5),
    "t5encoder": ("t5", "T5EncoderModel", _t5),
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
    if not isinstance(found, str) or found not in _ARCHITECTURES:
        raise CheckpointError(
            f"{file.path}: general.architecture {found!r:.80} is not supported; supported: "
            f"{', '.join(_ARCHITECTURES)}"
        )
    return found


def read_config(file: GgufFile) -> tuple[Fields, str | None]:
    """Returns what config.json would say, and the pooling of an embedder's file or None.

    Raises CheckpointError for an architecture, a key or a value that cannot be said there.
    """
    if (kind := file.metadata.get("general.type")) != "model" and isinstance(kind, str):
        raise CheckpointError(f"{file.path}: general.type is {kind!r:.80}, expected a model")
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
            fields[name] = tokens.tokens(key, low=0)
    return fields, _POOLINGS.get(pooling)
