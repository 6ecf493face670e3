"""Translations on a cluster, beside `TextModel.translate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import packhorse.ray
import pyarrow as pa
import pytest
import ray.data
from packhorse import TextModel
from ray_support import Cluster, make_texts, write_parquet
from text_to_text_models import make_folder

LOAD: dict[str, Any] = {"threads": 1, "kv_tokens": 2048}
DIRECTION: dict[str, Any] = {"source": "en", "target": "fr", "num_beams": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("models") / "m2m", "m2m-100")


def test_a_dataset(cluster: Cluster, folder: Path, tmp_path: Path) -> None:
    texts: list[str | None] = [*make_texts(7, longest=9), None, "", "x"]
    write_parquet(tmp_path / "in" / "a.parquet", texts, rows=4)
    given = [text for text in texts if text is not None]
    with TextModel.load(folder, **LOAD) as model:
        expected = iter(model.translate(given, **DIRECTION))
    dataset = ray.data.read_parquet(str(tmp_path / "in")).map_batches(
        packhorse.ray.Translator,
        fn_constructor_kwargs={"model": str(folder), "load": LOAD, **DIRECTION},
        batch_size=3,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
    )
    table = pa.concat_tables(ray.get(dataset.to_arrow_refs())).sort_by("id")
    assert table.column_names == ["id", "text", "translation"]
    assert table["text"].to_pylist() == texts
    assert table["translation"].to_pylist() == [
        None if text is None else next(expected) for text in texts
    ]


def test_batches(folder: Path, tmp_path: Path) -> None:
    """Also of no rows, of summaries, and with what cannot be asked for."""
    texts = make_texts(5, seed=1, longest=6)
    translator = packhorse.ray.Translator(
        folder, column="de", output_column="fr", load=LOAD, **DIRECTION
    )
    expected = translator.model.translate(texts, **DIRECTION)
    found = translator({"de": np.array(texts, object), "id": np.arange(5)})
    assert list(found) == ["de", "id", "fr"]
    assert found["fr"].tolist() == expected
    assert translator({"de": np.array([], object)})["fr"].shape == (0,)
    empty = translator(pa.table({"de": pa.array([], pa.string())}))
    assert empty.schema.field("fr").type == pa.string()
    t5 = make_folder(tmp_path / "t5", "t5")
    summarizer = packhorse.ray.Translator(t5, task="summarize", load=LOAD, max_new_tokens=3)
    table = summarizer(pa.table({"text": texts}))
    assert table["translation"].to_pylist() == summarizer.model.summarize(texts, max_new_tokens=3)

    with pytest.raises(ValueError, match="no column 'de', found: text"):
        translator({"text": np.array(texts, object)})
    with pytest.raises(ValueError, match="a batch is a list, expected a pyarrow Table"):
        translator([texts])
    for options, message in (
        ({"task": "chat"}, "task is 'chat', expected 'translate' or 'summarize'"),
        ({"n": 2}, "n: a row has one text"),
        ({"target": "xx"}, "xx"),
    ):
        with pytest.raises(ValueError, match=message):
            packhorse.ray.Translator(folder, load=LOAD, **{**DIRECTION, **options})
