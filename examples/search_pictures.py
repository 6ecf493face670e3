"""Finds the pictures of a folder that suit some words best.

    python examples/search_pictures.py FOLDER "a red circle" [--model NAME] [--top 5] [--samples]

Needs a model of images and texts, such as CLIP or SigLIP. The vectors of pictures are kept in
FOLDER/.packhorse_pictures.npz, so that only new pictures are looked at the next time. --samples
draws some pictures of coloured shapes there first.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import numpy as np
from packhorse.image import ImageModel

INDEX = ".packhorse_pictures.npz"
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


def draw_samples(folder: Path) -> None:
    """Pictures of a circle, a square and a triangle in four colours."""
    from PIL import Image, ImageDraw

    folder.mkdir(parents=True, exist_ok=True)
    for colour, shape in product(("red", "green", "blue", "yellow"), (0, 3, 4)):
        picture = Image.new("RGB", (224, 224), "white")
        draw = ImageDraw.Draw(picture)
        if shape == 0:
            draw.ellipse((42, 42, 182, 182), colour)
        else:
            draw.regular_polygon((112, 112, 80), shape, fill=colour)
        name = {0: "circle", 3: "triangle", 4: "square"}[shape]
        picture.save(folder / f"{colour}_{name}.png")


def embed_folder(model: ImageModel, folder: Path, name: str) -> tuple[list[str], np.ndarray]:
    """The names of the pictures and their vectors, of length 1; only new ones are computed."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    keys = [f"{path.relative_to(folder)}:{path.stat().st_mtime_ns}" for path in paths]
    known: dict[str, np.ndarray] = {}
    index = folder / INDEX
    if index.is_file():
        with np.load(index) as saved:
            if str(saved["model"]) == name:
                known = dict(zip(saved["keys"].tolist(), saved["vectors"], strict=True))
    new = [(key, path) for key, path in zip(keys, paths, strict=True) if key not in known]
    if new:
        vectors = model.embed([path for _, path in new])
        known |= dict(zip([key for key, _ in new], vectors, strict=True))
    rows = np.array([known[key] for key in keys], np.float32)
    np.savez(index, model=name, keys=keys, vectors=rows)
    return [str(path.relative_to(folder)) for path in paths], rows


def search(folder: Path, query: str, model_name: str, top: int = 5) -> list[tuple[float, str]]:
    """(cosine, name) of the pictures nearest to the words, best first."""
    with ImageModel.load(model_name) as model:
        names, vectors = embed_folder(model, folder, model_name)
        if not names:
            return []
        cosines = vectors @ model.texts.embed(query)
    return [(float(cosines[i]), names[i]) for i in np.argsort(-cosines)[:top]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("query")
    parser.add_argument("--model", default="openai/clip-vit-base-patch32")
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--samples", action="store_true")
    chosen = parser.parse_args()
    if chosen.samples:
        draw_samples(chosen.folder)
    for cosine, name in search(chosen.folder, chosen.query, chosen.model, chosen.top):
        print(f"{cosine:.3f}  {name}")


if __name__ == "__main__":
    main()
