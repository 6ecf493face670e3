"""Makes activations.json: scores of labels and pairs with an activation that the caller chooses.

    pip install torch transformers sentence-transformers
    python tests/golden/make_activation_golden.py

labels   by model: transformers' pipeline text-classification with each `function_to_apply`
encoder  by model: CrossEncoder.predict of pairs, as it is for several labels: logits
scores   by model: CrossEncoder.predict of pairs with each `activation_fn`
Made with the versions that the file names.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import sentence_transformers
import torch
import transformers
from sentence_transformers import CrossEncoder

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "python" / "support"))
import text_cases as cases  # noqa: E402
from tiny_tokenizer import with_tokenizer  # noqa: E402

ACTIVATIONS = {"sigmoid": torch.nn.Sigmoid(), "none": torch.nn.Identity()}


def labels_of(folder: Path) -> dict[str, Any]:
    pipe = transformers.pipeline("text-classification", model=str(folder), truncation=True)
    return {
        name: [pipe(text, top_k=None, function_to_apply=name) for text in cases.TEXTS]
        for name in ("softmax", "sigmoid", "none")
    }


def encoder_of(folder: Path) -> list[Any]:
    found = CrossEncoder(str(folder), device="cpu")
    return [found.predict([pair])[0].tolist() for pair in cases.PAIRS]


def scores_of(folder: Path) -> dict[str, Any]:
    found = CrossEncoder(str(folder), device="cpu")
    return {
        name: [float(found.predict([pair], activation_fn=made)[0]) for pair in cases.PAIRS]
        for name, made in ACTIVATIONS.items()
    }


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "versions": {
            module.__name__: module.__version__
            for module in (torch, transformers, sentence_transformers)
        }
    }
    with tempfile.TemporaryDirectory() as scratch:
        for kind, make, models in (
            ("labels", labels_of, cases.CLASSIFIERS),
            ("encoder", encoder_of, cases.CLASSIFIERS),
            ("scores", scores_of, cases.RERANKERS),
        ):
            found[kind] = {}
            for name, (model, pair, config) in models.items():
                folder = with_tokenizer(HERE / model, Path(scratch) / kind / name, pair, config)
                found[kind][name] = make(folder)
    (HERE / "activations.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
