"""Makes pipelines.json: what pipelines of transformers 4 make of texts.

    pip install torch "transformers<5"
    python tests/golden/make_pipeline_golden.py

The pipelines question-answering (which transformers 5 no longer has), token-classification and
fill-mask, each text by itself, of tiny models with tiny tokenizers. Made with the versions that the
file names.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "python" / "support"))
import pipeline_cases as cases  # noqa: E402
from tiny_tokenizer import with_kind  # noqa: E402


def rows(found: Any, names: tuple[str, ...]) -> Any:
    """The fields of these names, as far as they are there; scores with the digits of float32."""
    if isinstance(found, list):
        return [rows(one, names) for one in found]
    score = float(f"{float(found['score']):.7g}")
    return [score, *(found[name] for name in names if name in found)]


def answers(pipe: Any) -> Any:
    return [
        [
            rows(found if isinstance(found, list) else [found], cases.ANSWER)
            for question, context in cases.QUESTIONS
            for found in [pipe(question=question, context=context, **options)]
        ]
        for options in cases.ANSWER_OPTIONS
    ]


def entities(pipe: Any) -> Any:
    return [
        [rows(pipe(text, **options), cases.ENTITY) for text in cases.TAGGED]
        for options in cases.TAG_OPTIONS
    ]


def fillings(pipe: Any) -> Any:
    return [
        [rows(pipe(text, **options), cases.WORD) for text in cases.MASKED]
        for options in cases.FILL_OPTIONS
    ]


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    modules = (torch, transformers, tokenizers)
    found: dict[str, Any] = {"versions": {m.__name__: m.__version__ for m in modules}}
    with tempfile.TemporaryDirectory() as scratch:
        for task, make, models in (
            ("question-answering", answers, cases.READERS),
            ("token-classification", entities, cases.TAGGERS),
            ("fill-mask", fillings, cases.FILLERS),
        ):
            found[task] = {}
            for name, (model, kind, settings) in models.items():
                folder = with_kind(HERE / model, Path(scratch) / task / name, kind, **settings)
                pipe = transformers.pipeline(task, model=str(folder), device="cpu")
                found[task][name] = make(pipe)
    text = json.dumps(found, separators=(",", ":"), default=lambda value: value.item())
    (HERE / "pipelines.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
