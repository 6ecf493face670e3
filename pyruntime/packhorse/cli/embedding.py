"""`packhorse embed`: lines of text to vectors, in bounded memory."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import packhorse_weights

from packhorse import Session
from packhorse.cli import MissingPackageError
from packhorse.cli.progress import byte_progress
from packhorse.cli.writers import check_output, open_writer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CHUNK_BYTES = 1 << 16  # text held at a time: some full batches, seconds of work at most


def load_tokenizer(model: Path, max_length: int) -> Tokenizer:
    """The model's tokenizer.json, truncating to `max_length`.

    Raises ValueError (none there, or not usable) and MissingPackageError.
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise MissingPackageError(
            "embedding text needs the package tokenizers, which is not installed: "
            "pip install 'packhorse[text]'"
        ) from None
    root = model if model.is_dir() else model.parent
    folders = (packhorse_weights.inspect_checkpoint(model).folder, root)
    path = next((p for p in (f / "tokenizer.json" for f in folders) if p.is_file()), None)
    if path is None:
        raise ValueError(f"{model}: no tokenizer.json; text cannot be turned into tokens")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise ValueError(f"{path}: {error}") from None
    special = tokenizer.num_special_tokens_to_add(is_pair=False)
    if max_length <= special:
        raise ValueError(f"max_length {max_length} leaves no room beside {special} special tokens")
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    return tokenizer


def longest_sequence(config: dict[str, Any], wanted: int | None) -> int:
    """Where to truncate. Raises ValueError for more than the model can take."""
    limit = int(config.get("max_seqlen", config["positions"]["count"]))
    if wanted is not None and wanted > limit:
        raise ValueError(f"max_length {wanted} exceeds the model's longest sequence, {limit}")
    return wanted or int(config.get("max_length", limit))


def read_chunks(stream: BinaryIO, name: str) -> Iterator[tuple[list[str], int]]:
    """Yields (lines without their ends, bytes read so far).

    Raises ValueError at the first line that is not UTF-8, when those before it have been yielded.
    """
    number = done = 0
    while chunk := stream.readlines(_CHUNK_BYTES):
        lines = []
        for raw in chunk:
            number += 1
            try:
                lines.append(raw.decode("utf-8").rstrip("\r\n"))
            except UnicodeDecodeError as error:
                yield lines, done
                raise ValueError(f"{name}, line {number}: not UTF-8: {error.reason}") from None
            done += len(raw)
        yield lines, done


def embed_file(
    model: Path,
    file: Path,
    output: Path | None,
    format: str | None,
    max_length: int | None,
    options: dict[str, Any],
) -> None:
    """Embeds every line of `file` ("-": stdin) and writes vector after vector.

    An empty line is a text too: the vectors keep the lines' numbers. options: of Session.load.
    """
    chosen = check_output(output, format)
    with ExitStack() as stack:
        stream: BinaryIO = sys.stdin.buffer
        total = None
        if str(file) != "-":
            stream = stack.enter_context(file.open("rb"))
            info = os.fstat(stream.fileno())
            total = info.st_size if stat.S_ISREG(info.st_mode) else None
        session = Session.load(model, **options)
        length = longest_sequence(session.config, max_length)
        if length > session.max_tokens:
            raise ValueError(f"max_length {length} exceeds max_tokens {session.max_tokens}")
        tokenizer = load_tokenizer(model, length)
        writer = open_writer(output, chosen, session.hidden_size)
        stack.enter_context(writer)
        report = stack.enter_context(byte_progress("embedding"))
        report(0, total)
        for lines, done in read_chunks(stream, str(file)):
            encodings = tokenizer.encode_batch_fast(lines)
            ids = [encoding.ids for encoding in encodings]
            writer.append(session.run_many(ids, outputs=["embedding"]).embedding)
            report(done, total)
