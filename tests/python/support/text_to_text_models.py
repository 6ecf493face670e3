"""Small models with an encoder and a decoder that have a tokenizer: golden models with a vocabulary
of the size that a golden tokenizer has."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import GOLDEN
from packhorse.text import TextTokenizer
from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors
from packhorse_weights.tensor import Tensor

# model -> the folder of its tokenizer
TOKENIZERS = {
    "marian": "marian",
    "m2m-100": "m2m-100",
    "mbart": "mbart",
    "t5": "t5",
}
SETTINGS = {"max_new_tokens": 12, "no_repeat_ngram_size": 2}
_TABLES = ("shared.weight", "lm_head.weight", "final_logits_bias")


def make_folder(to: Path, model: str, tokenizer: str | None = None, **settings: Any) -> Path:
    """A model folder. settings: of its generation_config.json."""
    tokenizer = tokenizer or TOKENIZERS[model]
    vocabulary = TextTokenizer.load(GOLDEN / "tokenizers" / tokenizer).vocab_size
    shutil.copytree(GOLDEN / "text_to_text" / model, to)
    for file in (GOLDEN / "tokenizers" / tokenizer).iterdir():
        if file.name != "config.json":
            shutil.copyfile(file, to / file.name)
    random = np.random.default_rng(3)
    tensors: dict[str, Tensor] = {}
    for name, tensor in read_safetensors(to / "model.safetensors").items():
        data = tensor.data
        if name.endswith(_TABLES):
            shape = [vocabulary if size == 100 else size for size in data.shape]
            data = (random.standard_normal(shape) * 0.7).astype(np.float32)
        tensors[name] = Tensor(data, tensor.dtype)
    (to / "model.safetensors").unlink()
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    write_safetensors(to / "model.safetensors", tensors, dtypes)
    config = json.loads((to / "config.json").read_text())
    of_tokenizer = json.loads((GOLDEN / "tokenizers" / tokenizer / "config.json").read_text())
    named = {"tokenizer_class": of_tokenizer.get("tokenizer_class")}
    changed = {**config, "vocab_size": vocabulary, **{k: v for k, v in named.items() if v}}
    (to / "config.json").write_text(json.dumps(changed))
    file = to / "generation_config.json"
    held = json.loads(file.read_text())
    for name in ("max_length", "forced_bos_token_id"):
        held.pop(name, None)
    file.write_text(json.dumps({**held, **SETTINGS, **settings}))
    return to
