"""The declaration of a family of models, and functions that several families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures.heads import Head, LmHead, MaskedLm, TextHead
from packhorse_weights.config import MOST_LAYERS, Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import Tensor


@dataclass(frozen=True)
class Pooled:
    """The pooling of a family, where no file of sentence-transformers names one.

    embedding: `embedding` of the spec. reason: why, for people.
    names: our name of a layer -> theirs, complete. heads, fields: of the spec, what goes with it.
    """

    embedding: Spec
    reason: str
    names: Mapping[str, str] = field(default_factory=dict)
    heads: Spec = field(default_factory=dict)
    fields: Spec = field(default_factory=dict)


def any_config(config: Config) -> bool:
    return True


@dataclass(frozen=True)
class Architecture:
    """One family of checkpoints.

    classes: `model_type` -> the beginning of its class names in `architectures`.
    spec: (model type, config) -> the model as `spec.from_layer` takes it, without `heads` and
        `embedding`: the blocks that all layers have, and what single layers have of their own.
    names: our name, or the layer it belongs to -> theirs, without the checkpoint's prefix. `{i}` is
        a layer's number. `.weight` and `.bias` are appended where ours has them. One of
        layout.STACKS stands for the layers it holds.
    encoder: how the names of the model itself begin. A tensor below one of these that nothing
        reads means that the checkpoint computes something else.
    unused: names that may stay unread all the same (buffers); `{i}` as in `names`.
    transposed: which layers of `names` the checkpoint stores as [in, out].
    pooler_activation: of the pooler head; the head exists where `names` has it and the checkpoint
        has its weights.
    heads: how the name of a class in `architectures` ends -> the classifier that it has.
    masked_lm: the head of its masked language model.
    lm_head: of its causal language model.
    text_head: of its decoder, where it has an encoder as well; names then begin with the stack's.
    pooled: (config, prefix, tensors) -> how it pools, where that is not as sentence-transformers
        takes texts.
    made: (config, prefix, tensors) -> tensors that the files lack, or hold in another form.
    accepts: which configs of its model types are meant, where two families share one.
    """

    classes: Mapping[str, str]
    spec: Callable[[str, Config], Spec]
    names: Mapping[str, str]
    encoder: tuple[str, ...]
    unused: tuple[str, ...] = ()
    transposed: tuple[str, ...] = ()
    pooler_activation: str = "tanh"
    heads: Mapping[str, Head] = field(default_factory=dict)
    masked_lm: MaskedLm | None = None
    lm_head: LmHead | None = None
    text_head: TextHead | None = None
    pooled: Callable[[Config, str, Mapping[str, Tensor]], Pooled] | None = None
    made: Callable[[Config, str, Mapping[str, Tensor]], dict[str, Tensor]] | None = None
    accepts: Callable[[Config], bool] = any_config


def refuse_variants(config: Config) -> None:
    """Raises CheckpointError for config fields that turn any model of transformers into something
    else."""
    for name in ("add_cross_attention", "is_encoder_decoder"):
        config.refuse(name)
    config.refuse("pruned_heads", {})


def with_defaults(config: Config, **fields: Any) -> Config:
    """The config with `fields` where it says nothing, or null."""
    said = {name: value for name, value in config.fields.items() if value is not None}
    return Config({**config.fields, **fields, **said}, config.where)


def sizes(family: str, config: Config) -> Spec:
    """The fields that every family has, read from their usual names in a config."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if config.fields.get("head_dim") is None and hidden % heads:
        raise CheckpointError(
            f"{config.where}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
        )
    return {
        "family": family,
        "vocab_size": config.tokens("vocab_size"),
        "hidden_size": hidden,
        "num_layers": config.integer("num_hidden_layers", high=MOST_LAYERS),
        "num_heads": heads,
        "num_kv_heads": config.integer("num_key_value_heads", default=heads),
        "head_dim": config.integer("head_dim", default=hidden // heads),
        "intermediate_size": config.integer("intermediate_size"),
    }


def encoder_spec(
    family: str, config: Config, padding_id: int | None = None, activation: str = "gelu"
) -> Spec:
    """The spec of a post-norm encoder with learned positions.

    padding_id: positions skip this token and begin behind its row, that of the padding. None: they
        begin with the first row.
    activation: the activation of feed-forward blocks if the config does not name one.

    Raises CheckpointError if the config asks for anything that the spec cannot express.
    """
    refuse_variants(config)
    activation = config.choice("hidden_act", ACTIVATIONS, activation)
    config.refuse("is_decoder")
    config.refuse("position_embedding_type", "absolute")
    offset = 0 if padding_id is None else padding_id + 1
    count = config.tokens("max_position_embeddings", low=offset + 1)
    positions: dict[str, Any] = {"kind": "learned", "count": count, "offset": offset}
    if padding_id is not None:
        positions["padding_id"] = padding_id
    return {
        **sizes(family, config),
        "type_vocab_size": config.integer("type_vocab_size", default=2, low=0),
        "max_seqlen": count - offset,
        "positions": positions,
        "norm": {
            "kind": "layer",
            "placement": "post",
            "eps": config.number("layer_norm_eps", 1e-12),
        },
        "attention": {"mask": "bidirectional"},
        "ffn": {"kind": "plain", "activation": activation},
    }


def rms_norms(config: Config, eps: float) -> dict[str, Any]:
    """Norms of decoders like Llama's: RMSNorm before each block, none after the embedding. `eps`
    is meant where the config names none."""
    return {
        "kind": "rms",
        "placement": "pre",
        "eps": config.number("rms_norm_eps", eps),
        "embeddings": False,
    }


def local_layers(
    config: Config, spec: Spec, window: int, local: list[int], rope: str | None = None
) -> dict[str, Any]:
    """Returns `layers` of the spec, or nothing where none has a window.

    local: the layers with the window if the config names none.
    rope: the name of the rotation that these layers have; None: that of all others.
    """
    if config.fields.get("layer_types") is not None:
        types = config.texts("layer_types")
        known = ("full_attention", "sliding_attention")
        if len(types) != spec["num_layers"] or {*types} - {*known}:
            raise CheckpointError(
                f"{config.where}: layer_types {types!r:.80}: expected one of {', '.join(known)} "
                "for each layer"
            )
        local = [i for i, kind in enumerate(types) if kind == "sliding_attention"]
    own = {"window": window} | ({} if rope is None else {"rope": rope})
    return (
        {"layers": [own if i in local else {} for i in range(spec["num_layers"])]} if local else {}
    )
