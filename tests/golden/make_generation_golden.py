"""Makes tiny causal language models, and what transformers makes of them.

    pip install torch transformers
                                                    (made with torch 2.13.0, transformers 4.57.6)
    python tests/golden/make_generation_golden.py           all of generation_cases.py, and the
                                                            embedder embedding-gemma
    python tests/golden/make_generation_golden.py NAME ...  those of these names only

Each is a folder of tests/golden/generation as users have them, with golden.npz beside it:

    versions                    of torch and transformers
    ids, cu_seqlens             the packed batch
    logits                      [T, vocab_size] after every token
    bfloat16_error              the largest, and the root of the mean square, of what PyTorch's own
                                bfloat16 on the CPU differs by
    prompts, prompt_lengths     one after the other
    continuations               [prompts, 200] greedy: the largest logit at each step
    smallest_gap                between the two largest logits of any of those steps

Every sequence was run without padding, in float32 with eager attention and a cache. A prompt whose
continuation has two logits closer than SMALLEST_GAP is drawn anew, so that an implementation's
rounding does not decide, and so is one whose continuation repeats a few tokens. The weights are
larger than a trained model's, the norms far from identity: so a wrong activation, position, scale
or tensor shows.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers
from generation_cases import DEFAULTS, DEFAULTS_OF, MODELS, RENAMED, Case
from golden_parts import IDENTITY, dense_config, linear, state, write_modules
from safetensors.torch import save_file
from torch import nn
from transformers.pytorch_utils import Conv1D

HERE = Path(__file__).parent / "generation"
VERSIONS = f"torch {torch.__version__}, transformers {transformers.__version__}"
LENGTHS = (17, 1, 2, 70, 33)  # tokens of the sequences whose logits are kept
PROMPTS = (1, 6, 33, 128, 300)
NEW_TOKENS = 200
SMALLEST_GAP = 4e-3
DRAWN = 12  # prompts of one length that are continued at once
FEWEST_TOKENS = 8  # distinct ones of a continuation
QUERIES_AND_KEYS = ("q_proj", "k_proj", "qkv_proj", "query_key_value", "c_attn")
GIVING_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
_LANGUAGE = "language_model"  # the part that is kept of models that also see


def randomise(model: nn.Module, embedding_std: float = 0.7) -> None:
    generator = torch.Generator().manual_seed(2026)

    def normal(parameter: torch.Tensor, std: float, mean: float = 0.0) -> None:
        values = torch.randn(parameter.shape, generator=generator) * std + mean
        parameter.data.copy_(values)

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            of_conv = isinstance(module, Conv1D)
            features = module.weight.shape[0 if of_conv else 1]
            gain = 2.0 if name.endswith(QUERIES_AND_KEYS) else 1.2
            normal(module.weight, gain / features**0.5)
            if module.bias is not None:
                normal(module.bias, 0.3)
        elif isinstance(module, nn.Embedding):
            normal(module.weight, embedding_std)
        elif isinstance(module, nn.LayerNorm):
            normal(module.weight, 0.3, mean=1.0)
            normal(module.bias, 0.3)
        elif type(module).__name__.endswith("RMSNorm"):
            mean = 1.0
            if type(module).__name__.startswith("Gemma"):  # 1 is added to the weight
                # Blocks that give more than they are given: else a token would predict itself.
                mean = 1.5 if name.endswith((*GIVING_NORMS, "model.norm")) else 0.0
            normal(module.weight, 0.3, mean=mean)


def cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Casts parameters alone: frequencies of a rotation stay float32, as transformers loads
    them."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def config_of(case: Case) -> Any:
    renamed = RENAMED.get(case.model_type, ())
    fields = {name: value for name, value in DEFAULTS.items() if name not in renamed}
    fields |= DEFAULTS_OF.get(case.model_type, {}) | case.config
    config = transformers.AutoConfig.for_model(case.model_type, **fields)
    config._attn_implementation = "eager"
    return config


@torch.no_grad()
def logits_of(model: Any, sequences: list[np.ndarray]) -> np.ndarray:
    rows = [model(input_ids=torch.tensor(ids)[None]).logits[0].float() for ids in sequences]
    return torch.cat(rows).numpy()


@torch.no_grad()
def continue_greedily(model: Any, prompts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the tokens after prompts of one length, the smallest gap between the two largest logits)"""
    output = model.generate(
        torch.tensor(prompts),
        attention_mask=torch.ones(prompts.shape, dtype=torch.int64),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    top = torch.stack(output.logits).topk(2).values
    gaps = (top[..., 0] - top[..., 1]).min(0).values
    return output.sequences[:, prompts.shape[1] :].numpy(), gaps.numpy()


def draw_prompt(
    model: Any, length: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, float]:
    """(a prompt, its continuation, the smallest gap of that)"""
    vocab_size = model.get_input_embeddings().num_embeddings
    for _ in range(10):
        prompts = random.integers(0, vocab_size, (DRAWN, length))
        for prompt, tokens, gap in zip(prompts, *continue_greedily(model, prompts), strict=True):
            if gap >= SMALLEST_GAP and len({*tokens}) >= FEWEST_TOKENS:
                return prompt, tokens, float(gap)
    raise RuntimeError(f"no prompt of {length} tokens without near ties")


def save(folder: Path, case: Case, model: Any) -> None:
    """A model that also sees is stored with its language part alone."""
    tensors = model.state_dict()
    if case.model_type == "gemma3":
        tensors = {name: value for name, value in tensors.items() if _LANGUAGE in name}
    model.save_pretrained(folder, state_dict=tensors)
    (folder / "generation_config.json").unlink(missing_ok=True)


def make(case: Case) -> None:
    torch.manual_seed(2026)
    config = config_of(case)
    kind = transformers.AutoModelForCausalLM
    if case.model_type == "gemma3":
        config.vision_config.update(
            {
                "hidden_size": 8,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
                "intermediate_size": 8,
                "image_size": 28,
            }
        )
        kind = transformers.Gemma3ForConditionalGeneration
        model = kind(config)
    else:
        model = kind.from_config(config)
    model.eval()
    randomise(model, case.embedding_std)
    if not case.float32:
        cast(model, torch.bfloat16)
        cast(model, torch.float32)
    folder = HERE / case.name
    folder.mkdir(parents=True, exist_ok=True)

    random = np.random.default_rng(2026)
    vocab_size = model.get_input_embeddings().num_embeddings
    sequences = [random.integers(0, vocab_size, length) for length in LENGTHS]
    logits = logits_of(model, sequences)
    cast(model, torch.bfloat16)
    error = logits_of(model, sequences) - logits
    cast(model, torch.float32)
    if case.float32:
        randomise(model, case.embedding_std)  # not those that went through bfloat16
    save(folder, case, model)
    arrays = {
        "versions": np.array(VERSIONS),
        "ids": np.concatenate(sequences).astype(np.int32),
        "cu_seqlens": np.cumsum([0, *LENGTHS]).astype(np.int32),
        "logits": logits,
        "bfloat16_error": np.array([np.abs(error).max(), np.sqrt((error**2).mean())]),
    }
    np.savez_compressed(folder / "golden.npz", **arrays)
    prompts, continuations, gaps = [], [], []
    for length in PROMPTS:
        prompt, tokens, gap = draw_prompt(model, length, random)
        print(f"  {length}: gap {gap:.1e}, {len(set(tokens))} distinct tokens")
        prompts.append(prompt)
        continuations.append(tokens)
        gaps.append(gap)
    np.savez_compressed(
        folder / "golden.npz",
        **arrays,
        prompts=np.concatenate(prompts).astype(np.int32),
        prompt_lengths=np.array(PROMPTS, np.int32),
        continuations=np.stack(continuations).astype(np.int16),
        smallest_gap=np.array(min(gaps)),
    )
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{case.name}: {size} bytes, logits of std {logits.std():.2f}")


@torch.no_grad()
def make_embedding_gemma() -> None:
    """A Gemma 3 that sees both ways, the mean of its tokens, two dense layers, length 1."""
    folder = HERE / "embedding-gemma"
    folder.mkdir(parents=True, exist_ok=True)
    case = Case(
        "embedding-gemma",
        "gemma3_text",
        {"sliding_window": 16, "num_hidden_layers": 7, "use_bidirectional_attention": True},
    )
    config = config_of(case)
    model = transformers.AutoModel.from_config(config).eval()
    randomise(model)
    cast(model, torch.bfloat16)
    cast(model, torch.float32)
    model.save_pretrained(folder)
    # The width of the window is written as the model keeps it, and reading would halve it again.
    written = json.loads((folder / "config.json").read_text())
    written["sliding_window"] = case.config["sliding_window"]
    (folder / "config.json").write_text(json.dumps(written, indent=2))
    assert transformers.AutoConfig.from_pretrained(folder).sliding_window == config.sliding_window
    layers = [linear(32, 48, False, 1), linear(48, 32, False, 2)]
    models = "sentence_transformers.models."
    write_modules(
        folder,
        [
            (models + "Pooling", "1_Pooling", {"pooling_mode_mean_tokens": True}),
            (models + "Dense", "2_Dense", dense_config(layers[0], IDENTITY)),
            (models + "Dense", "3_Dense", dense_config(layers[1], IDENTITY)),
            (models + "Normalize", "4_Normalize", {}),
        ],
    )
    for i, layer in enumerate(layers):
        save_file(state(layer), folder / f"{i + 2}_Dense" / "model.safetensors")
    random = np.random.default_rng(2026)
    sequences = [random.integers(0, DEFAULTS["vocab_size"], length) for length in LENGTHS]
    hidden = [model(input_ids=torch.tensor(ids)[None]).last_hidden_state[0] for ids in sequences]
    pooled = layers[1](layers[0](torch.stack([one.mean(0) for one in hidden])))
    np.savez_compressed(
        folder / "golden.npz",
        versions=np.array(VERSIONS),
        ids=np.concatenate(sequences).astype(np.int32),
        cu_seqlens=np.cumsum([0, *LENGTHS]).astype(np.int32),
        hidden=torch.cat(hidden).numpy(),
        embedding=nn.functional.normalize(pooled).numpy(),
    )


if __name__ == "__main__":
    print(VERSIONS)
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names
    for one in MODELS:
        if not names or one.name in names:
            make(one)
    if not names or "embedding-gemma" in names:
        make_embedding_gemma()
