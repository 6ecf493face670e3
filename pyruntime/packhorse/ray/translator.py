"""Texts of a batch of rows to other texts: what an actor of Ray Data holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from packhorse.load_options import ModelPath
from packhorse.ray.embedder import column_of, load_arguments
from packhorse.text import TextModel

Task = Literal["translate", "summarize"]


class Translator:
    """A model that adds a column of translations or summaries to batches of rows, for
    `Dataset.map_batches`.

    dataset.map_batches(
        packhorse.ray.Translator,
        fn_constructor_kwargs={"model": "nllb", "source": "de", "target": "fr"},
        batch_size=256,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=4),
        num_cpus=4,
    )

    Each actor loads the model once. Texts of a batch run together, as many as the cache of keys and
    values holds; a text's result does not depend on them.
    """

    def __init__(
        self,
        model: ModelPath,
        *,
        column: str = "text",
        output_column: str = "translation",
        task: Task = "translate",
        load: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Loads the model.

        column         where the texts are
        output_column  what the new column is called
        task           "translate" or "summarize"
        load           arguments of `TextModel.load`. Where they say nothing else, an actor with a
                       GPU uses it, and one without has as many threads as CPUs
        options        arguments of `TextModel.translate` or `TextModel.summarize`, but for `n`,
                       `stream` and `details`

        Raises as `TextModel.load` and that method; ValueError for another task, and for the options
        that give more than one text for each.
        """
        if task not in ("translate", "summarize"):
            raise ValueError(f"task is {task!r:.80}, expected 'translate' or 'summarize'")
        if several := sorted(options.keys() & {"n", "stream", "details"}):
            raise ValueError(f"{several[0]}: a row has one text, expected none of {several}")
        self._column, self._output_column = column, output_column
        self._options = {"progress": False} | options
        given = load_arguments(load)
        if given["kv_tokens"] == 0:
            given.pop("kv_tokens")
        self.model = TextModel.load(model, **given)
        self._run = self.model.translate if task == "translate" else self.model.summarize
        self.translate([])  # checks the options

    def __call__(self, batch: Any) -> Any:
        """The batch with one more column.

        batch  a pyarrow Table, whose new column is null where the text is; or a dict of NumPy
               arrays, whose new column is an array of str

        Raises ValueError for another kind of batch, and where the column of texts is missing.
        """
        if isinstance(batch, dict):
            texts = column_of(batch, self._column, batch)
            found = self.translate([str(text) for text in texts])
            return batch | {self._output_column: np.array(found, object)}
        if not hasattr(batch, "append_column"):
            raise ValueError(
                f"a batch is a {type(batch).__name__}, expected a pyarrow Table or a dict of NumPy "
                'arrays: give map_batches batch_format="pyarrow" or "numpy"'
            )
        import pyarrow as pa

        texts = column_of(batch, self._column, batch.column_names).cast(pa.string()).to_pylist()
        results = iter(self.translate([text for text in texts if text is not None]))
        column = [None if text is None else next(results) for text in texts]
        return batch.append_column(self._output_column, pa.array(column, pa.string()))

    def translate(self, texts: list[str]) -> list[str]:
        """The results of these texts, by the task and the options of this object."""
        found: list[str] = self._run(texts, **self._options)
        return found
