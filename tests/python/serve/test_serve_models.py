"""`packhorse serve`: which settings a model gets, masks that are filled, adapters as models, and
replicas of one model."""

from __future__ import annotations

import json
import re
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pipeline_cases as cases
import pytest
from adapted_model import adapted_texts
from checkpoints import GOLDEN
from packhorse import EncoderSession, TextModel
from packhorse.serve import ModelSettings
from picture_models import data_url, picture, picture_model
from serve_room import PACKAGES, Client, serving, settings_for, wait_until
from shared_runs import SECONDS
from tiny_tokenizer import with_kind

for package in PACKAGES:
    pytest.importorskip(package)

TEXTS = [f"{'the cat sat ' * (i % 7)}on mat {i}" for i in range(40)]
ASKED = {"prompt": "the cat sat", "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(a model that generates, an adapter of it)"""
    return adapted_texts(tmp_path_factory.mktemp("adapted"))


# --- settings of all models


def test_settings_of_all_models_go_to_those_that_they_suit(
    minilm: Path, adapted: tuple[Path, Path]
) -> None:
    settings = settings_for(f"minilm={minilm}", f"lm={adapted[0]}", kv_tokens=256)
    with serving(settings) as (client, _):
        assert client.post("/embed", {"inputs": "a"}).status == 200
        assert client.post("/v1/completions", ASKED).status == 200
        assert client.get("/models/lm").json["generation"]["pages_free"] == 4
        assert client.post("/models/lm/reload", None).status == 403


def test_settings_of_models_of_texts_do_not_reach_images_and_speech(
    adapted: tuple[Path, Path], tmp_path: Path
) -> None:
    folders = {name: picture_model(name, tmp_path / name) for name in ("clip", "deit")}
    named = [f"{name}={folder}" for name, folder in folders.items()]
    settings = settings_for(f"lm={adapted[0]}", *named, kv_tokens=256, max_adapters=2)
    with serving(settings) as (client, _):
        assert client.post("/v1/completions", {**ASKED, "model": "lm"}).status == 200
        body = {"model": "clip", "input": [{"image": data_url(picture(0))}, {"text": "a cat"}]}
        assert client.post("/v1/embeddings", body).status == 200
    whisper = str(GOLDEN / "speech" / "whisper")
    own = ModelSettings.read({"name": "whisper", "path": whisper, "max_length": 8})
    with (
        pytest.raises(ValueError, match="max_length is for .* takes audio"),
        serving(settings_for(own)),
    ):
        pass


def test_drafts_change_no_answer(minilm: Path, adapted: tuple[Path, Path]) -> None:
    request = {"prompt": "the cat sat on the cat sat on the", "max_tokens": 30, "temperature": 0}
    texts = []
    for more in ({}, {"draft": "ngram", "draft_tokens": 4}):
        settings = settings_for(f"minilm={minilm}", f"lm={adapted[0]}", kv_tokens=256, **more)
        with serving(settings) as (client, _):
            found = client.post("/v1/completions", request)
            assert found.status == 200
            texts.append(found.json["choices"][0]["text"])
    assert texts[0] == texts[1]
    with (
        pytest.raises(ValueError, match="draft is ngram, but no model generates: minilm"),
        serving(settings_for(f"minilm={minilm}", draft="ngram")),
    ):
        pass


@pytest.mark.parametrize("name", ["kv_tokens", "max_adapters", "max_predictions"])
def test_what_suits_no_model_is_refused(minilm: Path, name: str) -> None:
    with (
        pytest.raises(ValueError, match=f"{name} is 64, but no model .*: minilm"),
        serving(settings_for(f"minilm={minilm}", **{name: 64})),
    ):
        pass
    own = ModelSettings.read({"name": "minilm", "path": str(minilm), name: 64})
    with pytest.raises(ValueError, match=name), serving(settings_for(own)):
        pass


def test_a_limit_of_memory(minilm: Path) -> None:
    """For all models, or for one by its table: a model that takes more is not loaded."""
    with (
        pytest.raises(MemoryError, match="memory_limit is 1000000"),
        serving(settings_for(f"minilm={minilm}", memory_limit="1MB")),
    ):
        pass
    own = ModelSettings.read({"name": "minilm", "path": str(minilm), "memory_limit": 2**30})
    with serving(settings_for(own, memory_limit="1MB", admin=True)) as (client, _):
        assert client.get("/models/minilm").json["memory_bytes"] < 2**30
        body = {"name": "other", "path": str(minilm)}
        refused = client.post("/models", body)
        assert (refused.status, "memory_limit is 1000000" in refused.body.decode()) == (424, True)
        wrong = client.post("/models", {**body, "memory_limit": "much"})
        assert (wrong.status, "memory_limit is 'much'" in wrong.body.decode()) == (422, True)
        assert client.post("/models", {**body, "memory_limit": "1GB"}).status == 201


def test_no_cache_for_any_model(smollm2: Path) -> None:
    with serving(settings_for(f"lm={smollm2}", kv_tokens=0)) as (client, _):
        assert client.get("/models/lm").json["methods"] == ["embed", "embed_all"]


# --- masks


def check_words(found: Any, expected: Any) -> None:
    """Lists of words, or lists of these, as transformers' pipeline gives them (pipelines.json)."""
    if expected and isinstance(expected[0][0], list):
        for one, right in zip(found, expected, strict=True):
            check_words(one, right)
        return
    assert [[one[name] for name in cases.WORD] for one in found] == [one[1:] for one in expected]
    np.testing.assert_allclose(
        [one["score"] for one in found], [one[0] for one in expected], atol=1e-5
    )


@pytest.mark.parametrize("name", cases.FILLERS)
def test_masks_are_filled(name: str, tmp_path: Path) -> None:
    """As the pipeline of transformers fills them, by the route that `InferenceClient` takes."""
    golden = json.loads((GOLDEN / "pipelines.json").read_text())["fill-mask"][name]
    model, kind, options = cases.FILLERS[name]
    folder = with_kind(GOLDEN / model, tmp_path / "m", kind, **options)
    texts = list(cases.MASKED)
    with serving(settings_for(f"filler={folder}")) as (client, _):
        assert "fill_mask" in client.get("/models/filler").json["methods"]
        for parameters, expected in zip(cases.FILL_OPTIONS, golden, strict=True):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "targets: .* is not in the vocabulary")
                answer = client.post("/fill-mask", {"inputs": texts, "parameters": parameters})
            assert answer.status == 200, answer.body
            check_words(answer.json, expected)
        one = client.post("/fill-mask", {"inputs": texts[0]})
        check_words(one.json, golden[0][0])
        assert one.headers["x-compute-tokens"] != "0"


def test_masks_that_are_not_filled(minilm: Path, tmp_path: Path) -> None:
    folder = with_kind(GOLDEN / "bert-predictions", tmp_path / "m", "words")
    few = ModelSettings.read({"name": "filler", "path": str(folder), "max_predictions": 2})
    none = ModelSettings.read({"name": "embedder", "path": str(folder), "max_predictions": 0})
    with serving(settings_for(few, none)) as (client, _):
        assert client.get("/models/embedder").json["methods"] == ["embed", "embed_all"]
        for body, status, message in (
            ({"inputs": "no mask"}, 422, "has 0 .MASK., expected 1 to 2"),
            ({"inputs": "[MASK] [MASK] [MASK]"}, 422, "has 3 .MASK., expected 1 to 2"),
            ({"inputs": []}, 400, "inputs is empty"),
            ({"inputs": 3}, 422, "inputs is 3"),
            ({"inputs": "[MASK]", "parameters": {"targets": []}}, 422, "targets is"),
            ({"inputs": "[MASK]", "parameters": {"top_k": 0}}, 422, "top_k is 0"),
            ({"inputs": "[MASK]", "model": "embedder"}, 424, "not a masked language model"),
        ):
            answer = client.post("/fill-mask", body)
            assert answer.status == status
            assert re.search(message, answer.json["error"])


# --- adapters


def written(client: Client, model: str) -> str:
    answer = client.post("/v1/completions", {**ASKED, "model": model})
    assert answer.status == 200, answer.body
    assert answer.json["model"] == model
    text: str = answer.json["choices"][0]["text"]
    return text


def test_adapters_are_models(adapted: tuple[Path, Path]) -> None:
    folder, adapter = adapted
    options: dict[str, Any] = {"max_new_tokens": 8, "temperature": 0}
    with TextModel.load(folder, kv_tokens=256, threads=1, max_adapters=1) as model:
        plain = model.generate(ASKED["prompt"], **options)
        model.session.add_adapter("mine", adapter)  # type: ignore[attr-defined]
        expected = model.generate(ASKED["prompt"], adapter="mine", **options)
    assert plain != expected
    settings = settings_for(
        f"lm={folder}", kv_tokens=256, adapter=(f"mine={adapter}",), max_adapters=2, admin=True
    )
    with serving(settings) as (client, _):
        assert written(client, "lm") == plain
        assert written(client, "mine") == expected
        streamed = client.post("/v1/completions", {**ASKED, "model": "mine", "stream": True})
        assert "".join(one["choices"][0]["text"] for one in streamed.events) == expected

        listed = client.get("/v1/models").json["data"]
        assert [(one["id"], one["parent"], one["root"]) for one in listed] == [
            ("lm", None, str(folder)),
            ("mine", "lm", str(adapter)),
        ]
        assert client.get("/v1/models/mine").json["parent"] == "lm"
        assert client.get("/models/mine").json["parent"] == "lm"
        refused = client.post("/embed", {"inputs": "a", "model": "mine"})
        assert (refused.status, refused.json["error_type"]) == (424, "Backend")

        body = {"name": "other", "path": str(adapter), "parent": "lm"}
        assert client.post("/models", body).status == 201
        assert written(client, "other") == expected
        assert client.post("/models", body).status == 409
        full = client.post("/models", {**body, "name": "third"})
        assert (full.status, "max_adapters is 2" in full.json["error"]) == (424, True)
        assert client.post("/models", {**body, "name": "x", "parent": "y"}).status == 404
        missing = {**body, "name": "x", "path": str(adapter / "none")}
        assert client.post("/models", missing).status == 422
        assert client.post("/models/other/reload", None).status == 422
        assert client.ask("DELETE", "/models/mine").status == 204
        assert client.post("/v1/completions", {**ASKED, "model": "mine"}).status == 404
        assert client.post("/models/lm/reload", None).status == 200  # with the adapters it has now
        assert [one["name"] for one in client.get("/models/lm").json["adapters"]] == ["other"]
        assert (written(client, "lm"), written(client, "other")) == (plain, expected)
        assert client.ask("DELETE", "/models/lm").status == 204
        assert client.get("/models/other").status == 404
        assert client.get("/v1/models").json["data"] == []


@pytest.mark.parametrize(
    ("models", "adapters", "message"),
    [
        ("ab", ["mine=F"], "of the models a, b generate; with several, say MODEL:NAME=FOLDER"),
        ("m", ["mine=F"], "of the models none generate"),
        ("a", ["b:mine=F"], "there is no model 'b'"),
        ("a", ["mine"], "adapter is 'mine', expected NAME=FOLDER"),
        ("a", ["a=F"], "2 models and adapters are named 'a'"),
        ("ab", ["a:mine=F", "b:mine=F"], "2 models and adapters are named 'mine'"),
        ("am", ["m:mine=F"], "adapters are supported where a model generates"),
        ("a", ["mine=nowhere"], "nowhere"),
    ],
)
def test_adapters_that_are_not_to_be(
    minilm: Path, adapted: tuple[Path, Path], models: str, adapters: list[str], message: str
) -> None:
    folders = {"a": adapted[0], "b": adapted[0], "m": minilm}
    named = [f"{name}={folders[name]}" for name in models]
    chosen = tuple(one.replace("=F", f"={adapted[1]}") for one in adapters)
    with (
        pytest.raises((ValueError, OSError), match=message),
        serving(settings_for(*named, adapter=chosen)),
    ):
        pass


# --- replicas


class Replicas:
    """Records which sessions run. One of them may be held or broken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: Counter[int] = Counter()
        self.broken: set[int] = set()
        self.hold = False
        self.held: int | None = None
        self.free = threading.Event()
        run = EncoderSession.run

        def watched(session: EncoderSession, batch: Any, **options: Any) -> Any:
            if id(session) in self.broken:
                raise RuntimeError("this device is broken")
            if self.hold:
                self.hold, self.held = False, id(session)
                assert self.free.wait(SECONDS)
            self.ran[id(session)] += 1
            return run(session, batch, **options)

        monkeypatch.setattr(EncoderSession, "run", watched)


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> Replicas:
    return Replicas(monkeypatch)


@pytest.fixture
def two(minilm: Path, replicas: Replicas) -> Iterator[tuple[Client, Any]]:
    """A server of two replicas, and its model."""
    settings = settings_for(f"minilm={minilm}", device=["cpu,cpu"], admin=True)
    with serving(settings) as (client, server):
        replicas.ran.clear()
        yield client, server.service.registry.first()


@pytest.fixture(scope="module")
def expected(minilm: Path) -> dict[str, Any]:
    with TextModel.load(minilm, threads=1) as model:
        return {text: model.embed(text) for text in TEXTS}


def check(client: Client, expected: dict[str, Any], texts: list[str]) -> None:
    answer = client.post("/embed", {"inputs": texts})
    assert answer.status == 200, answer.body
    for row, text in zip(answer.json, texts, strict=True):
        np.testing.assert_array_equal(np.array(row, np.float32), expected[text])


def test_replicas_share_one_queue(
    two: tuple[Client, Any], replicas: Replicas, expected: dict[str, Any]
) -> None:
    """While one runs, the other takes what comes; what waits goes to whoever is free."""
    client, model = two
    assert client.get("/models/minilm").json["devices"] == ["cpu", "cpu"]
    assert len({id(one.session) for one in model.replicas}) == 2
    replicas.hold = True
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(check, client, expected, TEXTS[:1])
        wait_until(lambda: replicas.held is not None)
        others = [threads.submit(check, client, expected, TEXTS[i : i + 5]) for i in range(7)]
        for one in others:
            one.result(SECONDS)
        assert not first.done()
        assert replicas.held not in replicas.ran
        replicas.hold, replicas.held = True, None  # and now the other one
        held = threads.submit(check, client, expected, TEXTS[3:9])
        wait_until(lambda: replicas.held is not None)
        replicas.free.set()
        first.result(SECONDS)
        held.result(SECONDS)
    assert set(replicas.ran) == {id(one.session) for one in model.replicas}
    assert (model.queue.tokens, model.queue.requests) == (0, 0)


def test_a_replica_that_fails_fails_no_request(
    two: tuple[Client, Any], replicas: Replicas, expected: dict[str, Any]
) -> None:
    client, model = two
    broken, other = (id(one.session) for one in model.replicas)
    replicas.broken = {broken}
    with ThreadPoolExecutor(8) as threads:
        for one in [threads.submit(check, client, expected, [text]) for text in TEXTS]:
            one.result(SECONDS)
    assert set(replicas.ran) == {other}
    replicas.broken = {broken, other}
    answer = client.post("/embed", {"inputs": "a"})
    assert (answer.status, answer.json["error_type"]) == (424, "Backend")
    assert "this device is broken" in answer.json["error"]
    replicas.broken = set()
    check(client, expected, TEXTS[:3])
    assert client.get("/health").status == 200


def test_unloading_frees_all_replicas(two: tuple[Client, Any], expected: dict[str, Any]) -> None:
    client, model = two
    check(client, expected, TEXTS[:3])
    assert client.ask("DELETE", "/models/minilm").status == 204
    for replica in model.replicas:
        with pytest.raises(RuntimeError, match="closed"):
            replica.embed("a")
    assert not any(worker.is_alive() for worker in model._workers)


def test_a_replica_that_cannot_be_loaded_frees_the_others(
    minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[TextModel] = []
    load = TextModel.load

    def second_fails(*arguments: Any, **options: Any) -> TextModel:
        if loaded:
            raise MemoryError("no memory for a second one")
        loaded.append(load(*arguments, **options))
        return loaded[0]

    monkeypatch.setattr(TextModel, "load", second_fails)
    with (
        pytest.raises(MemoryError, match="second one"),
        serving(settings_for(f"minilm={minilm}", device=["cpu", "cpu"])),
    ):
        pass
    with pytest.raises(RuntimeError, match="closed"):
        loaded[0].embed("a")
