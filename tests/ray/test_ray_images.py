"""Folders of images on a cluster, beside `ImageModel`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import packhorse.ray
import pyarrow as pa
import pytest
import ray.data
from packhorse.image import ImageModel
from picture_models import picture_model, write_pictures
from ray_support import Cluster, vectors

LOAD = {"threads": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return picture_model("clip", tmp_path / "clip")


def test_a_folder_of_images(cluster: Cluster, folder: Path, tmp_path: Path) -> None:
    paths = write_pictures(tmp_path / "in", 9)
    expected = ImageModel.load(folder, **LOAD).embed([str(path) for path in paths])
    found = ray.data.read_binary_files(str(tmp_path / "in"), include_paths=True).map_batches(
        packhorse.ray.ImageEmbedder,
        fn_constructor_kwargs={"model": str(folder), "keep": ["path"], "load": LOAD},
        batch_size=4,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
    )
    table = pa.concat_tables(ray.get(found.to_arrow_refs())).sort_by("path")
    assert table.column_names == ["path", "embedding"]
    assert [Path(path).name for path in table["path"].to_pylist()] == [one.name for one in paths]
    assert vectors(table).tobytes() == expected.tobytes()


def test_batches(folder: Path, tmp_path: Path) -> None:
    """Also of images that cannot be read, and of none."""
    paths = [str(path) for path in write_pictures(tmp_path / "in", 4)]
    contents = [Path(path).read_bytes() for path in paths]
    expected = ImageModel.load(folder, **LOAD).embed(paths)
    embedder = packhorse.ray.ImageEmbedder(folder, load=LOAD, errors="null")
    broken = [contents[0], None, b"no image", *contents[1:]]
    table = embedder(pa.table({"bytes": broken}))
    assert table["embedding"].is_valid().to_pylist() == [True, False, False, True, True, True]
    rows = np.array([row for row in table["embedding"].to_pylist() if row], np.float32)
    np.testing.assert_array_equal(rows, expected)
    found = embedder({"bytes": np.array(broken, object), "id": np.arange(6)})
    assert list(found) == ["bytes", "id", "embedding"]
    assert np.isnan(found["embedding"][[1, 2]]).all()
    np.testing.assert_array_equal(found["embedding"][[0, 3, 4, 5]], expected)
    assert embedder({"bytes": np.array([], object)})["embedding"].shape == (0, 24)

    strict = packhorse.ray.ImageEmbedder(folder, column="path", load=LOAD)
    table = strict(pa.table({"path": paths}))
    assert vectors(table).tobytes() == expected.tobytes()
    for row, message in ((f"{paths[0]}.gone", "No such file"), (__file__, "no JPEG, PNG or WebP")):
        with pytest.raises(ValueError, match=f"row 4: .*{message}"):
            strict(pa.table({"path": [*paths, row]}))
    with pytest.raises(ValueError, match="no column 'path', found: bytes"):
        strict({"bytes": np.array(contents, object)})
    with pytest.raises(ValueError, match="expected 'strict' or 'null'"):
        packhorse.ray.ImageEmbedder(folder, errors="skip")  # type: ignore[arg-type]
