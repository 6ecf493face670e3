"""Makes text_to_text_adapters/NAME: LoRA adapters of the tiny models of text_to_text/NAME, and what
PEFT makes of them.

    pip install torch transformers peft
                                        (made with torch 2.13.0, transformers 5.24.0, peft 0.21.2)
    python tests/golden/make_text_to_text_adapter_golden.py [NAME ...]

golden.npz beside each adapter holds, for sources that were each run alone in float32:

    ids, cu_seqlens          the packed sources
    target_ids, target_cu    decoder inputs, the first of each being decoder_start_token_id
    logits                   [sum of targets, vocabulary] after each of these
    bfloat16_error           the root of the mean square of what PyTorch's own bfloat16 on the CPU
                             differs by
    greedy                   [sources, NEW] the most probable continuations, without an end
"""

from __future__ import annotations

import copy
import os
import shutil
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import peft
import torch
import transformers
from make_text_to_text_golden import packed

HERE = Path(__file__).parent
NEW = 16
SOURCES, TARGETS = (17, 1, 66), (9, 1, 20)
_FAIRSEQ = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
CASES: dict[str, dict[str, Any]] = {
    "t5": {"target_modules": ["q", "k", "v", "o", "wi", "wo"], "r": 3, "use_rslora": True},
    "t5-gated": {
        "target_modules": ["q", "k", "v", "o", "wi_0", "wi_1", "wo"],
        "r": 4,
        "rank_pattern": {"EncDecAttention.v": 2, r"decoder\.block\.1\..*wo": 5},
        "alpha_pattern": {"EncDecAttention.q": 20},
    },
    "umt5": {"target_modules": ["q", "v"], "r": 8},
    "bart": {"target_modules": _FAIRSEQ, "r": 3},
    "marian": {"target_modules": _FAIRSEQ, "r": 2},
    "m2m-100": {"target_modules": ["encoder_attn.k_proj", "encoder_attn.v_proj", "fc1"], "r": 4},
}


@torch.no_grad()
def logits_of(model: Any, sources: list[Any], targets: list[Any]) -> np.ndarray:
    rows = [
        model(input_ids=torch.tensor(source)[None], decoder_input_ids=torch.tensor(target)[None])
        .logits[0]
        .float()
        for source, target in zip(sources, targets, strict=True)
    ]
    return torch.cat(rows).numpy()


@torch.no_grad()
def make(name: str) -> None:
    base = HERE / "text_to_text" / name
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        base, dtype=torch.float32, attn_implementation="eager"
    )
    config = peft.LoraConfig(lora_alpha=6, task_type="SEQ_2_SEQ_LM", **CASES[name])
    adapted = peft.get_peft_model(model, config).eval()
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    for parameter_name, parameter in adapted.named_parameters():
        if "lora_" in parameter_name:
            std = 1 / parameter.shape[1] ** 0.5 * (0.5 if "lora_B" in parameter_name else 1)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    folder = HERE / "text_to_text_adapters" / name
    shutil.rmtree(folder, ignore_errors=True)
    adapted.peft_config["default"].base_model_name_or_path = f"tiny/{name}"
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)

    random = np.random.default_rng(2026)
    settings = model.generation_config
    most = min(getattr(model.config, "decoder_vocab_size", None) or 100, 100) - 2
    sources = [random.integers(5, most, n) for n in SOURCES]
    targets = [random.integers(5, most, n) for n in TARGETS]
    for target in targets:
        target[0] = settings.decoder_start_token_id
    logits = logits_of(adapted, sources, targets)
    error = logits_of(copy.deepcopy(adapted).to(torch.bfloat16), sources, targets) - logits
    greedy = [
        adapted.generate(
            input_ids=torch.tensor(source)[None],
            num_beams=1,
            do_sample=False,
            max_length=None,
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            forced_bos_token_id=None,
        )[0, 1:].numpy()
        for source in sources
    ]
    arrays = {
        "logits": logits,
        "bfloat16_error": np.sqrt((error**2).mean()),
        "greedy": np.stack(greedy).astype(np.int16),
    }
    arrays["ids"], arrays["cu_seqlens"] = packed(sources)
    arrays["target_ids"], arrays["target_cu"] = packed(targets)
    np.savez_compressed(folder / "golden.npz", **arrays)
    with adapted.disable_adapter():
        plain = logits_of(adapted, sources, targets)
    change = (plain - logits).std() / plain.std()
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: {size} bytes, changes logits by {change:.2f} of their std, {greedy[0][:8]}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"transformers {transformers.__version__}, peft {peft.__version__}")
    for one in CASES:
        if not sys.argv[1:] or one in sys.argv[1:]:
            make(one)
