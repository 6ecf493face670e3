"""Writes translation models with random weights in the forms that cpu_translation.py takes.

    python benchmarks/generation/cpu_translation_models.py SHAPE FOLDER

Run it with a Python that has transformers, torch and ctranslate2. SHAPE is one of SHAPES. Makes hf/
for Packhorse, and ct2-float32/, ct2-int8/ and ct2-bfloat16/ for CTranslate2. Weights are those that
transformers begins training with, from a fixed seed, larger by TABLE and MATRICES: so probabilities
of tokens are as uneven as those of a trained model.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import torch
import transformers
from ctranslate2.converters import TransformersConverter
from ctranslate2.converters import transformers as loaders

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
QUANTIZATIONS = ("float32", "int8", "bfloat16")


class Tokens:
    """As much of a tokenizer as the converter asks for: a name for each number."""

    bos_token, eos_token, unk_token, pad_token = "<s>", "</s>", "<unk>", "<pad>"
    unk_token_id = 3
    num_madeup_words = 0
    special_tokens_map: ClassVar[dict[str, Any]] = {}

    def __init__(self, config: Any) -> None:
        self.tokens = [str(i) for i in range(config.vocab_size)]
        self.tokens[self.unk_token_id] = self.unk_token
        self.tokens[config.pad_token_id] = self.pad_token
        self.tokens[config.eos_token_id] = self.eos_token
        if config.bos_token_id is not None:
            self.tokens[config.bos_token_id] = self.bos_token

    def get_vocab(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    def convert_ids_to_tokens(self, number: int) -> str:
        return self.tokens[number]


class Converter(TransformersConverter):
    """Converts a model that needs no files of a tokenizer."""

    def __init__(self, model: Any) -> None:
        super().__init__("")
        self.model = model

    def _load(self) -> Any:
        loader = loaders._MODEL_LOADERS[type(self.model.config).__name__]
        tokens = Tokens(self.model.config)
        spec = loader.get_model_spec(self.model)
        loader.set_config(spec.config, self.model, tokens)
        loader.set_vocabulary(spec, loader.get_vocabulary(self.model, tokens))
        return spec


def main() -> None:
    kind, config = SHAPES[sys.argv[1]]
    target = Path(sys.argv[2])
    torch.manual_seed(0)
    model = kind(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "embed_positions" not in name:
            parameter.data *= TABLE if parameter.shape[0] == config.vocab_size else MATRICES
    model.save_pretrained(target / "hf")
    for quantization in QUANTIZATIONS:
        folder = str(target / f"ct2-{quantization}")
        Converter(model).convert(folder, quantization=quantization, force=True)


if __name__ == "__main__":
    main()
