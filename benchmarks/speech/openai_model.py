"""A folder of Whisper (CTranslate2 or Hugging Face) as a model of the package openai-whisper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def load_openai(folder: Path) -> Any:
    """whisper.model.Whisper in float32 with the folder's weights."""
    import torch
    from packhorse_weights import inspect_checkpoint
    from whisper.model import ModelDimensions, Whisper

    checkpoint = inspect_checkpoint(folder)
    tensors = {
        name: torch.from_numpy(np.array(checkpoint.tensors[stored].data).astype(np.float32))
        for name, stored in checkpoint.names.items()
    }
    stacks = [checkpoint.spec["stacks"][side] for side in ("encoder", "decoder")]
    sizes = []
    for stack, first in zip(
        stacks, (stacks[0]["stem"]["features"], stacks[1]["stem"]["vocab_size"]), strict=True
    ):
        layers = stack["layers"]
        heads = layers[0]["blocks"][0]["num_heads"]
        sizes += [first, stack["max_seqlen"], stack["hidden_size"], heads, len(layers)]
    model = Whisper(ModelDimensions(*sizes))
    state = {}

    def take(target: str, source: str) -> None:
        for part in ("weight", "bias"):
            if f"{source}.{part}" in tensors:
                state[f"{target}.{part}"] = tensors[f"{source}.{part}"]

    take("encoder.conv1", "encoder.embeddings.convolution.0")
    take("encoder.conv2", "encoder.embeddings.convolution.1")
    take("encoder.ln_post", "encoder.final_norm")
    take("decoder.ln", "decoder.final_norm")
    state["encoder.positional_embedding"] = tensors["encoder.embeddings.position"]
    state["decoder.positional_embedding"] = tensors["decoder.embeddings.position"]
    state["decoder.token_embedding.weight"] = tensors["decoder.embeddings.word"]
    for side, count in (("encoder", sizes[4]), ("decoder", sizes[9])):
        for layer in range(count):
            to, of = f"{side}.blocks.{layer}", f"{side}.layers.{layer}"
            kinds = {"attn": "attention", "cross_attn": "cross_attention"}
            for kind, name in kinds.items():
                if (side, kind) == ("encoder", "cross_attn"):
                    continue
                take(f"{to}.{kind}_ln", f"{of}.{name}.norm")
                for part in ("query", "key", "value"):
                    take(f"{to}.{kind}.{part}", f"{of}.{name}.{part}")
                take(f"{to}.{kind}.out", f"{of}.{name}.output")
                # Keys have no bias there: one of CTranslate2's folders is zeros.
                bias = state.pop(f"{to}.{kind}.key.bias", None)
                if bias is not None and bias.any():
                    raise ValueError(f"keys of {of}.{name} have a bias, expected none")
            take(f"{to}.mlp_ln", f"{of}.ffn.norm")
            take(f"{to}.mlp.0", f"{of}.ffn.up")
            take(f"{to}.mlp.2", f"{of}.ffn.down")
    missing = model.state_dict().keys() - state.keys()
    if missing:
        raise ValueError(f"the folder has no {min(missing)}")
    model.load_state_dict(state)
    return model.eval()
