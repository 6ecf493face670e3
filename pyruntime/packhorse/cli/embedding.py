"""`packhorse embed`: turns lines of text into vectors, in bounded memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.format import open_memmap
from packhorse_weights import find_model, inspect_checkpoint

from packhorse import TextModel
from packhorse.cli.lines import open_lines
from packhorse.cli.writers import check_output, note_truncated, open_writer
from packhorse.load_options import TextLoadOptions
from packhorse.text.tasks.embeddings import MIN_SAMPLE


def read_ranges(sample: Path | None, dtype: str) -> npt.NDArray[np.float32] | None:
    """Reads the ranges of embeddings for `embed(dtype=)` from `sample`, a .npy file of embeddings.

    Raises ValueError if the dtype needs such a file and there is none, if it has no use for one, or
    if the file holds something else.
    """
    if (dtype in ("int8", "uint8")) != (sample is not None):
        raise ValueError(
            f"--calibration has no effect with --output-dtype {dtype}"
            if sample is not None
            else f"--output-dtype {dtype} needs --calibration: float32 embeddings of this model, "
            f"of {MIN_SAMPLE} or more texts like those to come"
        )
    if sample is None:
        return None
    try:
        rows = open_memmap(sample, mode="r")
    except ValueError as error:
        raise ValueError(f"{sample}: not a .npy file: {error}") from None
    if rows.ndim != 2 or rows.dtype.kind != "f":
        raise ValueError(
            f"{sample}: {rows.dtype}{list(rows.shape)}, expected embeddings: floats [texts, dims]"
        )
    if len(rows) < MIN_SAMPLE:
        raise ValueError(
            f"{sample}: {len(rows)} embeddings, expected at least {MIN_SAMPLE} to take ranges from"
        )
    return np.stack([rows.min(axis=0), rows.max(axis=0)]).astype(np.float32)


def embed_file(
    model: str,
    file: Path,
    errors: str,
    output: Path | None,
    format: str | None,
    load: dict[str, Any],
    embed: dict[str, Any],
) -> None:
    """Embeds every line of `file` ("-": stdin) and writes vector after vector.

    An empty line is a text, too, so vectors have the same numbers as lines. load: arguments of
    TextModel.load; embed: arguments of TextModel.embed.
    """
    chosen = check_output(output, format, errors)
    count = 0
    with open_lines(file, "embedding", errors) as reader:
        _refuse_generator(model, load)
        loaded = TextModel.load(model, kv_tokens=0, **load, progress=False)
        like = loaded.embed([], **embed)
        with open_writer(output, chosen, like) as writer:
            for lines in reader:
                with lines.named():
                    rows = loaded.embed(lines.texts, **embed, progress=False)
                writer.append(rows, lines.numbers)
                count += len(rows)
        reader.note()
        note_truncated(loaded)
    if output is not None:
        columns = like.shape[1]
        print(f"packhorse: {count:,} x {columns} {like.dtype} in {output}", file=sys.stderr)


def _refuse_generator(model: str, load: Mapping[str, Any]) -> None:
    """Raises ValueError for a model that generates, as `TextModel.embed` does: nothing says how its
    hidden states become a vector."""
    asked = TextLoadOptions(**load)
    path = find_model(model, asked.revision)
    asked = replace(asked, revision=None)
    if asked.generates(path, inspect_checkpoint(path, **asked.reading()).spec):
        raise ValueError(
            f"embed: {model} generates text, and its files do not say how it pools; give --pooling "
            "(last or mean, for instance) to embed with it all the same"
        )
