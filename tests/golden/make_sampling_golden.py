"""Makes sampling.json: which probabilities transformers gives tokens by its logits processors.

    pip install torch "transformers<5"
    python tests/golden/make_sampling_golden.py

Made with the versions that the file names.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import generation as g

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "python" / "support"))
from sampling_cases import SETTINGS, logits  # noqa: E402


def probabilities(settings: dict[str, object]) -> list[float]:
    ids = [*settings.get("prompts", []), *settings.get("generated", [])]  # type: ignore[misc]
    processors = g.LogitsProcessorList()
    if "logit_bias" in settings:
        bias = {(token,): value for token, value in settings["logit_bias"].items()}  # type: ignore[attr-defined]
        processors.append(g.SequenceBiasLogitsProcessor(bias))
    if "repetition_penalty" in settings:
        processors.append(g.RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]))
    processors.append(g.TemperatureLogitsWarper(settings["temperature"]))
    if "top_k" in settings:
        processors.append(g.TopKLogitsWarper(settings["top_k"]))
    if "top_p" in settings:
        processors.append(g.TopPLogitsWarper(settings["top_p"]))
    if "min_p" in settings:
        processors.append(g.MinPLogitsWarper(settings["min_p"]))
    scores = processors(torch.tensor([ids], dtype=torch.long), torch.tensor(logits())[None])
    return [float(f"{p:.9g}") for p in torch.softmax(scores[0].double(), -1).tolist()]


def main() -> None:
    result = {
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "probabilities": {name: probabilities(case) for name, case in SETTINGS.items()},
    }
    path = HERE / "sampling.json"
    path.write_text(json.dumps(result) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
