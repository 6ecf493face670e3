"""Where the snippets of README and docs are run: the folders and files that they name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
from checkpoints import GOLDEN
from tiny_tokenizer import NO_TYPES, with_tokenizer

# Folder -> the golden model in it.
MODELS = {
    "reranker": "bert-reranker",
    "classifier": "bert-sequence",
    "tagger": "bert-tokens",
    "reader": "bert-answers",
    "splade": "bert-splade",
    "colbert": "bert-colbert",
    "bge-m3": "bge-m3",
    "bert-base": "bert-predictions",
    "Qwen3-Reranker-0.6B": "qwen3-answers",
}
LINES = ("Where did she live?", "Ada Lovelace lived in London.", "The cat sat on the mat.")


def _add_words(folder: Path, *words: str) -> None:
    """Unused entries of the tiny vocabulary become these words."""
    path = folder / "tokenizer.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = fields["model"]["vocab"]
    for i, word in enumerate(words):
        vocabulary[word] = vocabulary.pop(f"[unused{i}]")
    path.write_text(json.dumps(fields), encoding="utf-8")


def _fill_hub(root: Path, minilm: Path) -> None:
    """The cache of huggingface_hub with all-MiniLM-L6-v2 in it."""
    name = root / "hub" / "models--sentence-transformers--all-MiniLM-L6-v2"
    (name / "refs").mkdir(parents=True)
    (name / "refs" / "main").write_text("0123abcd")
    (name / "snapshots").mkdir()
    (name / "snapshots" / "0123abcd").symlink_to(minilm, target_is_directory=True)


def make_room(root: Path, minilm: Path) -> Path:
    """A working directory; the hub's cache lies beside it."""
    _fill_hub(root, minilm)
    room = root / "room"
    room.mkdir()
    (room / "model-folder").symlink_to(minilm, target_is_directory=True)
    for name, golden in MODELS.items():
        typed = golden.startswith("bert")
        with_tokenizer(GOLDEN / golden, room / name, "bert", {} if typed else NO_TYPES)
    _add_words(room / "Qwen3-Reranker-0.6B", "yes", "no")
    for name in ("lines.txt", "documents.txt"):
        (room / name).write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return room


def _session() -> packhorse.Session:
    return packhorse.Session.load("model-folder", max_tokens=1024, threads=1)


def _ids() -> list[list[int]]:
    return [[101, 7592, 2088, 102], [101, 102]]


# What a comment may say that a snippet is given, by name.
GIVEN: dict[str, Callable[[], Any]] = {
    "texts": lambda: list(LINES),
    "documents": lambda: list(LINES),
    "some_thousand_texts": lambda: [f"text {i}" for i in range(128)],
    "session": _session,
    "model": lambda: packhorse.TextModel.load("model-folder", threads=1),
    "batch": _ids,
    "ids": _ids,
    "packhorse": lambda: packhorse,
    "np": lambda: np,
    "numpy": lambda: np,
}
