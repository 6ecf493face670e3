"""Makes a folder of CTranslate2 with random weights in the shape of a model of Whisper, for figures
of speed.

    pip install ctranslate2 transformers torch
    python benchmarks/speech/random_whisper.py TINY_EN FOLDER [--width 768] [--layers 12]

TINY_EN: a folder of CTranslate2 of a model that knows English alone, whose tokenizer is taken.
Defaults are the shape of small.en.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
import transformers
from ctranslate2.converters.transformers import WhisperLoader

VOCABULARY = 51864


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tiny", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=arguments.width,
        encoder_layers=arguments.layers,
        decoder_layers=arguments.layers,
        encoder_attention_heads=arguments.width // 64,
        decoder_attention_heads=arguments.width // 64,
        encoder_ffn_dim=4 * arguments.width,
        decoder_ffn_dim=4 * arguments.width,
        max_target_positions=448,
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()
    spec = WhisperLoader().get_model_spec(model)
    tokens = json.loads((arguments.tiny / "tokenizer.json").read_text())
    names = {**tokens["model"]["vocab"]}
    names |= {token["content"]: token["id"] for token in tokens["added_tokens"]}
    ordered = {number: name for name, number in names.items()}
    spec.register_vocabulary([ordered.get(i, f"<|{i}|>") for i in range(VOCABULARY)])
    known = json.loads((arguments.tiny / "config.json").read_text())
    for name in ("suppress_ids", "suppress_ids_begin", "lang_ids"):
        if name in known:
            setattr(spec.config, name, known[name])
    spec.config.alignment_heads = [[arguments.layers - 1, 0]]
    spec.validate()
    spec.optimize(quantization="float16")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(arguments.folder))
    for name in ("tokenizer.json", "preprocessor_config.json"):
        if (arguments.tiny / name).exists():
            shutil.copy(arguments.tiny / name, arguments.folder)


if __name__ == "__main__":
    main()
