"""The tiny models that make_golden.py makes: what differs from its defaults. Those with heads are
in golden_heads.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LENGTHS = (17, 1, 64, 2, 100, 5, 31)


@dataclass
class Case:
    """One tiny model: what differs from two layers of width 32 (DEFAULTS)."""

    name: str
    model_type: str = "bert"
    config: dict[str, Any] = field(default_factory=dict)
    # safetensors, sharded, old_bin; masked_lm and causal_lm have a prefix, and no pooler; encoder:
    # that of a model with a decoder
    layout: str = "safetensors"
    pooler: bool | None = True  # None: the model type knows none
    bfloat16: bool = False  # weights as stored; computed in float32 all the same
    pooling: str | None = None  # None: no sentence-transformers files
    normalize: bool = False
    lengths: tuple[int, ...] = LENGTHS
    pooling_as_text: bool = False  # the newer form of the Pooling config
    head: str | None = None  # sequence, tokens, answers: what the model is for, with its labels
    # predictions, splade, splade-sum, splade-logs, dense, poolings, residual,
    # residual-vectors, colbert, pylate, bge-m3, answers: what golden_parts.py adds
    part: str | None = None


MODELS: tuple[Case, ...] = (
    Case("bert-gelu", pooling="mean", normalize=True),
    Case("bert-gelu-new", config={"hidden_act": "gelu_new"}, pooling="cls", pooling_as_text=True),
    Case("bert-relu", config={"hidden_act": "relu"}, pooling="max"),
    Case("bert-silu", config={"hidden_act": "silu"}, pooling="last", normalize=True),
    Case(
        "bert-312",
        config={
            "hidden_size": 312,
            "num_attention_heads": 12,
            "num_hidden_layers": 1,
            "intermediate_size": 96,
        },
        pooler=False,
        bfloat16=True,
        pooling="mean_sqrt",
        lengths=(17, 1, 33, 2),
    ),
    Case(
        "bert-odd",
        config={"hidden_size": 40, "num_attention_heads": 5, "intermediate_size": 53},
    ),
    Case("bert-no-pooler", pooler=False),
    Case("bert-sharded", layout="sharded", pooling="mean"),
    Case("bert-old-bin", layout="old_bin"),
    Case("roberta", "roberta", pooling="mean"),
    Case("xlm-roberta", "xlm-roberta", pooling="mean", normalize=True),
    Case("camembert", "camembert", layout="masked_lm"),
    Case("distilbert", "distilbert", pooler=None, pooling="mean"),
    Case(
        "distilbert-odd",
        "distilbert",
        config={"dim": 40, "n_heads": 5, "hidden_dim": 53, "activation": "relu"},
        pooler=None,
        layout="masked_lm",
    ),
    Case("electra-small", "electra", config={"embedding_size": 24}, pooler=None),
    Case(
        "electra-base",
        "electra",
        config={"embedding_size": 32, "layer_norm_eps": 1e-5, "hidden_act": "relu"},
        pooler=None,
        layout="masked_lm",
    ),
    Case("albert", "albert", config={"embedding_size": 16, "num_hidden_layers": 3}),
    Case(
        "albert-groups",
        "albert",
        config={
            "embedding_size": 21,
            "hidden_size": 40,
            "num_attention_heads": 5,
            "num_hidden_layers": 5,
            "num_hidden_groups": 2,
            "hidden_act": "gelu",
        },
        pooling="mean",
        normalize=True,
    ),
    Case(
        "mpnet",
        "mpnet",
        config={"max_position_embeddings": 304},
        pooling="mean",
        normalize=True,
        lengths=(17, 1, 300, 2, 129),
    ),
    Case(
        "mpnet-odd",
        "mpnet",
        config={"hidden_size": 42, "num_attention_heads": 3, "intermediate_size": 51},
        pooler=False,
    ),
    Case(
        "modernbert",
        "modernbert",
        config={"num_hidden_layers": 5, "local_attention": 24, "layer_types": None},
        pooler=None,
        pooling="cls",
    ),
    Case(
        "modernbert-odd",
        "modernbert",
        config={
            "hidden_size": 36,
            "num_attention_heads": 3,
            "intermediate_size": 39,
            "num_hidden_layers": 3,
            "hidden_activation": "silu",
            "local_attention": 2,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
            "attention_bias": True,
            "mlp_bias": True,
            "norm_bias": True,
        },
        pooler=None,
        layout="masked_lm",
    ),
    Case("nomic-bert", "nomic_bert", pooler=None, pooling="mean", normalize=True),
    Case(
        "nomic-bert-odd",
        "nomic_bert",
        config={
            "hidden_size": 42,
            "num_attention_heads": 3,
            "intermediate_size": 51,
            "hidden_act": "gelu_new",
        },
    ),
    Case("gte", "gte", pooler=None, pooling="cls"),
    Case(
        "gte-odd",
        "gte",
        config={
            "type_vocab_size": 2,
            "hidden_size": 40,
            "num_attention_heads": 5,
            "intermediate_size": 70,
            "hidden_act": "relu",
            "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
        },
        layout="masked_lm",
    ),
    Case("qwen2", "qwen2", config={"num_key_value_heads": 2}, pooler=None, pooling="last"),
    Case(
        "qwen2-window",
        "qwen2",
        config={
            "num_key_value_heads": 1,
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
        },
        layout="causal_lm",
        pooler=None,
        pooling="mean",
    ),
    Case(
        "qwen3",
        "qwen3",
        config={"num_key_value_heads": 2, "head_dim": 24},
        pooler=None,
        pooling="last",
        normalize=True,
    ),
    Case(
        "qwen3-odd",
        "qwen3",
        config={
            "hidden_size": 35,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "head_dim": 10,
            "intermediate_size": 47,
            "attention_bias": True,
            "rms_norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
        pooler=None,
        layout="causal_lm",
    ),
    Case("llama", "llama", config={"attention_bias": True, "mlp_bias": True}, pooler=None),
    Case(
        "llama-grouped",
        "llama",
        config={"num_key_value_heads": 2, "head_dim": 12, "hidden_act": "gelu"},
        pooler=None,
        pooling="mean",
    ),
    Case(
        "llama-linear",
        "llama",
        config={"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}},
        pooler=None,
    ),
    Case(
        "llama-llama3",
        "llama",
        config={
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 100.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        pooler=None,
    ),
    Case(
        "llama-dynamic",
        "llama",
        config={
            "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.5},
        },
        pooler=None,
    ),
    Case(
        "qwen2-yarn",
        "qwen2",
        config={
            "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 100.0,
                "factor": 4.0,
                "original_max_position_embeddings": 50,
                "beta_fast": 8,
            },
        },
        pooler=None,
    ),
    Case(
        "mistral-longrope",
        "mistral",
        config={
            "num_key_value_heads": 2,
            "sliding_window": None,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 100.0,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "short_factor": [1.0, 1.1, 1.5, 3.0],
                "long_factor": [1.0, 2.0, 4.0, 8.0],
            },
        },
        pooler=None,
    ),
    Case(
        "mistral",
        "mistral",
        config={"num_key_value_heads": 2, "sliding_window": 16},
        pooler=None,
        pooling="last",
        normalize=True,
    ),
    Case(
        "deberta",
        "deberta",
        config={
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "position_biased_input": False,
            "max_position_embeddings": 120,
        },
        pooler=None,
    ),
    Case(
        "deberta-odd",
        "deberta",
        config={
            "relative_attention": True,
            "max_relative_positions": 30,
            "pos_att_type": "p2c",
            "type_vocab_size": 2,
            "hidden_size": 42,
            "num_attention_heads": 3,
            "hidden_act": "relu",
        },
        pooler=None,
        layout="masked_lm",
    ),
    Case(
        "deberta-v3",
        "deberta-v2",
        config={
            "relative_attention": True,
            "position_buckets": 32,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "max_position_embeddings": 310,
        },
        pooler=None,
        pooling="mean",
        lengths=(17, 1, 300, 2, 129, 64),
    ),
    Case(
        "deberta-v2-own-projections",
        "deberta-v2",
        config={
            "relative_attention": True,
            "max_relative_positions": 40,
            "pos_att_type": "c2p|p2c",
            "type_vocab_size": 2,
            "hidden_size": 42,
            "num_attention_heads": 3,
        },
        pooler=None,
        layout="masked_lm",
    ),
    Case(
        "deberta-v2-c2p",
        "deberta-v2",
        config={
            "relative_attention": True,
            "position_buckets": 6,
            "max_relative_positions": 20,
            "pos_att_type": ["c2p"],
            "share_att_key": True,
            "position_biased_input": False,
        },
        pooler=None,
    ),
    Case(
        "deberta-v2-convolution",
        "deberta-v2",
        config={
            "relative_attention": True,
            "position_buckets": 64,
            "max_relative_positions": 90,
            "pos_att_type": ["p2c"],
            "conv_kernel_size": 3,
            "conv_act": "gelu",
            "position_biased_input": False,
            "num_attention_heads": 1,
        },
        pooler=None,
    ),
    Case("t5", "t5", layout="encoder", pooler=None, pooling="mean", lengths=(17, 1, 300, 2, 129)),
    Case(
        "mt5",
        "mt5",
        config={
            "d_model": 40,
            "d_kv": 12,
            "d_ff": 51,
            "num_heads": 3,
            "relative_attention_num_buckets": 12,
            "relative_attention_max_distance": 40,
        },
        layout="encoder",
        pooler=None,
    ),
    Case(
        "t5-dense",
        "t5",
        config={"num_layers": 1, "feed_forward_proj": "gated-silu"},
        layout="encoder",
        pooler=None,
        lengths=(17, 1, 40, 2),
        part="dense",
    ),
)

# Made after the models with heads, so that those before draw what they drew.
LATER_MODELS = (
    Case(
        "umt5",
        "umt5",
        config={"feed_forward_proj": "gated-gelu", "relative_attention_max_distance": 40},
        layout="encoder",
        pooler=None,
        lengths=(17, 1, 150, 2, 64),
    ),
)

# Two layers of width 32, under the names that most configs use.
DEFAULTS = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 120,
}
_ROBERTA = {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
DEFAULTS_OF: dict[str, dict[str, Any]] = {
    "t5": _T5,
    "mt5": _T5,
    "umt5": _T5,
    "bert": {"type_vocab_size": 2, "pad_token_id": 0, "layer_norm_eps": 1e-12},
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "mpnet": {"layer_norm_eps": 1e-5},
    "nomic_bert": {"pad_token_id": 0},
    "modernbert": {
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 1,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
}
# Fields above that have another name in the config of a model type.
_SIZES = {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}
RENAMED = {
    "t5": {*_SIZES, "max_position_embeddings"},
    "mt5": {*_SIZES, "max_position_embeddings"},
    "umt5": {*_SIZES, "max_position_embeddings"},
    "distilbert": _SIZES,
}
