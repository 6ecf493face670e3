"""Texts of a batch of rows to vectors: what an actor of Ray Data holds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packhorse.load_options import ModelPath
from packhorse.text import TextModel

if TYPE_CHECKING:
    import pyarrow as pa


def portable_path(model: ModelPath) -> str:
    """The model as other processes find it: a path that exists is made absolute, a name stays."""
    path = Path(model)
    return str(path.absolute()) if path.exists() else os.fspath(model)


def require_ray() -> None:
    """Raises ModuleNotFoundError, with what to install, where the extra `ray` is missing."""
    try:
        for name in ("pyarrow", "ray.data", "ray.serve"):
            import_module(name)
    except ModuleNotFoundError as error:
        from packhorse_weights.extras import missing_package

        package = (error.name or "ray").partition(".")[0]
        raise missing_package("ray", package, "packhorse.ray") from None


def load_arguments(load: Mapping[str, Any] | None) -> dict[str, Any]:
    """Arguments of `TextModel.load`. What `load` leaves open is as Ray has it for this worker: the
    device that it was given, and as many threads as it was given CPUs."""
    given = dict(load or {})
    gpus, cpus = _assigned()
    given.setdefault("device", "cuda" if gpus else "cpu")
    if given["device"] == "cpu" and cpus:
        given.setdefault("threads", cpus)
    return {"kv_tokens": 0} | given


def _assigned() -> tuple[float, int]:
    """The GPUs and CPUs that Ray has given to this worker; (0, 0) outside of one."""
    import ray

    if not ray.is_initialized():
        return 0, 0
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:  # the program that drives the cluster
        return 0, 0
    given = context.get_assigned_resources()
    return given.get("GPU", 0), int(given.get("CPU", 0))


class Embedder:
    """A model that adds a column of embeddings to batches of rows, for `Dataset.map_batches`.

    dataset.map_batches(
        packhorse.ray.Embedder,
        fn_constructor_kwargs={"model": "model-folder", "column": "text"},
        batch_size=4096,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=4),
        num_gpus=1,
    )

    Each actor loads the model once. The rows of a batch are packed by tokens, so the batch size
    decides neither speed nor results; some thousand rows keep the device busy.
    """

    def __init__(
        self,
        model: ModelPath,
        *,
        column: str = "text",
        embedding_column: str = "embedding",
        load: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Loads the model.

        column            where the texts are
        embedding_column  what the new column is called
        load              arguments of `TextModel.load`. Where they say nothing else, an actor with
                          a GPU uses it, and one without has as many threads as CPUs
        options           arguments of `TextModel.embed`

        Raises as `TextModel.load` and `TextModel.embed`; ValueError for dtype int8 and uint8
        without `ranges`, which would differ from batch to batch.
        """
        check_options(options)
        self._column, self._embedding_column = column, embedding_column
        self._options = options
        self.model = TextModel.load(model, **load_arguments(load))
        self._none = self.model.embed([], **options)  # [0, dims]; checks the options

    def __call__(self, batch: Any) -> Any:
        """The batch with one more column.

        batch  a pyarrow Table, whose new column has lists of a fixed size, null where the text is;
               or a dict of NumPy arrays, whose new column is an array [rows, dims]

        Raises ValueError for another kind of batch, and where the column of texts is missing.
        """
        if isinstance(batch, dict):
            texts = column_of(batch, self._column, batch)
            return batch | {self._embedding_column: self.embed([str(text) for text in texts])}
        if not hasattr(batch, "append_column"):
            raise ValueError(
                f"a batch is a {type(batch).__name__}, expected a pyarrow Table or a dict of NumPy "
                'arrays: give map_batches batch_format="pyarrow" or "numpy"'
            )
        texts = column_of(batch, self._column, batch.column_names)
        return batch.append_column(self._embedding_column, self.embed_column(texts))

    def embed(self, texts: list[str]) -> npt.NDArray[Any]:
        """The embeddings [texts, dims] of these texts, by the options of this object."""
        return self.model.embed(texts, **self._options) if texts else self._none

    def embed_column(self, texts: pa.ChunkedArray) -> pa.Array:
        """Lists of a fixed size, one for each text; null where the text is null."""
        import pyarrow as pa

        valid = np.asarray(texts.is_valid())
        found = self.embed(texts.drop_null().cast(pa.string()).to_pylist())
        if valid.all():
            return as_lists(found)
        rows = np.zeros((len(valid), found.shape[1]), found.dtype)
        rows[valid] = found
        return as_lists(rows, mask=pa.array(~valid))


def check_options(options: Mapping[str, Any]) -> None:
    """Raises ValueError for options of `TextModel.embed` that make results depend on the batch."""
    dtype = options.get("dtype")
    if dtype in ("int8", "uint8") and options.get("ranges") is None:
        raise ValueError(
            f'dtype="{dtype}" needs ranges: without them they would be those of each batch, and '
            "vectors of different batches could not be compared"
        )


def column_of(batch: Any, name: str, names: Any) -> Any:
    """The column of a batch. Raises ValueError where `names` do not have it."""
    if name not in names:
        raise ValueError(f"no column {name!r:.80}, found: {', '.join(names)}")
    return batch[name]


def as_lists(rows: npt.NDArray[Any], mask: pa.Array | None = None) -> pa.Array:
    """Rows as lists of a fixed size; null where `mask` is true."""
    import pyarrow as pa

    values = pa.array(np.ascontiguousarray(rows).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(values, rows.shape[1], mask=mask)
