"""What a family file declares, and what all encoder families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.layout import Spec

# `hidden_act` of transformers -> `ffn.activation` of the spec. gelu_new, gelu_fast and their
# relatives are one function, the tanh approximation, written differently.
ACTIVATIONS: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}

_MAX_LAYERS = 4096


@dataclass(frozen=True)
class Architecture:
    """One family of checkpoints.

    classes: `model_type` -> how its class names in `architectures` begin.
    spec: (model type, config) -> spec, without `heads` and `embedding`.
    names: our name, or the layer it belongs to -> theirs, without the checkpoint's prefix. `{i}` is
        a layer's number. `.weight` and `.bias` are appended where ours has them.
    pooler_activation: of the pooler head; the head exists where the checkpoint has its weights.
    encoder: how the names of the model itself begin. A tensor below one of these that nothing
        reads means that the checkpoint computes something else.
    unused: names that may stay unread all the same (buffers).
    """

    classes: Mapping[str, str]
    spec: Callable[[str, Config], Spec]
    names: Mapping[str, str]
    pooler_activation: str
    encoder: tuple[str, ...]
    unused: tuple[str, ...]


def encoder_spec(family: str, config: Config, position_offset: int) -> Spec:
    """The spec of a post-norm encoder with learned positions.

    Raises CheckpointError where the config asks for anything that the spec does not say.
    """
    for field in ("is_decoder", "add_cross_attention", "quantization_config", "is_encoder_decoder"):
        config.refuse(field)
    config.refuse("position_embedding_type", "absolute")
    config.refuse("pruned_heads", {})
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden % heads:
        raise CheckpointError(
            f"{config.where}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
        )
    positions = config.integer("max_position_embeddings", low=position_offset + 1)
    return {
        "format": 1,
        "family": family,
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": hidden,
        "num_layers": config.integer("num_hidden_layers", high=_MAX_LAYERS),
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": hidden // heads,
        "intermediate_size": config.integer("intermediate_size"),
        "type_vocab_size": config.integer("type_vocab_size", default=2, low=0),
        "max_seqlen": positions - position_offset,
        "positions": {"kind": "learned", "count": positions, "offset": position_offset},
        "norm": {
            "kind": "layer",
            "placement": "post",
            "eps": config.number("layer_norm_eps", 1e-12),
        },
        "attention": {"mask": "bidirectional"},
        "ffn": {"kind": "plain", "activation": config.choice("hidden_act", ACTIVATIONS, "gelu")},
    }
