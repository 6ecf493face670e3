"""`packhorse serve`: images by all protocols, beside what `ImageModel` makes of the same files."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import GOLDEN
from packhorse._native import image as native
from packhorse.image import ImageModel
from packhorse.serve.models.image_inputs import ImageInput
from picture_models import data_url, picture, picture_model
from serve_room import PACKAGES, Client, serving, settings_for
from tiny_tokenizer import with_tokenizer

for package in (*PACKAGES, "PIL"):
    pytest.importorskip(package)

import PIL.Image  # noqa: E402

FILES = [picture(0), picture(1, "JPEG"), picture(2, "WEBP", (9, 80))]
KINDS = ("png", "jpeg", "webp")
URLS = [data_url(file, f"image/{kind}") for file, kind in zip(FILES, KINDS, strict=True)]
TEXTS = ["the cat", "a dog on the mat"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    names = {"clip": "clip", "deit": "deit", "dino": "dinov2-classes"}
    found = {name: picture_model(golden, root / name) for name, golden in names.items()}
    return {**found, "texts": with_tokenizer(GOLDEN / "bert-gelu", root / "texts")}


@pytest.fixture(scope="module", params=[0, 1], ids=["threads", "processes"])
def client(folders: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Client]:
    named = [f"{name}={path}" for name, path in folders.items()]
    settings = settings_for(*named, max_client_images=8, image_processes=request.param)
    with serving(settings) as (found, _):
        yield found


@pytest.fixture(scope="module")
def clip(folders: dict[str, Path]) -> ImageModel:
    return ImageModel.load(folders["clip"], threads=1)


def rows_of(answer: Any) -> Any:
    assert answer.status == 200, answer.body
    return np.array([one["embedding"] for one in answer.json["data"]], np.float32)


def test_forms_of_images(client: Client, clip: ImageModel) -> None:
    """OpenAI's parts, Jina's objects, data URLs, base64 as infinity takes it, vLLM's message."""
    expected = clip.embed(FILES)
    plain = [base64.b64encode(file).decode() for file in FILES]
    part = {"type": "image_url", "image_url": {"url": URLS[0], "detail": "low"}}
    for body in (
        {"input": URLS},
        {"input": [{"image": url} for url in URLS]},
        {"input": [{"image": one} for one in plain]},
        {"input": [{"type": "image_url", "image_url": url} for url in URLS]},
        {"input": [{"content": [{**part, "image_url": {"url": url}}]} for url in URLS]},
        {"input": plain, "modality": "image"},
    ):
        np.testing.assert_array_equal(rows_of(client.post("/v1/embeddings", body)), expected)
    for body in (
        {"input": URLS[0]},
        {"input": {"image": URLS[0]}},
        {"input": part},
        {"messages": [{"role": "user", "content": [part]}], "model": "clip"},
    ):
        answer = client.post("/v1/embeddings", body)
        np.testing.assert_array_equal(rows_of(answer), expected[:1])
        assert answer.json["model"] == "clip"
        assert answer.json["usage"] == {"prompt_tokens": 17, "total_tokens": 17}


def test_images_and_texts(client: Client, clip: ImageModel) -> None:
    mixed = [{"text": TEXTS[0]}, {"image": URLS[1]}, TEXTS[1], {"image": URLS[0]}]
    found = rows_of(client.post("/v1/embeddings", {"input": mixed, "model": "clip"}))
    np.testing.assert_array_equal(found[[3, 1]], clip.embed(FILES[:2]))
    np.testing.assert_allclose(found[[0, 2]], clip.texts.embed(TEXTS), atol=1e-6)
    only = rows_of(client.post("/v1/embeddings", {"input": TEXTS, "model": "clip"}))
    np.testing.assert_array_equal(only, found[[0, 2]])
    # Objects of text alone are texts for models of texts, too.
    body = {"input": [{"text": text} for text in TEXTS], "model": "texts"}
    other = rows_of(client.post("/v1/embeddings", body))
    assert other.shape[1] != found.shape[1]
    body["input"] = TEXTS  # type: ignore[assignment]
    np.testing.assert_array_equal(rows_of(client.post("/v1/embeddings", body)), other)
    # A text that looks like an image is a text for them.
    body = {"input": ["data:image/png;,"], "model": "texts"}
    assert len(rows_of(client.post("/v1/embeddings", body))) == 1


def test_options_of_vectors(client: Client, clip: ImageModel, folders: dict[str, Path]) -> None:
    whole = clip.embed(FILES)
    body = {"input": URLS, "dimensions": 5, "encoding_format": "base64"}
    answer = client.post("/v1/embeddings", body)
    rows = [base64.b64decode(one["embedding"]) for one in answer.json["data"]]
    found = np.array([np.frombuffer(row, np.float32) for row in rows])
    cut = whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True)
    np.testing.assert_allclose(found, cut, rtol=1e-6)
    own = ImageModel.load(folders["dino"], threads=1).embed(FILES)
    body = {"input": URLS, "model": "dino"}
    np.testing.assert_array_equal(rows_of(client.post("/v1/embeddings", body)), own)
    scaled = rows_of(client.post("/v1/embeddings", {**body, "normalize": True}))
    np.testing.assert_allclose(scaled, own / np.linalg.norm(own, axis=1, keepdims=True), rtol=1e-5)
    refused = client.post("/v1/embeddings", {"input": URLS, "normalize": False})
    assert refused.status == 400
    assert "have length 1 anyway" in refused.json["error"]["message"]
    refused = client.post("/v1/embeddings", {"input": URLS, "dimensions": 25})
    assert refused.json["error"]["message"] == "dimensions is 25, but embeddings have 24 dimensions"


def test_cohere(client: Client, clip: ImageModel) -> None:
    expected = clip.embed(FILES)
    body: dict[str, Any] = {"images": URLS, "input_type": "image", "model": "clip"}
    answer = client.post("/v2/embed", body)
    assert answer.status == 200
    np.testing.assert_array_equal(np.float32(answer.json["embeddings"]["float"]), expected)
    assert answer.json["texts"] == []
    assert answer.json["meta"]["billed_units"]["images"] == 3
    part = {"type": "image_url", "image_url": {"url": URLS[2]}}
    inputs = [{"content": [{"type": "text", "text": TEXTS[0]}]}, {"content": [part]}]
    answer = client.post("/v2/embed", {"inputs": inputs, "model": "clip"})
    found = np.float32(answer.json["embeddings"]["float"])
    np.testing.assert_array_equal(found[1], expected[2])
    np.testing.assert_allclose(found[0], clip.texts.embed(TEXTS[0]), atol=1e-6)
    both = client.post("/v2/embed", {"inputs": [{"content": [part, part]}], "model": "clip"})
    assert both.status == 400
    assert "beside others" in both.json["message"]
    assert client.post("/v2/embed", {"images": URLS, "model": "texts"}).status == 400
    assert client.post("/v2/embed", {"texts": TEXTS, "input_type": "image"}).status == 400


def test_image_classification(client: Client, folders: dict[str, Path]) -> None:
    model = ImageModel.load(folders["deit"], threads=1)
    expected = model.classify(FILES, top_k=2)
    parameters = {"top_k": 2}
    for inputs in (URLS, [base64.b64encode(file).decode() for file in FILES]):
        body = {"inputs": inputs, "parameters": parameters}
        assert client.post("/image-classification", body).json == expected
    body = {"inputs": URLS[0], "parameters": parameters, "model": "deit"}
    assert client.post("/image-classification", body).json == expected[0]
    whole = model.classify(FILES[:1])[0]
    raw = client.post("/image-classification", FILES[0], headers={"content-type": "image/png"})
    assert raw.json == whole
    # InferenceClient sends the bytes of a file without a type.
    assert client.post("/image-classification", FILES[0]).json == whole
    assert client.post("/image-classification", b' {"inputs": ""}').status == 422
    assert "the body" in client.post("/image-classification", b"abc").json["error"]
    logits = {"function_to_apply": "none"}
    answer = client.post("/image-classification", {"inputs": URLS[0], "parameters": logits})
    scores = {one["label"]: one["score"] for one in answer.json}
    rows = np.array(list(scores.values()))
    softmax = np.exp(rows) / np.exp(rows).sum()
    assert softmax == pytest.approx([one["score"] for one in whole], rel=1e-4)
    refused = client.post("/image-classification", {"inputs": URLS[0], "model": "clip"})
    assert refused.status == 424
    assert "is not a classifier of images" in refused.json["error"]


def test_zero_shot(client: Client, clip: ImageModel) -> None:
    labels = ["cat", "the dog", "mat"]
    parameters = {"candidate_labels": labels, "hypothesis_template": "the {}"}
    body: dict[str, Any] = {"inputs": URLS, "parameters": parameters}
    answer = client.post("/zero-shot-image-classification", body)
    expected = clip.zero_shot(FILES, labels, template="the {}")
    assert [[one["label"] for one in row] for row in answer.json] == [
        [one["label"] for one in row] for row in expected
    ]
    for row, other in zip(answer.json, expected, strict=True):
        scores = [one["score"] for one in other]
        assert [one["score"] for one in row] == pytest.approx(scores, rel=1e-4)
    body = {"inputs": URLS[0], "parameters": {"candidate_labels": labels, "top_k": 1}}
    answer = client.post("/zero-shot-image-classification", body)
    assert len(answer.json) == 1
    for wrong in ({}, {"candidate_labels": []}, {**parameters, "hypothesis_template": "the"}):
        body = {"inputs": URLS[0], "parameters": wrong}
        assert client.post("/zero-shot-image-classification", body).status in (400, 422)


def test_requests_share_batches(client: Client, clip: ImageModel) -> None:
    """Many at once give what each gives alone."""
    files = [picture(i, "PNG", (20 + i, 30)) for i in range(12)]
    expected = clip.embed(files)
    found: dict[int, Any] = {}

    def ask(i: int) -> None:
        body = {"input": [{"image": data_url(files[i])}]}
        found[i] = rows_of(client.post("/v1/embeddings", body))[0]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(np.array([found[i] for i in range(12)]), expected)


def test_an_image_is_opened_once_and_resized_by_one_thread(
    client: Client,
    clip: ImageModel,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Loops over several threads take turns, by which images would wait for each other. Where
    processes read, the server itself does not."""
    here = [] if request.node.callspec.params["client"] else [1]
    opened: list[str] = []
    threads: list[int] = []
    real_open, real_make = PIL.Image.open, native.make_features

    def open_image(*args: Any, **options: Any) -> Any:
        opened.append(threading.current_thread().name)
        return real_open(*args, **options)

    def make_features(*args: Any) -> None:
        threads.append(args[-1])
        real_make(*args)

    monkeypatch.setattr(PIL.Image, "open", open_image)
    monkeypatch.setattr(native, "make_features", make_features)
    found = rows_of(client.post("/v1/embeddings", {"model": "clip", "input": URLS[1:2]}))
    assert len(opened) == len(here)
    assert threads == here
    np.testing.assert_array_equal(found, clip.embed(FILES[1:2]))


@pytest.mark.parametrize("readers", [{"tokenization_workers": 5}, {"image_processes": 4}])
def test_images_of_a_request_are_read_side_by_side(
    folders: dict[str, Path],
    clip: ImageModel,
    monkeypatch: pytest.MonkeyPatch,
    readers: dict[str, int],
) -> None:
    """By up to four threads; rows come in the order of the images, errors name theirs."""
    real, four = ImageInput.header, threading.Barrier(4)
    begun: list[str] = []
    lock = threading.Lock()

    def header(*arguments: Any) -> Any:
        with lock:
            begun.append(threading.current_thread().name)
            wait = len(begun) <= 4
        if wait:
            four.wait(30)
        return real(*arguments)

    monkeypatch.setattr(ImageInput, "header", header)
    settings = settings_for(f"clip={folders['clip']}", max_client_images=8, **readers)
    with serving(settings) as (client, _):
        for count in (7, 2, 3):
            urls = (URLS * 3)[:count]
            found = rows_of(client.post("/v1/embeddings", {"model": "clip", "input": urls}))
            np.testing.assert_allclose(found, clip.embed((FILES * 3)[:count]), rtol=1e-6)
        assert len(set(begun[:4])) == 4
        bad = [*URLS, "data:image/png;base64,AAAA"]
        answer = client.post("/v1/embeddings", {"model": "clip", "input": bad})
        assert answer.status == 400
        assert "input[3]" in answer.json["error"]["message"]
        assert client.post("/v1/embeddings", {"model": "clip", "input": URLS}).status == 200


def reading_processes() -> list[int]:
    """Those that this process has started and not taken note of the end of."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (path / "stat").read_text().rsplit(")", 1)[1].split()[1]
            if int(parent) == os.getpid() and b"reading_process" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def test_a_process_that_ends_costs_one_request(
    folders: dict[str, Path], clip: ImageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoder that crashes, or that the system ends: that request is an error of the server."""
    real, before = ImageInput.header, set(reading_processes())
    settings = settings_for(f"clip={folders['clip']}", image_processes=1)
    body = {"model": "clip", "input": URLS[:1]}
    with serving(settings) as (client, _):
        (one,) = set(reading_processes()) - before

        def header(*arguments: Any) -> Any:
            os.kill(one, signal.SIGSTOP)  # so that it has not answered when it ends
            threading.Timer(0.2, os.kill, (one, signal.SIGKILL)).start()
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(ImageInput, "header", header)
            answer = client.post("/v1/embeddings", body)
            assert (answer.status, answer.json["error"]["type"]) == (500, "server_error")
        np.testing.assert_array_equal(
            rows_of(client.post("/v1/embeddings", body)), clip.embed(FILES[:1])
        )
        (other,) = set(reading_processes()) - before
        assert other != one
    assert set(reading_processes()) == before


def test_descriptors_of_processes_are_no_connections(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of each: its socket and its memory."""
    monkeypatch.setattr("resource.getrlimit", lambda _which: (400, 400))
    most = []
    for processes in (0, 3):
        settings = settings_for(f"deit={folders['deit']}", image_processes=processes)
        with serving(settings) as (_, server):
            most.append(server.connections.most)
    assert most[0] - most[1] == 6


def test_what_is_told_about_models(client: Client, clip: ImageModel) -> None:
    models = {one["name"]: one for one in client.get("/models").json}
    assert models["clip"]["methods"] == ["embed", "embed_all", "embed_images", "zero_shot"]
    assert models["clip"]["max_input_length"] == 16
    assert models["deit"]["methods"] == ["classify_images", "embed_images"]
    both = clip.session.memory_plan.total_bytes + clip.texts.session.memory_plan.total_bytes
    assert models["clip"]["memory_bytes"] >= both
    assert client.get("/info?model=deit").json["model_type"]["classifier"]["id2label"]["0"]
    assert client.get("/info?model=clip").status == 200
    assert client.post("/tokenize", {"inputs": "the cat", "model": "clip"}).status == 200
    refused = client.post("/tokenize", {"inputs": "the cat", "model": "deit"})
    assert (refused.status, refused.json["error"]) == (
        424,
        "model 'deit' takes images and no texts",
    )
    refused = client.post("/embed", {"inputs": "the cat", "model": "deit"})
    assert "it can: classify_images, embed_images" in refused.json["error"]
    before = client.metric("packhorse_images_total")
    client.post("/v1/embeddings", {"input": URLS})
    assert client.metric("packhorse_images_total") == before + 3
    assert client.get("/ready").status == 200


def test_loading(folders: dict[str, Path], tmp_path: Path) -> None:
    blind = picture_model("clip", tmp_path / "blind")
    (blind / "preprocessor_config.json").unlink()
    settings = settings_for(f"{blind}")
    with pytest.raises(ValueError, match=r"no preprocessor_config\.json"), serving(settings):
        pass
    with serving(settings_for(f"clip={folders['clip']}", admin=True)) as (client, _):
        body = {"name": "deit", "path": str(folders["deit"])}
        assert client.post("/models", body).json["methods"] == ["classify_images", "embed_images"]
        answer = client.post("/models", {**body, "name": "two", "max_length": 9})
        assert answer.status == 422
        assert "max_length is for models of texts" in answer.json["error"]
        assert client.post("/models/clip/reload", {}).status == 200
        assert client.ask("DELETE", "/models/deit").status == 204
        assert rows_of(client.post("/v1/embeddings", {"input": URLS})).shape == (3, 24)
