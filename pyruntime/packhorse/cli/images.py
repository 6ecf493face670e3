"""Commands that give a result for each image: the files of images, read and run in bounded
memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packhorse import PackedPatches
from packhorse.cli.progress import count_progress
from packhorse.cli.writers import open_writer
from packhorse.image import ImageModel
from packhorse.image.files import find_images
from packhorse.image.reading import read_images
from packhorse.image.zero_shot import label_scores, label_texts
from packhorse.result import FloatArray
from packhorse.text.tasks.embeddings import quantize_embeddings
from packhorse.text.tasks.labels import best_labels

_ERRORS = ("strict", "skip")


class Images(NamedTuple):
    """Some images that could be read, in order. `numbers`: of all that were named, from 0 on."""

    numbers: list[int]
    paths: list[str]
    patches: PackedPatches


class ImageRun:
    """The files that paths name, and the model that sees them. `paths`: as of `find_images`, or
    ["-"]: stdin has the name of a file in each line. `load`: arguments of `ImageModel.load`.

    errors  what to do with images that cannot be read: "strict" raises ValueError at the first
            one, after those before it have been yielded; "skip" leaves them out
    """

    def __init__(self, model: str, paths: Sequence[str], errors: str, load: dict[str, Any]) -> None:
        if errors not in _ERRORS:
            raise ValueError(f"--errors {errors!r:.80} is not one of {', '.join(_ERRORS)}")
        self._errors = errors
        self.paths = _listed_on_stdin() if list(paths) == ["-"] else find_images(paths)
        self.model = ImageModel.load(model, **load, progress=False)
        if self.model.processor is None:
            raise ValueError(f"{model}: no preprocessor_config.json, which says how it sees images")
        self._bad: list[str] = []

    def images(self, doing: str) -> Iterator[Images]:
        """All images in chunks, with a progress bar called `doing`."""
        first, total = 0, len(self.paths)
        with count_progress(doing) as report:
            report(0, total)
            for chunk in read_images(self.model, self.paths):
                stop = min(chunk.errors, default=None) if self._errors == "strict" else None
                good = [i for i in range(len(chunk.sources)) if i not in chunk.errors]
                if stop is not None:
                    good = [i for i in good if i < stop]
                if chunk.patches is not None:
                    numbers, paths = [first + i for i in good], [chunk.sources[i] for i in good]
                    yield Images(numbers, paths, chunk.patches[: len(good)])
                if stop is not None:
                    reason = _reason(chunk.sources[stop], chunk.errors[stop])
                    raise ValueError(f"{reason}; --errors skip leaves it out")
                self._bad += [_reason(chunk.sources[i], chunk.errors[i]) for i in chunk.errors]
                first += len(chunk.sources)
                report(first, total)

    def note(self) -> None:
        """Says on stderr how many images were left out, if any."""
        if self._bad:
            count = len(self._bad)
            print(
                f"packhorse: images left out: {count}, the first: {self._bad[0]}", file=sys.stderr
            )


def _listed_on_stdin() -> list[str]:
    lines = sys.stdin.buffer.read().decode("utf-8", "surrogateescape").splitlines()
    return [line for line in lines if line]


def _reason(path: str, error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{path}: {error.strerror}"
    return str(error) if path in str(error) else f"{path}: {error}"


def embed_images(
    run: ImageRun,
    output: Path | None,
    format: str,
    names: Path | None,
    truncate_dim: int | None,
    dtype: Any,
    ranges: npt.NDArray[np.float32] | None,
) -> None:
    """Writes a vector for each image and, to `names`, the file that each is of."""

    def shaped(rows: FloatArray) -> npt.NDArray[Any]:
        return quantize_embeddings(rows[:, :truncate_dim], dtype, ranges)

    columns = run.model.session.outputs["embedding"].columns
    if truncate_dim is not None and truncate_dim > columns:
        raise ValueError(
            f"truncate_dim is {truncate_dim}, but embeddings have {columns} dimensions"
        )
    like, count = shaped(np.zeros((0, columns), np.float32)), 0
    listing = nullcontext() if names is None else names.open("w", errors="surrogateescape")
    with open_writer(output, format, like) as writer, listing as listed:
        for some in run.images("embedding"):
            rows = shaped(run.model.embed(some.patches, progress=False))
            writer.append(rows, some.numbers, some.paths)
            if listed is not None:
                listed.writelines(f"{path}\n" for path in some.paths)
            count += len(rows)
    run.note()
    if output is not None:
        print(f"packhorse: {count:,} x {like.shape[1]} {like.dtype} in {output}", file=sys.stderr)


def classify_images(
    run: ImageRun, top_k: int | None, labels: Sequence[str], template: str | None
) -> None:
    """Prints the labels of each image: those of the model's classifier or, by `labels`, the ones
    whose texts suit it."""
    model, most = run.model, top_k or 1
    if labels:
        names = list(labels)
        given = {} if template is None else {"template": template}
        texts = model.texts.embed(label_texts(names, **given), progress=False)
    elif template is not None:
        raise ValueError("--template has no effect without --label")
    else:
        model.classify([], top_k=most)  # finds errors of the model
    for some in run.images("classifying"):
        if labels:
            rows = model.embed(some.patches, progress=False)
            found = best_labels(names, label_scores(model.session.config, rows, texts), most)
        else:
            found = model.classify(some.patches, top_k=most, progress=False)
        for number, path, best in zip(some.numbers, some.paths, found, strict=True):
            fields = best[0] if most == 1 else {"labels": best}
            line = {"index": number, "path": path, **fields}
            print(json.dumps(line, ensure_ascii=False, allow_nan=False))
        sys.stdout.flush()
    run.note()
