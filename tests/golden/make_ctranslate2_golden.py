"""Makes ctranslate2/NAME: models of text_to_text/ as CTranslate2 converts them, and that library's
log-probabilities.

    pip install ctranslate2 torch transformers   (made with 4.8.5, 2.13.0 and 5.24.0)
    python tests/golden/make_ctranslate2_golden.py [NAME ...]

golden.npz beside each model holds, for sources that were each run alone in float32:

    ids, cu_seqlens        the packed sources
    target_ids, target_cu  targets, without the token that begins them
    log_probs              of each token of the targets, and of the end after them
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import ctranslate2
import numpy as np
import transformers
from ctranslate2.converters import TransformersConverter
from ctranslate2.converters import transformers as loaders
from ctranslate2.specs.model_spec import OPTIONAL

HERE = Path(__file__).parent
# name -> (model, quantization, fields of configs that the converter asks for and that transformers
# 5 has no longer)
CASES: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "marian": ("marian", None, {}),
    "marian-int8": ("marian", "int8", {}),
    "marian-sines": ("marian", "int8", {}),  # without tables of positions, as OpenNMT-tf's
    "t5-float16": ("t5", "float16", {}),
    "t5-gated-int8": ("t5-gated", "int8_float16", {}),
    "m2m-100-int16": ("m2m-100", "int16", {}),
    "bart-int8": ("bart", "int8", {"normalize_before": False}),
    "mbart-bfloat16": ("mbart", "bfloat16", {"normalize_before": True}),
    "pegasus": ("pegasus", None, {"normalize_before": True, "normalize_embedding": False}),
}


class Tokens:
    """As much of a tokenizer as the converter asks for: a name for each number."""

    bos_token, eos_token, unk_token, pad_token = "<s>", "</s>", "<unk>", "<pad>"
    unk_token_id = 4
    num_madeup_words = 0
    special_tokens_map: ClassVar[dict[str, Any]] = {}

    def __init__(self, config: Any, generation: Any) -> None:
        self.tokens = [f"token {i}" for i in range(config.vocab_size)]
        self.tokens[4] = "<unk>"
        if generation.pad_token_id != generation.eos_token_id:
            self.tokens[generation.pad_token_id] = "<pad>"
        self.tokens[generation.eos_token_id] = "</s>"

    def get_vocab(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    def convert_ids_to_tokens(self, number: int) -> str:
        return self.tokens[number]


class Converter(TransformersConverter):
    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        super().__init__(name)
        self.sines = False
        self.model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
            HERE / "text_to_text" / name
        )
        for field, value in fields.items():
            setattr(self.model.config, field, value)
        if name == "t5-gated":  # the converter asks whether outputs are scaled by this field
            self.model.config.tie_word_embeddings = False

    def _load(self) -> Any:
        loader = loaders._MODEL_LOADERS[type(self.model.config).__name__]
        tokens = Tokens(self.model.config, self.model.generation_config)
        spec = loader.get_model_spec(self.model)
        if self.sines:
            for stack in (spec.encoder, spec.decoder):
                stack.position_encodings.encodings = OPTIONAL
        loader.set_config(spec.config, self.model, tokens)
        loader.set_vocabulary(spec, loader.get_vocabulary(self.model, tokens))
        return spec


def make(name: str) -> None:
    model, quantization, fields = CASES[name]
    folder = HERE / "ctranslate2" / name
    folder.parent.mkdir(exist_ok=True)
    converter = Converter(model, fields)
    converter.sines = name == "marian-sines"
    converter.convert(str(folder), quantization=quantization, force=True)
    golden = np.load(HERE / "text_to_text" / model / "golden.npz")
    translator = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    tokens = json.loads((folder / "shared_vocabulary.json").read_text())
    ids, cu = golden["ids"], golden["cu_seqlens"]
    start: list[str] = []
    found: list[float] = []
    for (a, b), (c, d) in zip(pairwise(cu), pairwise(golden["target_cu"]), strict=True):
        target = [tokens[i] for i in golden["target_ids"][c + 1 : d]]
        if model == "mbart":  # its first token stands for a language, and is the caller's
            start = [tokens[golden["target_ids"][c]]]
        scores = translator.score_batch([[tokens[i] for i in ids[a:b]]], [start + target])[0]
        found += scores.log_probs
    targets = [golden["target_ids"][c + 1 : d] for c, d in pairwise(golden["target_cu"])]
    np.savez_compressed(
        folder / "golden.npz",
        ids=ids,
        cu_seqlens=cu,
        target_ids=np.concatenate(targets),
        target_cu=golden["target_cu"] - np.arange(len(golden["target_cu"]), dtype=np.int32),
        log_probs=np.array(found, np.float32),
    )
    print(f"{name}: {sum(f.stat().st_size for f in folder.rglob('*'))} bytes, {found[:3]}")


if __name__ == "__main__":
    for one in sys.argv[1:] or CASES:
        make(one)
