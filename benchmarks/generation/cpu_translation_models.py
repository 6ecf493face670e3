"""Writes translation models with random weights in the forms that cpu_translation.py takes.

    python benchmarks/generation/cpu_translation_models.py SHAPE FOLDER

Run it with a Python that has transformers, torch and ctranslate2. SHAPE is one of those of
translation_shapes.py. Makes hf/ for Packhorse, and ct2-float32/, ct2-int8/ and ct2-bfloat16/ for
CTranslate2.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

from ctranslate2.converters import TransformersConverter
from ctranslate2.converters import transformers as loaders
from translation_shapes import translation_model

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
    model, target = translation_model(sys.argv[1]), Path(sys.argv[2])
    model.save_pretrained(target / "hf")
    for quantization in QUANTIZATIONS:
        folder = str(target / f"ct2-{quantization}")
        Converter(model).convert(folder, quantization=quantization, force=True)


if __name__ == "__main__":
    main()
