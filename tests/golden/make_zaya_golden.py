"""Makes a tiny ZAYA1, and what transformers makes of it.

    pip install torch transformers
                                                    (made with torch 2.13.0, transformers 5.23.0)
    python tests/golden/make_zaya_golden.py

tests/golden/generation/zaya is a folder as make_generation_golden.py makes them, which says what
lies in its golden.npz. Beside that:

    block_lengths               of the sequences that were given to one attention block
    block_input, block_output   [T, hidden_size] of the attention of layer 0
    chosen                      [layers, experts + 1] how often each class was chosen

transformers before 5 does not have this family. Weights are float32. All results are of the model
that was saved: one that transformers loads has -1 as the balance of the class without an expert,
whatever the file says, so that no token takes that class.
"""

from __future__ import annotations

import copy
import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import make_generation_golden as generation
import numpy as np
import torch
import transformers
from torch import nn
from transformers.models.zaya import modeling_zaya as zaya

LAYERS, EXPERTS = 3, 4
BLOCK_LENGTHS = (1, 37, 2, 3, 70)


def config() -> Any:
    kinds = {"hybrid": 5e4, "hybrid_sliding": 100.0}
    return transformers.ZayaConfig(
        vocab_size=67,
        hidden_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        moe_intermediate_size=24,
        num_experts=EXPERTS,
        router_hidden_size=16,
        cca_time0=3,
        cca_time1=2,
        max_position_embeddings=512,
        sliding_window=20,
        layer_types=["hybrid", "hybrid_sliding", "hybrid"],
        rope_parameters={
            kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.5}
            for kind, theta in kinds.items()
        },
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation="eager",
    )


def randomise(model: nn.Module) -> None:
    """Draws parameters of the kinds that generation.randomise does not know."""
    generator = torch.Generator().manual_seed(7)

    def normal(parameter: torch.Tensor, std: float, mean: float = 0.0) -> None:
        values = torch.randn(parameter.shape, generator=generator) * std + mean
        parameter.data.copy_(values)

    for module in model.modules():
        if isinstance(module, nn.Conv1d):
            normal(module.weight, float(np.prod(module.weight.shape[1:])) ** -0.5)
            normal(module.bias, 0.3)
        elif isinstance(module, zaya.ZayaResidualScaling):
            for name, parameter in module.named_parameters():
                normal(parameter, 0.2, mean=1.0 if name.endswith("scale") else 0.0)
        elif isinstance(module, zaya.ZayaQKNorm):
            normal(module.temp, 0.2, mean=1.2)
        elif isinstance(module, zaya.ZayaExperts):
            for parameter in module.parameters():
                normal(parameter, 2 * parameter.shape[-1] ** -0.5)
        elif isinstance(module, zaya.ZayaRouter):
            normal(module.balancing_biases, 0.1)
            if module.use_eda:
                normal(module.router_states_scale, 0.3, mean=0.7)
        elif isinstance(module, zaya.ZayaModel):
            normal(module.input_hidden_states_scale, 0.2, mean=1.0)
            normal(module.input_hidden_states_bias, 0.2)


@torch.no_grad()
def block_of(model: Any, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Inputs and outputs of attention for normed hidden states, each sequence by itself."""
    inputs, outputs = [], []
    for length in BLOCK_LENGTHS:
        hidden = torch.tensor(random.normal(0, 1, (1, length, 32)), dtype=torch.float32)
        rotation = model.model.rotary_emb(hidden, torch.arange(length)[None], "hybrid")
        mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
        found, _ = model.model.layers[0].self_attn(
            hidden, attention_mask={"causal": mask}, position_embeddings=rotation
        )
        inputs.append(hidden[0])
        outputs.append(found[0])
    return {
        "block_lengths": np.array(BLOCK_LENGTHS, np.int32),
        "block_input": torch.cat(inputs).numpy(),
        "block_output": torch.cat(outputs).numpy(),
    }


def counting(model: Any, counts: np.ndarray) -> None:
    """Has the routers count their choices."""

    def hook(layer: int) -> Any:
        def count(module: Any, _: Any, output: Any) -> None:
            biased = torch.softmax(output[0], -1) + module.balancing_biases
            np.add.at(counts[layer], biased.argmax(-1).numpy().ravel(), 1)

        return count

    for i, layer in enumerate(model.model.layers):
        layer.mlp.gate.register_forward_hook(hook(i))


def make() -> None:
    torch.manual_seed(2026)
    model = transformers.ZayaForCausalLM(config()).eval()
    generation.randomise(model)
    randomise(model)
    folder = generation.HERE / "zaya"
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    random = np.random.default_rng(2026)
    sequences = [random.integers(0, 67, length) for length in generation.LENGTHS]
    counts = np.zeros((LAYERS, EXPERTS + 1), np.int64)
    counting(model, counts)
    logits = generation.logits_of(model, sequences)
    chosen = counts.copy()
    half = copy.deepcopy(model)
    generation.cast(half, torch.bfloat16)
    error = generation.logits_of(half, sequences) - logits
    found = [generation.draw_prompt(model, length, random) for length in generation.PROMPTS]
    np.savez_compressed(
        folder / "golden.npz",
        versions=np.array(generation.VERSIONS),
        ids=np.concatenate(sequences).astype(np.int32),
        cu_seqlens=np.cumsum([0, *generation.LENGTHS]).astype(np.int32),
        logits=logits,
        bfloat16_error=np.array([np.abs(error).max(), np.sqrt((error**2).mean())]),
        prompts=np.concatenate([prompt for prompt, _, _ in found]).astype(np.int32),
        prompt_lengths=np.array(generation.PROMPTS, np.int32),
        continuations=np.stack([tokens for _, tokens, _ in found]).astype(np.int16),
        smallest_gap=np.array(min(gap for _, _, gap in found)),
        chosen=chosen,
        **block_of(model, random),
    )
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"zaya: {size} bytes, logits of std {logits.std():.2f}, bfloat16 {np.abs(error).max()}")
    print(f"gaps {[gap for _, _, gap in found]}, classes chosen:\n{chosen}")


if __name__ == "__main__":
    print(generation.VERSIONS)
    torch.set_num_threads(1)
    make()
