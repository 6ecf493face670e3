"""Adds a column of embeddings to a Parquet file. Needs the package pyarrow.

    python examples/embed_parquet.py IN.parquet OUT.parquet --column text [--model NAME]

The file is read and written row group by row group, so that it may be larger than the memory. For
many files on many machines there is `packhorse embed --ray` (docs/scale.md).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import packhorse
import pyarrow as pa
import pyarrow.parquet as pq


def embed(source: Path, target: Path, column: str, model_name: str) -> int:
    """Writes `target` and returns how many rows it has. Its new column is `embedding`, lists of
    float32 of a fixed size; texts that are null have none."""
    given = pq.ParquetFile(source)
    if column not in given.schema_arrow.names:
        names = ", ".join(given.schema_arrow.names)
        raise SystemExit(f"{source} has no column {column!r}; it has {names}")
    with packhorse.TextModel.load(model_name) as model:
        size = model.embed("").size
        kind = pa.list_(pa.float32(), size)
        schema = given.schema_arrow.append(pa.field("embedding", kind))
        with pq.ParquetWriter(target, schema) as writer:
            for number in range(given.num_row_groups):
                table = given.read_row_group(number)
                texts = table[column].to_pylist()
                vectors = iter(model.embed([text for text in texts if text is not None]))
                rows = [None if text is None else next(vectors) for text in texts]
                writer.write_table(table.append_column("embedding", pa.array(rows, kind)))
    return int(given.metadata.num_rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--column", default="text")
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    chosen = parser.parse_args()
    count = embed(chosen.source, chosen.target, chosen.column, chosen.model)
    print(f"{count} rows in {chosen.target}")


if __name__ == "__main__":
    main()
