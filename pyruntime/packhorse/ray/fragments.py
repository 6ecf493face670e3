"""Fragments: the parts of input files that are embedded, written and repeated as one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from packhorse.ray.places import Found, locate

_KINDS = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "text"}
_COMPRESSED = (".gz", ".zst", ".bz2")
SUFFIXES = (*_KINDS, *(kind + packed for kind in list(_KINDS)[1:] for packed in _COMPRESSED))
_BLOCK_ROWS = 8192  # read, embedded and written at a time
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Fragment(NamedTuple):
    """A part of a file: row groups [first, last) of a Parquet file, otherwise bytes [first, last),
    which are whole lines. A compressed file is one fragment."""

    number: int
    file: str
    first: int
    last: int

    @property
    def output(self) -> str:
        """The name of its file of results."""
        return f"part-{self.number:08d}.parquet"

    def __str__(self) -> str:
        unit = "row groups" if _kind(self.file) == "parquet" else "bytes"
        return f"{self.file} ({unit} {self.first} to {self.last})"


def _split_name(file: str) -> tuple[str, str]:
    """The suffix that says what is in a file, and that of its compression."""
    suffixes = PurePosixPath(file).suffixes[-2:] or [""]
    if suffixes[-1] in _COMPRESSED:
        return (suffixes[0], suffixes[-1])
    return (suffixes[-1], "")


def _kind(file: str) -> str:
    return _KINDS[_split_name(file)[0]]


def cut(file: Found, fragment_bytes: int, column: str) -> list[tuple[int, int]]:
    """The (first, last) of the fragments of a file, each with about so many bytes of text; a row
    group is never cut. Raises ValueError if a Parquet file has no such column of strings."""
    if _kind(file.place) == "parquet":
        return _cut_parquet(file.place, fragment_bytes, column)
    if _split_name(file.place)[1] or file.size <= fragment_bytes:
        return [(0, file.size)] if file.size else []
    return _cut_lines(file, fragment_bytes)


def _cut_parquet(place: str, fragment_bytes: int, column: str) -> list[tuple[int, int]]:
    filesystem, path = locate(place)
    with filesystem.open_input_file(path) as stream:
        metadata = pq.ParquetFile(stream).metadata
    schema = metadata.schema.to_arrow_schema()
    if column not in schema.names:
        raise ValueError(f"{place}: no column {column!r:.80}, found: {', '.join(schema.names)}")
    kind = schema.field(column).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(value) or pa.types.is_large_string(value)):
        raise ValueError(f"{place}: column {column!r:.80} has type {kind}, expected strings")
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    chunk = paths.index(column)
    cuts, size = [0], 0
    for i in range(metadata.num_row_groups):
        size += metadata.row_group(i).column(chunk).total_uncompressed_size
        if size >= fragment_bytes or i + 1 == metadata.num_row_groups:
            cuts.append(i + 1)
            size = 0
    return list(pairwise(cuts))


def _cut_lines(file: Found, fragment_bytes: int) -> list[tuple[int, int]]:
    """Cuts right behind the first line end after each multiple of `fragment_bytes`."""
    filesystem, path = locate(file.place)
    cuts = [0]
    with filesystem.open_input_file(path) as stream:
        while (place := cuts[-1] + fragment_bytes) < file.size:
            stream.seek(place)
            while block := stream.read(1 << 16):
                if (end := block.find(b"\n")) >= 0:
                    place += end + 1
                    break
                place += len(block)
            cuts.append(min(place, file.size))
    if cuts[-1] < file.size:
        cuts.append(file.size)
    return list(pairwise(cuts))


def read(fragment: Fragment, column: str, keep: Sequence[str] | None) -> Iterator[pa.Table]:
    """Yields the fragment's rows, some thousand at a time: the column of texts, and what is to be
    kept besides (None: all columns). Text files have one column, called `column`, a row for each
    line.

    Raises ValueError for what cannot be read.
    """
    filesystem, path = locate(fragment.file)
    names = None if keep is None else list(dict.fromkeys([column, *keep]))
    if _kind(fragment.file) == "parquet":
        with filesystem.open_input_file(path) as stream:
            file = pq.ParquetFile(stream)
            groups = range(fragment.first, fragment.last)
            for batch in file.iter_batches(_BLOCK_ROWS, row_groups=groups, columns=names):
                yield pa.Table.from_batches([batch])
        return
    try:
        table = _read_lines(fragment, filesystem, path, column)
        if names is not None:
            table = table.select(names)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{fragment}: {error}") from None
    for first in range(0, len(table), _BLOCK_ROWS):
        yield table.slice(first, _BLOCK_ROWS)


def _read_lines(fragment: Fragment, filesystem: Any, path: str, column: str) -> pa.Table:
    if _split_name(fragment.file)[1]:
        with filesystem.open_input_stream(path) as stream:  # decompresses, by the name
            data = bytes(stream.read())
    else:
        with filesystem.open_input_file(path) as file:
            file.seek(fragment.first)
            data = bytes(file.read(fragment.last - fragment.first))
    if fragment.first == 0:
        data = data.removeprefix(_BYTE_ORDER_MARK)
    schema = pa.schema([(column, pa.string())])
    if _kind(fragment.file) == "text":
        lines = data.decode("utf-8").removesuffix("\n").split("\n") if data else []
        return pa.table([[line.rstrip("\r") for line in lines]], schema)
    if not data.strip():
        return schema.empty_table()
    if json.dumps(column).encode() not in data:
        raise ValueError(f"no line has a field {column!r:.80}")
    return pyarrow.json.read_json(
        pa.BufferReader(data),
        read_options=pyarrow.json.ReadOptions(block_size=len(data) + 1),  # one block: any line fits
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="infer"
        ),
    )
