"""Texts made of texts: a line is printed for each that is read."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packhorse import TextModel
from packhorse.cli.generating import load_generator
from packhorse.cli.lines import open_lines


def print_texts(
    method: str,
    model: str,
    file: Path,
    load: Mapping[str, Any],
    options: Mapping[str, Any],
    errors: str,
    *,
    adapter: Path | None,
    whole: bool,
) -> None:
    """method: of `TextModel`, with its options. adapter: the folder of one that all texts have.
    whole: the file is one text, whose result is printed as it is; line ends within the others'
    become spaces."""
    quiet = {**load, "progress": False}
    with (
        open_lines(file, f"{method[:-1]}ing", errors) as reader,
        TextModel.load(model, **quiet)
        if adapter is None
        else load_generator(model, quiet, adapter) as text_model,
    ):
        convert = getattr(text_model, method)
        if whole:
            lines = [text for part in reader for text in part.texts]
            print(convert("\n".join(lines), **options))
        for lines_read in () if whole else reader:
            with lines_read.named():
                found = convert(lines_read.texts, progress=False, **options)
            for text in found:
                print(" ".join(text.splitlines()))
            sys.stdout.flush()
        reader.note()
