"""`packhorse embed`: lines of text to vectors, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packhorse import TextModel
from packhorse.cli.lines import open_lines
from packhorse.cli.writers import check_output, note_truncated, open_writer


def embed_file(
    model: Path,
    file: Path,
    output: Path | None,
    format: str | None,
    load: dict[str, Any],
    embed: dict[str, Any],
) -> None:
    """Embeds every line of `file` ("-": stdin) and writes vector after vector.

    An empty line is a text too: the vectors keep the lines' numbers. load: of TextModel.load;
    embed: of TextModel.embed.
    """
    chosen = check_output(output, format)
    with open_lines(file, "embedding") as chunks:
        loaded = TextModel.load(model, **load)
        like = loaded.embed([], **embed)
        with open_writer(output, chosen, like) as writer:
            for lines in chunks:
                writer.append(loaded.embed(lines, **embed))
        note_truncated(loaded)
