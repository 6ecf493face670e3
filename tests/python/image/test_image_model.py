"""ImageModel over patches that are made already, and over a processor; texts beside images."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import packhorse
import pytest
from packhorse import PackedPatches
from packhorse.image import ImageModel
from packhorse.patches import join, patches_of
from packhorse_weights import convert
from tiny_tokenizer import make_tokenizer

GOLDEN = Path(__file__).parents[2] / "golden" / "vision"
WORDS = ["cat", "the dog sat on the mat", ""]


class Resizing:
    """A processor of arrays that are pixel values already."""

    def __init__(self) -> None:
        self.calls = 0

    def patches(self, images: list[Any], patch_size: int) -> Any:
        self.calls += 1
        made = join([patches_of(one, patch_size) for one in images])
        return SimpleNamespace(features=made.features, grids=made.grids)


def pictures(count: int) -> list[Any]:
    draw = np.random.default_rng(8)
    sizes = draw.integers(1, 6, (count, 2))
    return [draw.normal(size=(3, 7 * h, 7 * w)).astype(np.float32) for h, w in sizes]


@pytest.fixture(params=["chinese-clip", "clip", "siglip"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model with two towers and a tokenizer of 99 tokens at most."""
    place: Path = tmp_path / "model"
    shutil.copytree(GOLDEN / request.param, place)
    tokenizer = make_tokenizer()
    tokenizer.save(str(place / "tokenizer.json"))
    settings = {"pad_token": "[PAD]", "tokenizer_class": "PreTrainedTokenizerFast"}
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    return place


def ids_of(model: ImageModel, text: str, name: str) -> Any:
    ids = model.texts.tokenizer.backend.encode(text).ids
    return ids + [0] * (16 - len(ids)) if name == "siglip" else ids


@pytest.mark.parametrize("converted", [False, True])
def test_similarity_and_zero_shot(folder: Path, converted: bool, tmp_path: Path) -> None:
    if converted:
        convert(folder, tmp_path / "converted")
    model = ImageModel.load(tmp_path / "converted" if converted else folder, processor=Resizing())
    name = str(model.session.config["family"])
    images = pictures(5)
    vectors = model.embed(images)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    texts = packhorse.Session.load(folder, tower="text").run(
        [ids_of(model, text, name) for text in WORDS], outputs="embedding"
    )
    fields = model.session.config["similarity"]
    expected = vectors @ texts.embedding.T * fields["scale"] + fields["bias"]
    found = model.similarity(images, WORDS)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert (
        model.similarity(images, WORDS[0])[:, 0] == model.similarity(images, WORDS[:1])[:, 0]
    ).all()

    labels = ["cat", "dog", "mat"]
    scored = model.zero_shot(images, labels, template="the {}", top_k=2)
    logits = model.similarity(images, [f"the {one}" for one in labels])
    rows = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    if fields["score"] == "sigmoid":
        rows = 1 / (1 + np.exp(-logits))
    assert len(scored) == 5
    assert all(len(one) == 2 for one in scored)
    for one, row in zip(scored, rows, strict=True):
        best = int(row.argmax())
        assert one[0]["label"] == labels[best]
        assert one[0]["score"] == pytest.approx(row[best], rel=1e-5)
    model.close()
    with pytest.raises(RuntimeError, match="closed"):
        model.embed(images)


def test_many_images_are_batches() -> None:
    """Batches of any size give the same bits."""
    processor = Resizing()
    model = ImageModel.load(GOLDEN / "dinov2-classes", processor=processor)
    small = ImageModel.load(
        GOLDEN / "dinov2-classes", processor=processor, max_sequences=3, max_tokens=40
    )
    images = pictures(17)
    found = model.embed(images)
    assert found.shape == (17, 32)
    assert (small.embed(images) == found).all()
    assert (model.embed(model.patches(images)) == found).all()
    assert [model.embed([one])[0].tobytes() for one in images] == [row.tobytes() for row in found]
    assert processor.calls == 1 + 6 + 1 + 17
    assert model.embed([]).shape == (0, 32)
    assert model.classify([]) == []


def test_classify() -> None:
    folder = GOLDEN / "deit"
    with np.load(folder / "golden.npz") as file:
        golden = dict(file)
    with ImageModel.load(folder) as model:
        batch = PackedPatches(golden["features"], golden["grids"])
        found = model.classify(batch, top_k=None)
        best = model.classify(batch, top_k=1)
    powers = np.exp(golden["logits"])
    expected = powers / powers.sum(axis=1, keepdims=True)
    for row, labels, first in zip(expected, found, best, strict=True):
        scores = {one["label"]: one["score"] for one in labels}
        assert [scores[name] for name in model.labels] == pytest.approx(row.tolist(), abs=1e-5)
        assert first == labels[:1]
        assert first[0]["score"] == max(scores.values())


def test_what_is_refused(folder: Path) -> None:
    model = ImageModel.load(GOLDEN / "vit-pooler")
    refused: list[tuple[Any, str]] = [
        (lambda: model.embed(["a.png"]), "loaded without a processor"),
        (lambda: model.classify(pictures(1)), "has no classifier of images$"),
        (lambda: model.similarity(pictures(1), ["a"]), "has no model of texts"),
        (lambda: model.zero_shot(pictures(1), []), "labels is"),
        (lambda: model.zero_shot(pictures(1), ["a"], template="a"), "template is"),
        (lambda: model.zero_shot(pictures(1), ["a"], top_k=0), "top_k is 0"),
        (
            lambda: ImageModel.load(GOLDEN / "vit-pooler", processor=Resizing()).embed("a"),
            "images is a str",
        ),
        (lambda: ImageModel.load(folder).classify(pictures(1)), "use zero_shot"),
        (lambda: packhorse.TextModel.load(GOLDEN / "vit-pooler"), "takes images and no texts"),
        (lambda: ImageModel.load(GOLDEN.parent / "bert-gelu"), "takes token ids and no images"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()
