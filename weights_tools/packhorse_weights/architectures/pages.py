"""Models that make vectors of pages: the rows of an encoder of images are input of a language
model, among its tokens, and each of its outputs becomes a vector (Faysse et al. 2024, ColPali).

The two halves are models of their own, as `towers.py` says. The spec's `pages` says what lies
between them: `shuffle` x `shuffle` neighbouring rows of a tower become one, side by side."""

import math
from collections.abc import Callable

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
_VECTORS = "embedding_proj_layer"


def _pages(config: Config, tiles: bool) -> Spec:
    """`pages` of the spec. tiles: images are cut into tiles, beside which the whole is seen."""
    shuffle = config.integer("pixel_shuffle_factor", default=4, high=_MOST_SHUFFLE) if tiles else 1
    return {"pages": {"shuffle": shuffle, "tiles": tiles}}


def _rows(config: Config, tiles: bool, image_token: int) -> Spec:
    """`rows` of the stem of the language model."""
    seen = Config(config.section("vision_config").fields, f"{config.where}: vision_config")
    width = seen.integer("hidden_size", default=768)
    shuffle = _pages(config, tiles)["pages"]["shuffle"]
    return {
        "rows": {"features": width * shuffle * shuffle, "bias": not tiles, "id": image_token},
        **_pages(config, tiles),
    }


def _pooled(connector: str) -> Callable[[Config, str, vision.Tensors], Pooled]:
    def pooled(config: Config, prefix: str, tensors: vision.Tensors) -> Pooled:
        weight = tensors.get(f"{_VECTORS}.weight")
        if weight is None or len(weight.shape) != 2:
            raise CheckpointError(
                f"no matrix named {_VECTORS}.weight, which makes vectors of pages"
            )
        ends = f".{connector}.weight"
        layers = [name.removesuffix(".weight") for name in tensors if name.endswith(ends)]
        if len(layers) != 1:
            raise CheckpointError(f"{len(layers)} matrices named *{ends}, expected one")
        vectors = {"size": weight.shape[0], "bias": f"{_VECTORS}.bias" in tensors}
        return Pooled(
            {"pooling": "mean", "normalize": True},
            "no file says: vectors of tokens are what the model is for",
            {"vectors": _VECTORS, "embeddings.rows": layers[0]},
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
    return {**modernbert.spec(model_type, config), **_rows(config, True, token)}


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
        **_rows(config, False, token),
    }


def _tiled_images(model_type: str, config: Config) -> Spec:
    return {**siglip.image_spec("siglip", config), **_pages(config, True)}


def _whole_images(model_type: str, config: Config) -> Spec:
    return {**siglip.image_spec("siglip", config), **_pages(config, False)}


def _images(model_type: str, class_name: str, spec: Callable[[str, Config], Spec]) -> Architecture:
    return Architecture(
        classes={model_type: class_name},
        spec=spec,
        names=siglip.IMAGE_NAMES,
        encoder=("embeddings.", "encoder."),
        unused=("embeddings.position_ids",),
        pooled=_image_pooled,
        made=_made_image,
    )


IMAGES = _images("colmodernvbert_vision", "ColModernVBert", _tiled_images)
WHOLE_IMAGES = _images("colpali_vision", "ColPali", _whole_images)
MODERNBERT_TEXT = Architecture(
    classes={"colmodernvbert_text": "ColModernVBert"},
    spec=_modernbert_text,
    names=modernbert.ARCHITECTURE.names,
    encoder=modernbert.ARCHITECTURE.encoder,
    pooled=_pooled("connector.modality_projection"),
)
GEMMA_TEXT = Architecture(
    classes={"colpali_text": "ColPali"},
    spec=_gemma_text,
    names=decoder.NAMES,
    encoder=decoder.ARCHITECTURE.encoder,
    pooled=_pooled("multi_modal_projector.linear"),
)
