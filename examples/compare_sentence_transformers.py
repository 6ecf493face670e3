"""Runs one model folder in Packhorse and in sentence-transformers, and prints how far they differ.

    python examples/compare_sentence_transformers.py FOLDER [--file LINES.txt] [--speed]

The folder may hold an embedding model, a cross-encoder or a sparse encoder. Both libraries get the
same texts: each line of the file, or 100 passages of the documentation of Python's library and a
few odd ones. A cross-encoder scores every text as an answer to the first one. Compared are token
ids, then embeddings, scores or sparse vectors, both in float32 on the CPU. The exit status is 1 if
token ids differ or a number differs by more than --tolerance.

Needs sentence-transformers, which Packhorse itself does not.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import packhorse

ODD_TEXTS = ("x", "Öl, Ärger, Übung: ß", "数 \U0001f600 end", "  two  spaces  ", "word " * 2000)
NUM_PASSAGES = 100
ROUNDS = 3  # rounds with --speed

FloatArray = npt.NDArray[np.float32]
Text = str | tuple[str, str]


class Comparison(NamedTuple):
    """Differences between the results of two libraries for the same texts."""

    kind: str  # "embeddings", "scores" or "sparse vectors"
    texts: int
    other_ids: list[int]  # texts whose token ids differ
    max_difference: float  # between any two numbers
    min_cosine: float | None  # between any two vectors; None for scores
    seconds: tuple[float, float]  # Packhorse and sentence-transformers; best of the rounds

    def agrees(self, tolerance: float) -> bool:
        return not self.other_ids and self.max_difference <= tolerance


class Runner(NamedTuple):
    """One library with the model loaded."""

    token_ids: Callable[[Sequence[Text]], list[list[int]]]
    run: Callable[[Sequence[Text]], FloatArray]  # [texts] or [texts, columns]


def find_kind(model: packhorse.TextModel) -> str:
    config, outputs = model.session.config, model.session.outputs
    if "template" in config or ("logits" in outputs and len(model.labels) == 1):
        return "scores"
    return "sparse vectors" if "sparse" in outputs else "embeddings"


def ours(model: packhorse.TextModel, kind: str) -> Runner:
    def token_ids(texts: Sequence[Text]) -> list[list[int]]:
        return [ids.tolist() for ids in model.tokenizer.encode(texts, model.max_length).ids]

    def sparse(texts: Sequence[Text]) -> FloatArray:
        rows = np.zeros((len(texts), model.session.outputs["sparse"][1]), np.float32)
        for row, (ids, weights) in zip(rows, model.embed_sparse(texts), strict=True):
            row[ids] = weights
        return rows

    runs = {"embeddings": model.embed, "scores": model.score_pairs, "sparse vectors": sparse}
    return Runner(token_ids, runs[kind])


def theirs(folder: Path, kind: str, threads: int | None) -> Runner:
    import sentence_transformers as peer
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    model: Any
    if kind == "scores":
        model = peer.CrossEncoder(str(folder), device="cpu")
        run = model.predict
    elif kind == "sparse vectors":
        model = peer.SparseEncoder(str(folder), device="cpu")

        def run(texts: Sequence[Text], **options: Any) -> Any:
            return model.encode(texts, convert_to_sparse_tensor=False, **options)
    else:
        model = peer.SentenceTransformer(str(folder), device="cpu")
        run = model.encode

    def token_ids(texts: Sequence[Text]) -> list[list[int]]:
        tokenize = getattr(model, "preprocess", None) or model.tokenize
        tokens = tokenize(list(texts))
        pairs = zip(tokens["input_ids"], tokens["attention_mask"], strict=True)
        return [ids[mask == 1].tolist() for ids, mask in pairs]

    return Runner(
        token_ids,
        lambda texts: np.asarray(run(list(texts), show_progress_bar=False), np.float32),
    )


def smallest_cosine(a: FloatArray, b: FloatArray) -> float:
    """The smallest cosine of a row of a and that row of b; two rows of zeros have a cosine of 1."""
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    products = (a * b).sum(axis=1)
    equal = (a == b).all(axis=1)
    return float(np.where(equal, 1.0, products / np.maximum(lengths, 1e-30)).min())


def compare(
    folder: Path,
    texts: Sequence[str],
    *,
    threads: int | None = None,
    speed: bool = False,
) -> Comparison:
    """Loads `folder` in both libraries and runs `texts`, of which there must be one at least."""
    model = packhorse.TextModel.load(folder, threads=threads)
    kind = find_kind(model)
    inputs: list[Text] = [(texts[0], text) for text in texts] if kind == "scores" else list(texts)
    runners = (ours(model, kind), theirs(folder, kind, threads))
    ids = [runner.token_ids(inputs) for runner in runners]
    found: list[FloatArray] = []
    seconds = [float("inf"), float("inf")]
    for _ in range(ROUNDS if speed else 1):
        found = []
        for i, runner in enumerate(runners):
            start = time.perf_counter()
            found.append(runner.run(inputs))
            seconds[i] = min(seconds[i], time.perf_counter() - start)
    return Comparison(
        kind,
        len(inputs),
        [i for i, (a, b) in enumerate(zip(*ids, strict=True)) if a != b],
        float(np.abs(found[0] - found[1]).max()),
        smallest_cosine(found[0], found[1]) if found[0].ndim == 2 else None,
        (seconds[0], seconds[1]),
    )


def read_texts(file: Path | None) -> list[str]:
    if file is not None:
        return file.read_text(encoding="utf-8").splitlines()
    from sample import read_passages

    return [passage.text for passage in read_passages(NUM_PASSAGES)] + list(ODD_TEXTS)


def show(result: Comparison, speed: bool) -> None:
    print(f"{result.texts} texts, {result.kind}")
    same = result.texts - len(result.other_ids)
    print(f"token ids            the same for {same} of {result.texts}")
    for i in result.other_ids[:5]:
        print(f"                     not for text {i}")
    print(f"largest difference   {result.max_difference:.1e}")
    if result.min_cosine is not None:
        print(f"smallest cosine      {result.min_cosine:.7f}")
    if speed:
        packed, padded = result.seconds
        print(f"Packhorse            {packed:.2f} s")
        print(f"their encode         {padded:.2f} s ({padded / packed:.2f} times as long)")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--file", type=Path, help="texts, one a line")
    parser.add_argument("--speed", action="store_true", help="time both, the best of three rounds")
    parser.add_argument(
        "--threads", type=int, help="threads of both libraries; all cores if not given"
    )
    parser.add_argument("--tolerance", type=float, default=1e-4, help="largest difference allowed")
    arguments = parser.parse_args()
    texts = read_texts(arguments.file)
    if not texts:
        raise SystemExit(f"{arguments.file} holds no texts")
    result = compare(arguments.folder, texts, threads=arguments.threads, speed=arguments.speed)
    show(result, arguments.speed)
    raise SystemExit(0 if result.agrees(arguments.tolerance) else 1)


if __name__ == "__main__":
    main()
