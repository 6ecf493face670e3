"""Makes LoRA adapters of tiny causal language models, and what PEFT makes of them.

    pip install torch transformers peft
                                        (made with torch 2.13.0, transformers 5.23.0, peft 0.21.2)
    python tests/golden/make_adapter_golden.py              all of CASES
    python tests/golden/make_adapter_golden.py NAME ...     those of these names only

Each is a folder of tests/golden/adapters as PEFT saves it, for the model of the same name up to the
first underscore in tests/golden/generation, with golden.npz beside it:

    versions                    of torch, transformers and peft
    ids, cu_seqlens             the packed batch
    logits                      [T, vocab_size] after every token
    bfloat16_error              the root of the mean square of what PyTorch's own bfloat16 on the
                                CPU differs by
    prompts, prompt_lengths     one after the other
    continuations               [prompts, NEW_TOKENS] greedy

Everything else is in float32. An adapter changes most of what its model says: a part that is left
out, a wrong scale or a wrong row shows.
"""

from __future__ import annotations

import argparse
import copy
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import peft
import torch
import transformers

HERE = Path(__file__).parent
VERSIONS = (
    f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}"
)
LENGTHS = (9, 1, 33)  # tokens of the sequences whose logits are kept
PROMPTS = (1, 70)
NEW_TOKENS = 40
SMALLEST_GAP = 4e-3  # between the two largest logits of any step of a continuation


@dataclass
class Case:
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    safetensors: bool = True


_LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = (
    Case("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True, "r": 4}),
    Case(
        "llama",
        {
            "target_modules": _LLAMA,
            "r": 3,
            "use_rslora": True,
            "rank_pattern": {"v_proj": 5, r"layers\.1\.mlp\.up_proj": 2},
            "alpha_pattern": {"o_proj": 20},
        },
    ),
    Case(
        "llama_few",
        {"target_modules": ["q_proj", "v_proj"], "r": 8, "layers_to_transform": [1]},
        safetensors=False,
    ),
    Case("llama_gate", {"target_modules": ["gate_proj"], "r": 2}),
    Case("qwen3", {"target_modules": "all-linear", "r": 4}),
    Case("phi3", {"target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], "r": 4}),
    Case(
        "gpt-neox",
        {
            "target_modules": [
                "query_key_value",
                "attention.dense",
                "dense_h_to_4h",
                "dense_4h_to_h",
            ],
            "r": 4,
        },
    ),
    Case("gptj", {"target_modules": ["q_proj", "k_proj", "out_proj", "fc_in", "fc_out"], "r": 4}),
    Case(
        "opt-post-norm",
        {"target_modules": ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"], "r": 4},
    ),
    Case("gemma2", {"target_modules": "all-linear", "r": 4}),
)


@torch.no_grad()
def logits_of(model: Any, sequences: list[np.ndarray]) -> np.ndarray:
    rows = [model(input_ids=torch.tensor(ids)[None]).logits[0].float() for ids in sequences]
    return torch.cat(rows).numpy()


@torch.no_grad()
def make(case: Case) -> None:
    base = HERE / "generation" / case.name.partition("_")[0]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.float32, attn_implementation="eager"
    )
    config = peft.LoraConfig(lora_alpha=6, task_type="CAUSAL_LM", **case.config)
    adapted = peft.get_peft_model(model, config).eval()
    generator = torch.Generator().manual_seed(sum(map(ord, case.name)))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            std = 1 / parameter.shape[1] ** 0.5 * (0.5 if "lora_B" in name else 1)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    folder = HERE / "adapters" / case.name
    shutil.rmtree(folder, ignore_errors=True)
    adapted.peft_config["default"].base_model_name_or_path = f"tiny/{base.name}"
    adapted.save_pretrained(folder, safe_serialization=case.safetensors)
    (folder / "README.md").unlink(missing_ok=True)
    if not case.safetensors and (folder / "adapter_model.safetensors").exists():
        tensors = peft.get_peft_model_state_dict(adapted)
        (folder / "adapter_model.safetensors").unlink()
        torch.save(tensors, folder / "adapter_model.bin")

    random = np.random.default_rng(2026)
    vocab_size = model.get_input_embeddings().num_embeddings
    sequences = [random.integers(0, vocab_size, length) for length in LENGTHS]
    logits = logits_of(adapted, sequences)
    error = logits_of(copy.deepcopy(adapted).to(torch.bfloat16), sequences) - logits
    prompts, continuations = [], []
    for length in PROMPTS:
        for _ in range(100):
            prompt = random.integers(0, vocab_size, length)
            output = adapted.generate(
                input_ids=torch.tensor(prompt)[None],
                attention_mask=torch.ones((1, length), dtype=torch.int64),
                do_sample=False,
                max_new_tokens=NEW_TOKENS,
                min_new_tokens=NEW_TOKENS,
                eos_token_id=None,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            )
            top = torch.stack(output.logits).topk(2).values
            if float((top[..., 0] - top[..., 1]).min()) >= SMALLEST_GAP:
                break
        else:
            raise RuntimeError(f"no prompt of {length} tokens without near ties")
        prompts.append(prompt)
        continuations.append(output.sequences[0, length:].numpy())
    np.savez_compressed(
        folder / "golden.npz",
        versions=np.array(VERSIONS),
        ids=np.concatenate(sequences).astype(np.int32),
        cu_seqlens=np.cumsum([0, *LENGTHS]).astype(np.int32),
        logits=logits,
        bfloat16_error=np.sqrt((error**2).mean()),
        prompts=np.concatenate(prompts).astype(np.int32),
        prompt_lengths=np.array(PROMPTS, np.int32),
        continuations=np.stack(continuations).astype(np.int16),
    )
    with adapted.disable_adapter():
        plain = logits_of(adapted, sequences)
    change = (plain - logits).std() / plain.std()
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{case.name}: {size} bytes, changes logits by {change:.2f} of their std")


if __name__ == "__main__":
    print(VERSIONS)
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names
    for one in CASES:
        if not names or one.name in names:
            make(one)
