"""Translation models with random weights, of the shapes of OPUS-MT and NLLB-600M.

Weights are those that transformers begins training with, from a fixed seed, larger by TABLE and
MATRICES: so probabilities of tokens are as uneven as those of a trained model.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

OPUS = transformers.MarianConfig(
    vocab_size=65001,
    decoder_vocab_size=65001,
    d_model=512,
    encoder_layers=6,
    decoder_layers=6,
    encoder_attention_heads=8,
    decoder_attention_heads=8,
    encoder_ffn_dim=2048,
    decoder_ffn_dim=2048,
    max_position_embeddings=512,
    activation_function="swish",
    scale_embedding=True,
    pad_token_id=65000,
    eos_token_id=0,
    bos_token_id=None,
    decoder_start_token_id=65000,
    forced_eos_token_id=0,
)
NLLB = transformers.M2M100Config(
    vocab_size=256206,
    d_model=1024,
    encoder_layers=12,
    decoder_layers=12,
    encoder_attention_heads=16,
    decoder_attention_heads=16,
    encoder_ffn_dim=4096,
    decoder_ffn_dim=4096,
    max_position_embeddings=1024,
    activation_function="relu",
    scale_embedding=True,
    pad_token_id=1,
    bos_token_id=0,
    eos_token_id=2,
    decoder_start_token_id=2,
)
SHAPES: dict[str, tuple[type[Any], Any]] = {
    "opus-mt": (transformers.MarianMTModel, OPUS),
    "nllb-600m": (transformers.M2M100ForConditionalGeneration, NLLB),
}
TABLE, MATRICES = 6.5, 2.0  # factors


def enlarge(model: Any) -> None:
    """Multiplies tables of words and matrices by their factors."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "embed_positions" not in name:
            table = parameter.shape[0] == model.config.vocab_size
            parameter.data *= TABLE if table else MATRICES


def translation_model(shape: str) -> Any:
    kind, config = SHAPES[shape]
    torch.manual_seed(0)
    model = kind(config).eval()
    enlarge(model)
    return model
