"""Folders and files for the snippets of README and docs, which are run there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
from checkpoints import GOLDEN
from fake_engine import session_of_chance, text_model_of_chance
from picture_models import picture_model, write_pictures
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


def _edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    fields = json.loads(path.read_text(encoding="utf-8"))
    change(fields)
    path.write_text(json.dumps(fields), encoding="utf-8")


def _knows_yes_and_no(tokenizer: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    for i, word in enumerate(("yes", "no")):
        vocabulary[word] = vocabulary.pop(f"[unused{i}]")


def _mask_is_special(tokenizer: dict[str, Any]) -> None:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    mask = tokenizer["model"]["vocab"]["[MASK]"]
    tokenizer["added_tokens"].append({"id": mask, "content": "[MASK]", "special": True, **flags})


def _add_to_hub(hub: Path, name: str, folder: Path) -> None:
    """The folder is in the cache of huggingface_hub, under a name."""
    entry = hub / f"models--{name.replace('/', '--')}"
    (entry / "refs").mkdir(parents=True)
    (entry / "refs" / "main").write_text("0123abcd")
    (entry / "snapshots").mkdir()
    (entry / "snapshots" / "0123abcd").symlink_to(folder, target_is_directory=True)


def make_room(root: Path, minilm: Path) -> Path:
    """A working directory; the hub's cache lies beside it."""
    room = root / "room"
    room.mkdir()
    (room / "model-folder").symlink_to(minilm, target_is_directory=True)
    for name, golden in MODELS.items():
        typed = golden.startswith("bert")
        with_tokenizer(GOLDEN / golden, room / name, "bert", {} if typed else NO_TYPES)
    _edit(room / "bert-base" / "tokenizer.json", _mask_is_special)
    qwen = room / "Qwen3-Reranker-0.6B"  # a template of 200 tokens, letter by letter
    _edit(qwen / "tokenizer.json", _knows_yes_and_no)
    _edit(qwen / "tokenizer_config.json", lambda fields: fields.update(model_max_length=1000))
    _edit(qwen / "config.json", lambda fields: fields.update(max_position_embeddings=1000))
    picture_model("clip", room / "clip")
    picture_model("deit", room / "picture-classifier")
    write_pictures(room / "pictures", 3)
    (room / "pictures" / "01.JPG").rename(room / "pictures" / "01.jpg")
    hub = root / "hub"
    _add_to_hub(hub, "sentence-transformers/all-MiniLM-L6-v2", minilm)
    _add_to_hub(hub, "BAAI/bge-m3", room / "bge-m3")
    _add_to_hub(hub, "openai/clip-vit-base-patch32", room / "clip")
    for name in ("lines.txt", "documents.txt"):
        (room / name).write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return room


def _session() -> packhorse.Session:
    return packhorse.Session.load("model-folder", max_tokens=1024, threads=1)


def _ids() -> list[list[int]]:
    return [[101, 7592, 2088, 102], [101, 102]]


# Names that a comment may say a snippet is given -> what makes their values.
GIVEN: dict[str, Callable[[], Any]] = {
    "texts": lambda: list(LINES),
    "documents": lambda: list(LINES),
    "typical_texts": lambda: [f"text {i}" for i in range(128)],
    "session": _session,
    "model": lambda: packhorse.TextModel.load("model-folder", threads=1),
    "batch": _ids,
    "ids": _ids,
    "lm": text_model_of_chance,
    "session_that_generates": session_of_chance,
    "packhorse": lambda: packhorse,
    "np": lambda: np,
    "numpy": lambda: np,
}
