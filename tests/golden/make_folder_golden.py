"""Makes sentence_transformers.npz: what sentence-transformers and model2vec make of the texts of
tests/python/support/folder_cases.py, each by itself, in the folders that it writes.

    pip install torch transformers sentence-transformers model2vec
    python tests/golden/make_folder_golden.py

An array of each folder's name; `versions` names what it was made with.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import model2vec
import numpy as np
import sentence_transformers
import torch
import transformers
from model2vec.version import __version__ as model2vec_version

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "python" / "support"))
import folder_cases as cases  # noqa: E402


def embeddings_of(name: str, folder: Path) -> np.ndarray:
    cases.make_folder(name, folder)
    texts = list(cases.TEXTS)
    if name in cases.MODEL2VEC:
        model = model2vec.StaticModel.from_pretrained(folder)
        return np.stack([model.encode([text])[0] for text in texts])
    encoder = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    return np.asarray(encoder.encode(texts, batch_size=1))


def main() -> None:
    torch.set_num_threads(1)
    found = {
        "versions": np.array(
            [
                f"{module.__name__} {module.__version__}"
                for module in (torch, transformers, sentence_transformers)
            ]
            + [f"model2vec {model2vec_version}"]
        )
    }
    names = (*cases.PLAIN, *cases.SENTENCE_TRANSFORMERS, *cases.MODEL2VEC)
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            found[name] = embeddings_of(name, Path(scratch) / name)
            print(name, found[name].dtype, found[name].shape)
    np.savez_compressed(HERE / "sentence_transformers.npz", **found)


if __name__ == "__main__":
    main()
