"""Work of an actor on a fragment: reads it, embeds its texts, writes its file of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packhorse.ray.embedder import Embedder
from packhorse.ray.fragments import Fragment, read
from packhorse.ray.places import Folder

_MOST_DEATHS = 5  # deaths of workers over one fragment: then it is taken for what kills them


class EmbeddingJob(NamedTuple):
    """Arguments that are equal for all fragments. It can be pickled.

    embedder  arguments of `Embedder`, without the model
    keep      columns of the input that the output has, too; None: all
    """

    model: str
    embedder: Mapping[str, Any]
    column: str
    embedding_column: str
    keep: Sequence[str] | None
    output: Folder


class FragmentWorker:
    """A callable for `Dataset.map_batches`, of a dataset whose rows are fragments.

    It may be called for any fragment again, also while another worker has it: files of results
    appear whole, and are the same whoever writes them.
    """

    def __init__(self, job: EmbeddingJob) -> None:
        self._job = job
        self._embedder = Embedder(job.model, **job.embedder)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Columns "fragment" (its number), "rows", "error" ("" unless it failed)."""
        columns = (batch[name] for name in Fragment._fields)
        fragments = [
            Fragment(int(number), str(file), int(first), int(last))
            for number, file, first, last in zip(*columns, strict=True)
        ]
        outcomes = [self._try(fragment) for fragment in fragments]
        return {
            "fragment": np.array([fragment.number for fragment in fragments]),
            "rows": np.array([rows for rows, _ in outcomes]),
            "error": np.array([error for _, error in outcomes], object),
        }

    def _try(self, fragment: Fragment) -> tuple[int, str]:
        """One bad file among many must not end the run of the others: errors are results."""
        try:
            return self._run(fragment), ""
        except Exception as error:
            return 0, f"{fragment}: {type(error).__name__}: {error}"

    def _run(self, fragment: Fragment) -> int:
        job = self._job
        if job.output.has(fragment.output):  # done by a worker that died before it could say so
            return 0
        deaths = job.output.partial(fragment.output)
        if deaths >= _MOST_DEATHS:
            raise RuntimeError(f"{deaths} workers died over it: perhaps it takes too much memory")
        rows = 0
        writer = None
        with job.output.writing(fragment.output) as stream:
            for table in read(fragment, job.column, job.keep):
                found = self._results(table)
                if writer is None:
                    writer = _open_writer(stream, found.schema, fragment, job.embedding_column)
                writer.write_table(found)
                rows += len(found)
            if writer is None:  # no rows: a file without any says that it is done
                empty = self._results(pa.table({job.column: pa.array([], pa.string())}))
                writer = _open_writer(stream, empty.schema, fragment, job.embedding_column)
            writer.close()
        return rows

    def _results(self, table: pa.Table) -> pa.Table:
        job = self._job
        if job.embedding_column in table.column_names and job.embedding_column != job.column:
            raise ValueError(
                f"the input has a column {job.embedding_column!r:.80} already: name the new one "
                "otherwise, or leave that one out by `keep`"
            )
        vectors = self._embedder.embed_column(table[job.column])
        if job.keep is not None and job.column not in job.keep:
            table = table.drop_columns([job.column])
        return table.append_column(job.embedding_column, vectors)


def _open_writer(
    stream: Any, schema: pa.Schema, fragment: Fragment, embedding_column: str
) -> pq.ParquetWriter:
    """Vectors are stored as they are: neither a dictionary nor compression makes them smaller."""
    leaf = f"{embedding_column}.list.element"
    others = [field.name for field in schema if field.name != embedding_column]
    return pq.ParquetWriter(
        stream,
        schema.with_metadata({"packhorse.source": str(fragment)}),
        use_dictionary=others,
        compression={leaf: "none"} | dict.fromkeys(others, "zstd"),
        write_statistics=others,
    )
