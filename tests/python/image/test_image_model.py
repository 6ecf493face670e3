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
from packhorse.image import ImageModel, ImageProcessor
from packhorse.patches import join, patches_of
from packhorse_weights import convert
from tiny_tokenizer import make_tokenizer

GOLDEN = Path(__file__).parents[2] / "golden" / "vision"
SPEECH = GOLDEN.parent / "speech" / "whisper"
T5 = GOLDEN.parent / "text_to_text" / "t5"
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
        (lambda: model.classify(pictures(1), top_k="2"), "top_k is '2', expected a whole number"),
        (lambda: model.zero_shot(pictures(1), {"a", "b"}), "labels is .* in an order"),
        (lambda: model.zero_shot(pictures(1), None), "labels is None"),
        (lambda: model.similarity(pictures(1), None), "texts is None"),
        (
            lambda: ImageModel.load(GOLDEN / "vit-pooler", processor=Resizing()).embed("a"),
            "images is a str",
        ),
        (lambda: ImageModel.load(folder).classify(pictures(1)), "use zero_shot"),
        (lambda: packhorse.TextModel.load(GOLDEN / "vit-pooler"), "takes images and no texts"),
        (lambda: ImageModel.load(GOLDEN.parent / "bert-gelu"), "no images: .*packhorse.TextModel"),
        (lambda: ImageModel.load(SPEECH), "takes no images: .*packhorse.audio.AudioModel"),
        (lambda: ImageModel.load(T5), "takes no images: load it by packhorse.TextModel"),
        (lambda: ImageModel.load(folder, kv_tokens=64), "kv_tokens is 64, .* no such class here"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()


def test_what_is_no_list_of_images_is_refused() -> None:
    """A single array would be cut into rows, and a set has no order."""
    model = ImageModel.load(GOLDEN / "vit-pooler", processor=Resizing())
    image = np.zeros((3, 14, 21), np.float32)
    for given in (image, {"a.png"}, {"a.png": 1}, bytearray(4), None):
        with pytest.raises(ValueError, match="images is an? .*expected a list of images"):
            model.embed(given)
    np.testing.assert_array_equal(model.embed(np.stack([image, image])), model.embed([image] * 2))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_wrong_image_has_its_number(folder: Path, tmp_path: Path, threads: int) -> None:
    """Also on one thread, and where it is alone in the last batch."""
    settings = {"image_processor_type": "CLIPImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    processor = ImageProcessor.from_folder(tmp_path, threads=threads)
    image = np.zeros((30, 20, 3), np.uint8)
    for wrong, message in (
        (b"", "an image of 0 bytes is no JPEG"),
        (None, "an image is a NoneType"),
        ("\ud800.png", "surrogates not allowed"),
    ):
        expected = TypeError if wrong is None else ValueError
        with pytest.raises(expected, match=f"^image 1: {message}|^image 1: .*{message}"):
            processor([image, wrong])
        with ImageModel.load(folder, processor=processor, max_sequences=2) as model:
            with pytest.raises(expected, match=f"^image 2: .*{message}"):
                model.embed([image, image, wrong])
            with pytest.raises(expected, match=f"^(?!image).*{message}"):
                model.embed([wrong])
            assert model.embed([image]).shape[0] == 1
    for options in ({"max_pixels": 0}, {"max_pixels": "9"}, {"threads": 1.5}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} is .*expected a whole number"):
            ImageProcessor.from_folder(tmp_path, **options)
    for size in (0, 1.5, (7, 7, 7), "7"):
        with pytest.raises(ValueError, match="patch_size is .*expected one or two whole numbers"):
            processor.patches([image], size)


def test_an_image_smaller_than_a_patch_is_refused(folder: Path) -> None:
    small = {"height": 3, "width": 3}
    settings = {"image_processor_type": "CLIPImageProcessor", "size": small, "crop_size": small}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    image = np.zeros((30, 20, 3), np.uint8)
    with ImageModel.load(folder) as model:
        for images, name in (([image], ""), ([image, image], "image 0: ")):
            with pytest.raises(ValueError, match=f"^{name}an image becomes smaller than a patch"):
                model.embed(images)
        assert model.embed([]).shape[0] == 0


def test_a_closed_model_loads_no_texts(folder: Path) -> None:
    model = ImageModel.load(folder)
    model.close()
    with pytest.raises(RuntimeError, match="closed"):
        model.zero_shot(pictures(1), ["a"])
    assert model._texts is None
