"""A tiny model that generates, and a LoRA adapter of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from packhorse_weights.formats.safetensors import write_safetensors
from packhorse_weights.tensor import Tensor
from tiny_tokenizer import with_tokenizer

GOLDEN = Path(__file__).parents[2] / "golden"


def adapted_texts(root: Path) -> tuple[Path, Path]:
    """(a model of texts, an adapter of it that changes what it says)"""
    causal = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}
    model = with_tokenizer(GOLDEN / "llama", root / "model", "bert", causal)
    sizes = json.loads((model / "config.json").read_text())
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    rng = np.random.default_rng(3)
    tensors = {}
    for i in range(sizes["num_hidden_layers"]):
        for kind, shape in (("A", (2, inner)), ("B", (hidden, 2))):
            name = f"base_model.model.model.layers.{i}.mlp.down_proj.lora_{kind}.weight"
            tensors[name] = Tensor(rng.normal(0, 1, shape).astype(np.float32), "float32")
    adapter = root / "adapter"
    adapter.mkdir()
    write_safetensors(adapter / "adapter_model.safetensors", tensors)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["down_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    return model, adapter
