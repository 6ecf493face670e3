"""NomicBERT (Nussbaum et al. 2024): post-norm, rotary positions, SwiGLU, biases in norms only."""

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures.base import Architecture, encoder_spec
from packhorse_weights.architectures.heads import OF_POOLER, masked_lm
from packhorse_weights.architectures.rope import rope_theta
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec

# Published checkpoints name their fields as GPT-2 does.
FIELDS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
    "activation_function": "hidden_act",
}
TRAINED_LENGTH = 2048
# Fields for variants of the published code, with the values that mean what is computed here.
FIXED = {
    "prenorm": (),
    "parallel_block": (),
    "shared_attention_norm": (),
    "qkv_proj_bias": (),
    "mlp_fc1_bias": (),
    "mlp_fc2_bias": (),
    "use_rms_norm": (),
    "rms_norm": (),
    "causal": (),
    "num_experts": (0,),
    "moe_every_n_layers": (0,),
    "rotary_emb_interleaved": (),
    "rotary_emb_scale_base": (),
    "rotary_emb_fraction": (1, 1.0),
    "max_trained_positions": (TRAINED_LENGTH,),
    "scale_attn_by_inverse_layer_idx": (),
}


# Gated activations, by their names in the published code.
_GATES = {**{name: name for name in ACTIVATIONS}, "swiglu": "silu", "geglu": "gelu"}


def spec(model_type: str, config: Config) -> Spec:
    for name, harmless in FIXED.items():
        config.refuse(name, *harmless)
    config = config.renamed(FIELDS)
    gate = config.choice("hidden_act", _GATES, "silu")
    result = encoder_spec(model_type, Config({**config.fields, "hidden_act": gate}, config.where))
    positions = result["max_seqlen"]
    if config.fields.get("rotary_scaling_factor") is not None:
        # Beyond the trained length, frequencies would change from one sequence to the next.
        positions = min(positions, TRAINED_LENGTH)
    return result | {
        "max_seqlen": positions,
        "positions": {"kind": "none"},
        "attention": {
            "mask": "bidirectional",
            "qkv_bias": False,
            "output_bias": False,
            "rope": {"theta": rope_theta(config, 1000.0)},
        },
        "ffn": {**result["ffn"], "kind": "gated", "up_bias": False, "down_bias": False},
    }


_PREDICTIONS = "cls.predictions"

ARCHITECTURE = Architecture(
    classes={"nomic_bert": "NomicBert"},
    spec=spec,
    names={
        "embeddings.word": "embeddings.word_embeddings.weight",
        "embeddings.type": "embeddings.token_type_embeddings.weight",
        "embeddings.norm": "emb_ln",
        "layers.{i}.attention.qkv": "encoder.layers.{i}.attn.Wqkv",
        "layers.{i}.attention.output": "encoder.layers.{i}.attn.out_proj",
        "layers.{i}.attention.norm": "encoder.layers.{i}.norm1",
        "layers.{i}.ffn.gate": "encoder.layers.{i}.mlp.fc12",
        "layers.{i}.ffn.up": "encoder.layers.{i}.mlp.fc11",
        "layers.{i}.ffn.down": "encoder.layers.{i}.mlp.fc2",
        "layers.{i}.ffn.norm": "encoder.layers.{i}.norm2",
        "pooler": "pooler.dense",
    },
    encoder=("embeddings.", "emb_ln.", "encoder.", "pooler."),
    heads=OF_POOLER,
    masked_lm=masked_lm(
        f"{_PREDICTIONS}.transform.dense",
        f"{_PREDICTIONS}.transform.layer_norm",
        f"{_PREDICTIONS}.decoder",
        f"{_PREDICTIONS}.bias",
    ),
)
