"""Finds the passages of a folder of texts that answer a query best, by their meaning.

    python examples/semantic_search.py FOLDER "a query" [--model NAME] [--top 5]

Reads all .txt and .md files below FOLDER, paragraph by paragraph. Their vectors are kept in
FOLDER/.packhorse_index.npz, so that the next query takes milliseconds; only paragraphs that are new
are computed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import packhorse

INDEX = ".packhorse_index.npz"


def read_passages(folder: Path) -> list[tuple[str, str]]:
    """(where it is, the text) of every paragraph."""
    passages = []
    for path in sorted((*folder.rglob("*.txt"), *folder.rglob("*.md"))):
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, part in enumerate(text.split("\n\n"), 1):
            if words := " ".join(part.split()):
                passages.append((f"{path.relative_to(folder)}, paragraph {number}", words))
    return passages


def embed_folder(
    model: packhorse.TextModel, folder: Path, name: str
) -> tuple[list[tuple[str, str]], np.ndarray]:
    """The passages and their vectors, of length 1; only new passages are computed."""
    passages = read_passages(folder)
    known: dict[str, np.ndarray] = {}
    index = folder / INDEX
    if index.is_file():
        with np.load(index) as saved:
            if str(saved["model"]) == name:
                known = dict(zip(saved["texts"].tolist(), saved["vectors"], strict=True))
    new = list(dict.fromkeys(text for _, text in passages if text not in known))
    if new:
        known |= dict(zip(new, model.embed(new, normalize=True), strict=True))
    vectors = np.array([known[text] for _, text in passages])
    np.savez(index, model=name, texts=[text for _, text in passages], vectors=vectors)
    return passages, vectors


def search(folder: Path, query: str, model_name: str, top: int = 5) -> list[tuple[float, str, str]]:
    """(similarity, where it is, the text) of the passages nearest to the query, best first."""
    with packhorse.TextModel.load(model_name) as model:
        passages, vectors = embed_folder(model, folder, model_name)
        if not passages:
            return []
        scores = vectors @ model.embed(query, normalize=True)
    best = np.argsort(-scores)[:top]
    return [(float(scores[i]), *passages[i]) for i in best]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("query")
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--top", type=int, default=5)
    chosen = parser.parse_args()
    for score, place, text in search(chosen.folder, chosen.query, chosen.model, chosen.top):
        print(f"{score:.3f}  {place}\n       {text[:200]}")


if __name__ == "__main__":
    main()
