"""Kinds of models that are known, and not supported: each is refused by its name."""

from __future__ import annotations

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError

_EXPERTS = (
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_next",
    "gpt_oss",
    "olmoe",
    "deepseek_v2",
    "deepseek_v3",
    "phimoe",
    "granitemoe",
    "granitemoeshared",
    "llama4",
    "llama4_text",
    "dbrx",
    "jetmoe",
    "minimax",
    "ernie4_5_moe",
    "glm4_moe",
    "hunyuan_v1_moe",
    "dots1",
    "nllb_moe",
    "switch_transformers",
)
_STATES = (
    "mamba",
    "mamba2",
    "falcon_mamba",
    "falcon_h1",
    "jamba",
    "bamba",
    "zamba",
    "zamba2",
    "granitemoehybrid",
    "nemotron_h",
    "lfm2",
    "plamo2",
)
_OTHERS = {
    "phi3small": "block-sparse attention",
    "phi": "Phi before Phi-3",
    "gemma": "the first Gemma",
    "gemma3n": "Gemma 3n",
    "falcon": "Falcon",
    "bloom": "BLOOM",
    "mpt": "MPT",
    "codegen": "CodeGen",
    "gpt_bigcode": "GPT-BigCode",
    "gpt_neo": "GPT-Neo",
    "stablelm": "StableLM",
    "rwkv": "a recurrent model",
    "recurrent_gemma": "a recurrent model",
    "blenderbot-small": "Blenderbot with positions behind a norm",
    "bigbird_pegasus": "block-sparse attention",
    "led": "windows with global tokens",
    "longt5": "T5 with windows or global tokens",
    "pegasus_x": "blocks with global tokens",
    "prophetnet": "a decoder that predicts several tokens",
}
_KINDS = {
    **dict.fromkeys(_EXPERTS, "a mixture of experts"),
    **dict.fromkeys(_STATES, "a state-space model or a hybrid with one"),
    **_OTHERS,
}


def refuse_known(config: Config) -> None:
    """Raises CheckpointError, naming what it is, for a model of a kind that is not supported."""
    model_type = config.fields.get("model_type")
    if isinstance(model_type, str) and model_type in _KINDS:
        raise CheckpointError(
            f"{config.where}: model_type {model_type!r} is {_KINDS[model_type]}, which is not "
            "supported"
        )
