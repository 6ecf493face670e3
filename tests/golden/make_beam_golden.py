"""Writes tests/cpp/beam_search_golden.inc: hypotheses of transformers' beam search.

    python tests/golden/make_beam_golden.py

The model is a function of the last token and the length, which tests/cpp/beam_search_test.cc
computes, too. Needs torch and transformers.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

TARGET = Path(__file__).resolve().parents[1] / "cpp/beam_search_golden.inc"
VOCAB_SIZE = 12
PROMPT = [5, 3]
MASK = (1 << 64) - 1


def mix(a: int, b: int) -> int:
    x = (a * 0x9E3779B97F4A7C15 & MASK) ^ (b + 0x632BE59BD9B4E019 & MASK)
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


class TinyConfig(PretrainedConfig):  # type: ignore[misc]
    model_type = "tiny-beams"

    def __init__(self, seed: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seed = seed
        self.vocab_size = VOCAB_SIZE
        self.num_hidden_layers = 1


class TinyModel(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    config_class = TinyConfig

    def __init__(self, config: TinyConfig) -> None:
        super().__init__(config)
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        rows = []
        for ids in input_ids.tolist():
            state = mix(mix(self.config.seed, ids[-1]), len(ids))
            rows.append([(mix(state, token) >> 40) / 2**24 * 3 for token in range(VOCAB_SIZE)])
        return CausalLMOutput(logits=torch.tensor(rows)[:, None])

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **_: Any) -> dict[str, Any]:
        return {"input_ids": input_ids}


def main() -> None:
    lines = [
        "// Made by tests/golden/make_beam_golden.py with "
        f"transformers {transformers.__version__},",
        f"// torch {torch.__version__.split('+')[0]}.",
        "// seed, num_beams, length_penalty, early_stopping, max_new_tokens, stop ids, hypotheses",
    ]
    early = {False: "kFalse", True: "kTrue", "never": "kNever"}
    cases = itertools.product(
        (2, 3, 5), (0.0, 1.0, 2.5, -1.0), early, ((2, []), (9, [0]), (9, [0, 4]), (1, [0]))
    )
    for seed, (num_beams, penalty, stopping, (max_new, stop)) in enumerate(cases):
        model = TinyModel(TinyConfig(seed=seed))
        config = GenerationConfig(
            num_beams=num_beams,
            num_return_sequences=num_beams,
            length_penalty=penalty,
            early_stopping=stopping,
            max_new_tokens=max_new,
            eos_token_id=stop or None,
            pad_token_id=VOCAB_SIZE - 1,
            do_sample=False,
            use_cache=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        found = model.generate(torch.tensor([PROMPT]), generation_config=config)
        hypotheses = []
        for ids, beams, score in zip(
            found.sequences.tolist(),
            found.beam_indices.tolist(),
            found.sequences_scores.tolist(),
            strict=True,
        ):
            length = sum(beam >= 0 for beam in beams)
            new = ", ".join(map(str, ids[len(PROMPT) : len(PROMPT) + length]))
            hypotheses.append(f"{{{{{new}}}, {score:.7g}f}}")
        ids_text = ", ".join(map(str, stop))
        lines.append(
            f"{{{seed}, {num_beams}, {penalty}f, EarlyStopping::{early[stopping]}, {max_new}, "
            f"{{{ids_text}}}, {{{', '.join(hypotheses)}}}}},"
        )
    TARGET.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
