"""Images of a batch of rows to vectors: what an actor of Ray Data holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from packhorse.image import ImageModel
from packhorse.image.reading import read_images
from packhorse.load_options import ModelPath
from packhorse.ray.embedder import as_lists, column_of, load_arguments
from packhorse.result import FloatArray

Errors = Literal["strict", "null"]


class ImageEmbedder:
    """A model that adds a column of embeddings to batches of rows with images, for
    `Dataset.map_batches`.

    ray.data.read_binary_files("pictures/", include_paths=True).map_batches(
        packhorse.ray.ImageEmbedder,
        fn_constructor_kwargs={"model": "model-folder", "keep": ["path"]},
        batch_size=256,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=4),
        num_cpus=4,
    )

    Each actor loads the model once. It decodes the next images while a batch runs, on as many
    threads as the machine has cores.
    """

    def __init__(
        self,
        model: ModelPath,
        *,
        column: str = "bytes",
        embedding_column: str = "embedding",
        keep: list[str] | None = None,
        errors: Errors = "strict",
        load: Mapping[str, Any] | None = None,
    ) -> None:
        """Loads the model.

        column            where the images are: bytes of JPEG, PNG or WebP files, or their paths
        embedding_column  what the new column is called
        keep              columns of the input to copy; None: all
        errors            "strict": an image that cannot be read is a ValueError that names its row;
                          "null": its embedding is null (of a dict of arrays: nan)
        load              arguments of `ImageModel.load`. Where they say nothing else, an actor with
                          a GPU uses it, and one without has as many threads as CPUs

        Raises as `ImageModel.load`; ValueError for a model without settings of its processor, and
        for other `errors`.
        """
        if errors not in ("strict", "null"):
            raise ValueError(f"errors is {errors!r:.80}, expected 'strict' or 'null'")
        self._column, self._embedding_column = column, embedding_column
        self._keep, self._errors = keep, errors
        given = load_arguments(load)
        given.pop("kv_tokens")
        self.model = ImageModel.load(model, **given, progress=False)
        if self.model.processor is None:
            raise ValueError(f"{model}: no preprocessor_config.json, which says how it sees images")

    def __call__(self, batch: Any) -> Any:
        """The batch with one more column.

        batch  a pyarrow Table, whose new column has lists of a fixed size; or a dict of NumPy
               arrays, whose new column is an array [rows, dims]

        Raises ValueError for another kind of batch, where a column is missing, and by `errors`.
        """
        if isinstance(batch, dict):
            images = list(column_of(batch, self._column, batch))
            rows, valid = self.embed(images)
            rows[~valid] = np.nan
            kept = batch if self._keep is None else {k: batch[k] for k in self._keep}
            return kept | {self._embedding_column: rows}
        if not hasattr(batch, "append_column"):
            raise ValueError(
                f"a batch is a {type(batch).__name__}, expected a pyarrow Table or a dict of NumPy "
                'arrays: give map_batches batch_format="pyarrow" or "numpy"'
            )
        import pyarrow as pa

        images = column_of(batch, self._column, batch.column_names).to_pylist()
        rows, valid = self.embed(images)
        table = batch if self._keep is None else batch.select(self._keep)
        column = as_lists(rows, None if valid.all() else pa.array(~valid))
        return table.append_column(self._embedding_column, column)

    def embed(self, images: list[Any]) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """(the embeddings [images, dims], whether each could be read); None is no image."""
        columns = self.model.session.outputs["embedding"].columns
        rows = np.zeros((len(images), columns), np.float32)
        valid = np.array([one is not None for one in images], bool)
        places = np.flatnonzero(valid)
        begin = 0
        for found in read_images(self.model, _given(images)):
            numbers = places[begin : begin + len(found.sources)]
            begin += len(found.sources)
            for i, error in found.errors.items():
                if self._errors == "strict":
                    raise ValueError(f"row {numbers[i]}: {error}") from error
                valid[numbers[i]] = False
            if found.patches is not None:
                rows[numbers[valid[numbers]]] = self.model.embed(found.patches, progress=False)
        return rows, valid


def _given(images: list[Any]) -> Iterator[Any]:
    return (one for one in images if one is not None)
