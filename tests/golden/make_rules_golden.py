"""Writes generation_rules.json: what transformers' `generate` says by the settings that forbid,
force and favour tokens.

    python tests/golden/make_rules_golden.py

Needs torch and transformers 5.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
MODELS = ("llama", "gpt2")
EOS = 11
LONG, SINGLE = [5, 9, 40, 5, 9], [7]
NEW_TOKENS = 24
# Settings that each case changes; all of them end with EOS and have at most NEW_TOKENS.
CASES: list[dict[str, Any]] = [
    {},
    {"suppress_tokens": list(range(0, 60, 2))},
    {"begin_suppress_tokens": list(range(0, 67, 3))},
    {"bad_words_ids": [[EOS], [3], *[[a, (a * 5 + 2) % 67] for a in range(67)], [9, 40, 5]]},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3, "repetition_penalty": 0.6},
    {"min_new_tokens": 10, "sequence_bias": [[[EOS], 30.0]]},
    {"min_length": 12, "sequence_bias": [[[EOS], 30.0]]},
    {"min_length": 20, "min_new_tokens": 3, "sequence_bias": [[[EOS], 30.0]]},
    {
        "sequence_bias": [
            *[[[a, (a * 7 + 1) % 67], 4.0] for a in range(67)],
            [[30], -10.0],
            [[9, 12], float("-inf")],
        ],
        "repetition_penalty": 1.3,
    },
    {"forced_bos_token_id": 21},
    {"forced_bos_token_id": 21, "begin_suppress_tokens": list(range(40))},
    {"forced_eos_token_id": EOS},
    {"forced_eos_token_id": [EOS, 4], "min_new_tokens": 30},
    {"forced_eos_token_id": EOS, "suppress_tokens": [3, 4, 5]},
    {"exponential_decay_length_penalty": [4, 1.4]},
    {"exponential_decay_length_penalty": [2, 1.2], "min_new_tokens": 12},
    {"exponential_decay_length_penalty": [8, 0.9], "repetition_penalty": 1.2},
    {
        "suppress_tokens": [1, 2, 3],
        "begin_suppress_tokens": list(range(30)),
        "bad_words_ids": [[5], *[[a, (a + 9) % 67] for a in range(67)]],
        "no_repeat_ngram_size": 2,
        "min_new_tokens": 5,
        "sequence_bias": [[[EOS], 2.0], *[[[a, (a * 3) % 67], 3.0] for a in range(67)]],
        "forced_bos_token_id": 8,
        "forced_eos_token_id": EOS,
        "exponential_decay_length_penalty": [6, 1.1],
        "repetition_penalty": 1.1,
    },
]
BEAMS: list[dict[str, Any]] = [{}, {"num_beams": 3}, {"num_beams": 4, "length_penalty": -1.0}]


def main() -> None:
    found = []
    for name in MODELS:
        model = AutoModelForCausalLM.from_pretrained(
            HERE / "generation" / name, dtype=torch.float32
        ).eval()
        for settings in CASES:
            # Chance decides which of two forced tokens a beam takes: both have the score 0.
            several = isinstance(settings.get("forced_eos_token_id"), list)
            for beams in BEAMS[: 1 if several else None]:
                for prompt in (LONG, SINGLE):
                    ids = torch.tensor([prompt])
                    texts = model.generate(
                        ids,
                        attention_mask=torch.ones_like(ids),
                        max_new_tokens=NEW_TOKENS,
                        eos_token_id=EOS,
                        pad_token_id=EOS,
                        do_sample=False,
                        **settings,
                        **beams,
                    )
                    new = texts[0].tolist()[len(prompt) :]
                    if EOS in new:
                        new = new[: new.index(EOS) + 1]
                    found.append(
                        {
                            "model": name,
                            "prompt": prompt,
                            "settings": {**settings, **beams},
                            "ids": new,
                        }
                    )
    content = {
        "transformers": transformers.__version__,
        "eos": EOS,
        "new_tokens": NEW_TOKENS,
        "cases": found,
    }
    text = json.dumps(content).replace('{"model"', '\n{"model"') + "\n"
    (HERE / "generation_rules.json").write_text(text)


if __name__ == "__main__":
    main()
