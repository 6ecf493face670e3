"""Models that make vectors of pages: the rows of an encoder of images are input of a language
model, among its tokens, and each of its outputs becomes a vector (Faysse et al. 2024, ColPali).

The two halves are models of their own, as `towers.py` says. The spec's `pages` says what lies
between them: `shuffle` x `shuffle` neighbouring rows of a tower become one, side by side."""

import math
from collections.abc import Callable
from typing import NamedTuple

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures import decoder, modernbert, siglip, vision
from packhorse_weights.architectures.base import (
    Architecture,
    Pooled,
    rms_norms,
    sizes,
    with_defaults,
)
from packhorse_weights.architectures.rope import rope
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import Tensor

_MOST_SHUFFLE = 64


class _Joint(NamedTuple):
    """Layers between the two halves of a model, and behind them.

    connector: the layer that makes input of the language model of a tower's rows.
    vectors: the layer that makes vectors of the language model's outputs.
    shuffle: the config's field, and what it is by default; None: 1, images are seen as a whole.
        Others are cut into tiles, beside which the whole is seen.
    width: columns of a tower's rows where the config does not say.
    """

    connector: str
    vectors: str = "embedding_proj_layer"
    shuffle: tuple[str, int] | None = None
    width: int = 768


MODERN = _Joint("connector.modality_projection", shuffle=("pixel_shuffle_factor", 4))
PALI = _Joint("multi_modal_projector.linear")
SMOL = _Joint("connector.modality_projection.proj", "linear", ("scale_factor", 2), 1152)


def _pages(config: Config, joint: _Joint) -> Spec:
    """`pages` of the spec."""
    if joint.shuffle is None:
        return {"pages": {"shuffle": 1, "tiles": False}}
    field, default = joint.shuffle
    shuffle = config.integer(field, default=default, high=_MOST_SHUFFLE)
    return {"pages": {"shuffle": shuffle, "tiles": True}}


def _rows(config: Config, joint: _Joint, image_token: int) -> Spec:
    """`rows` of the stem of the language model."""
    seen = Config(config.section("vision_config").fields, f"{config.where}: vision_config")
    width = seen.integer("hidden_size", default=joint.width)
    pages = _pages(config, joint)
    shuffle, tiles = pages["pages"]["shuffle"], pages["pages"]["tiles"]
    rows = {"features": width * shuffle * shuffle, "bias": not tiles, "id": image_token}
    return {"rows": rows, **pages}


def _pooled(joint: _Joint) -> Callable[[Config, str, vision.Tensors], Pooled]:
    def pooled(config: Config, prefix: str, tensors: vision.Tensors) -> Pooled:
        weight = tensors.get(f"{joint.vectors}.weight")
        if weight is None or len(weight.shape) != 2:
            raise CheckpointError(
                f"no matrix named {joint.vectors}.weight, which makes vectors of pages"
            )
        ends = f".{joint.connector}.weight"
        layers = [name.removesuffix(".weight") for name in tensors if name.endswith(ends)]
        if len(layers) != 1:
            raise CheckpointError(f"{len(layers)} matrices named *{ends}, expected one")
        vectors = {"size": weight.shape[0], "bias": f"{joint.vectors}.bias" in tensors}
        return Pooled(
            {"pooling": "mean", "normalize": True},
            "no file says: vectors of tokens are what the model is for",
            {"vectors": joint.vectors, "embeddings.rows": layers[0]},
            {"vectors": vectors},
        )

    return pooled


def _image_pooled(config: Config, prefix: str, tensors: vision.Tensors) -> Pooled:
    return Pooled({"pooling": "mean", "normalize": False}, "the mean of patches")


def _made_image(config: Config, prefix: str, tensors: vision.Tensors) -> dict[str, Tensor]:
    patch = f"{prefix}{siglip.IMAGE_NAMES['embeddings.patch']}.weight"
    return {patch: vision.flattened(tensors[patch])}


def _modernbert_text(model_type: str, config: Config) -> Spec:
    token = config.integer("image_token_id", default=50407, low=0)
    return {**modernbert.spec(model_type, config), **_rows(config, MODERN, token)}


def _gemma_text(model_type: str, config: Config) -> Spec:
    """Gemma (Mesnard et al. 2024), all of whose tokens see each other."""
    token = config.integer("image_token_index", default=257152, low=0)
    config = with_defaults(
        config,
        vocab_size=257216,
        hidden_size=2048,
        intermediate_size=16384,
        num_hidden_layers=18,
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=256,
        max_position_embeddings=8192,
    )
    result = sizes(model_type, config)
    rotation = rope(config, 10000.0, result["head_dim"])
    bias = config.boolean("attention_bias", False)
    activation = config.fields.get("hidden_activation") or "gelu_pytorch_tanh"
    config = Config({**config.fields, "hidden_activation": activation}, config.where)
    return {
        **result,
        "embedding_scale": math.sqrt(result["hidden_size"]),
        "type_vocab_size": 0,
        "max_seqlen": config.tokens("max_position_embeddings"),
        "positions": {"kind": "none"},
        "norm": {**rms_norms(config, 1e-6), "gamma_offset": 1.0},
        "attention": {
            "mask": "bidirectional",
            "qkv_bias": bias,
            "output_bias": bias,
            "rope": rotation.spec,
        },
        "ffn": {
            "kind": "gated",
            "activation": config.choice("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh"),
            "up_bias": False,
            "down_bias": False,
        },
        **_rows(config, PALI, token),
    }


def _llama_text(model_type: str, config: Config) -> Spec:
    """SmolLM2 (Allal et al. 2025), whose tokens see those before."""
    token = config.integer("image_token_id", default=128257, low=0)
    config = with_defaults(
        config,
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
        max_position_embeddings=2048,
    )
    return {
        **decoder.spec("llama", config),
        "family": model_type,
        **_rows(config, SMOL, token),
    }


def _smol_images(config: Config) -> Spec:
    """SigLIP with the sizes of Idefics3's tower (Laurençon et al. 2024). There positions are looked
    up by fractions of a side in float32: where a side has a power of two of patches, that is the
    patch's own place."""
    result = siglip.image_spec(
        "siglip",
        with_defaults(
            config, hidden_size=SMOL.width, num_attention_heads=16, image_size=224, patch_size=32
        ),
    )
    places = result["patches"]["positions"]
    rows, columns = places["rows"], places["columns"]
    if rows != columns or rows & (rows - 1):
        raise CheckpointError(
            f"{config.where}: an image has {rows} x {columns} patches, expected the same power of "
            "two on both sides"
        )
    return result


def _images(model_type: str, class_name: str, joint: _Joint) -> Architecture:
    def spec(_: str, config: Config) -> Spec:
        tower = _smol_images(config) if joint is SMOL else siglip.image_spec("siglip", config)
        return {**tower, **_pages(config, joint)}

    return Architecture(
        classes={model_type: class_name},
        spec=spec,
        names=siglip.IMAGE_NAMES,
        encoder=("embeddings.", "encoder."),
        unused=("embeddings.position_ids",),
        pooled=_image_pooled,
        made=_made_image,
    )


def _texts(
    model_type: str,
    class_name: str,
    spec: Callable[[str, Config], Spec],
    like: Architecture,
    joint: _Joint,
) -> Architecture:
    return Architecture(
        classes={model_type: class_name},
        spec=spec,
        names=like.names,
        encoder=like.encoder,
        unused=like.unused,
        pooled=_pooled(joint),
    )


MODERN_IMAGES = _images("colmodernvbert_vision", "ColModernVBert", MODERN)
PALI_IMAGES = _images("colpali_vision", "ColPali", PALI)
SMOL_IMAGES = _images("colidefics3_vision", "ColIdefics3", SMOL)
MODERN_TEXT = _texts(
    "colmodernvbert_text", "ColModernVBert", _modernbert_text, modernbert.ARCHITECTURE, MODERN
)
PALI_TEXT = _texts("colpali_text", "ColPali", _gemma_text, decoder.ARCHITECTURE, PALI)
SMOL_TEXT = _texts("colidefics3_text", "ColIdefics3", _llama_text, decoder.ARCHITECTURE, SMOL)
