"""The tiny causal language models that make_generation_golden.py makes: what differs from two
layers of width 32 (DEFAULTS)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DEFAULTS = {
    "vocab_size": 67,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_GPT = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
}
_GEMMA = {
    "num_key_value_heads": 2,
    "head_dim": 12,
    "num_hidden_layers": 4,
    "query_pre_attn_scalar": 20,
}
DEFAULTS_OF: dict[str, dict[str, Any]] = {
    "gpt2": _GPT,
    "gptj": {**_GPT, "rotary_dim": 6},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "gemma3": {},
}
# Whose usual names transformers takes for something else.
RENAMED = {
    "gpt2": ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    "gptj": ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    "opt": ("intermediate_size",),
    "gemma3": tuple(DEFAULTS),
}


@dataclass
class Case:
    """One tiny model."""

    name: str
    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    float32: bool = False  # weights as stored; else bfloat16
    embedding_std: float = 0.7  # less where a token would predict itself


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.5, 3.0],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
}
_GEMMA3 = {
    **{name: value for name, value in DEFAULTS.items() if name.startswith(("hidden", "inter"))},
    **_GEMMA,
    "vocab_size": 67,
    "max_position_embeddings": 512,
    "sliding_window": 16,
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}

MODELS: tuple[Case, ...] = (
    Case("gpt2", "gpt2", float32=True),
    Case(
        "gpt2-odd",
        "gpt2",
        {
            "n_embd": 36,
            "n_head": 3,
            "n_inner": 50,
            "activation_function": "relu",
            "scale_attn_weights": False,
        },
    ),
    Case("opt", "opt"),
    Case(
        "opt-post-norm",
        "opt",
        {"word_embed_proj_dim": 20, "do_layer_norm_before": False, "num_hidden_layers": 3},
    ),
    Case("gpt-neox", "gpt_neox", {"rotary_pct": 0.5}),
    Case(
        "gpt-neox-in-turn",
        "gpt_neox",
        {
            "use_parallel_residual": False,
            "rotary_pct": 1.0,
            "attention_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    Case("gptj", "gptj"),
    Case("phi3", "phi3", {"num_key_value_heads": 2, "partial_rotary_factor": 0.75}),
    Case(
        "phi3-longrope",
        "phi3",
        {
            "rope_scaling": _LONGROPE,
            "sliding_window": 30,
            "original_max_position_embeddings": 512,
            "max_position_embeddings": 2048,
        },
    ),
    Case("llama", "llama", {"num_key_value_heads": 2}, float32=True),
    Case(
        "llama-3",
        "llama",
        {
            "num_key_value_heads": 1,
            "head_dim": 24,
            "rope_theta": 500.0,
            "rope_scaling": _LLAMA3,
            "tie_word_embeddings": True,
            "vocab_size": 80,
        },
    ),
    Case("llama-linear", "llama", {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    Case(
        "smollm",
        "llama",
        {
            "hidden_size": 36,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
        },
    ),
    Case("smollm3", "smollm3", {"num_key_value_heads": 2, "num_hidden_layers": 4}),
    Case("mistral", "mistral", {"num_key_value_heads": 2, "sliding_window": 16}),
    Case("qwen2", "qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    Case("qwen3", "qwen3", {"num_key_value_heads": 2, "head_dim": 24}),
    Case(
        "gemma2",
        "gemma2",
        {
            "sliding_window": 16,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 8.0,
        },
        embedding_std=0.2,
    ),
    Case(
        "gemma2-plain-scores",
        "gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": 4.0},
        embedding_std=0.2,
    ),
    Case(
        "gemma3",
        "gemma3_text",
        {
            "sliding_window": 16,
            "sliding_window_pattern": 2,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        embedding_std=0.2,
    ),
    Case("gemma3-vision", "gemma3", {"text_config": _GEMMA3}, embedding_std=0.2),
)
