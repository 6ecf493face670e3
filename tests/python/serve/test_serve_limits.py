"""`packhorse serve`: what one request may ask for, keep and make others wait for."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest
from hostile_requests import make_hostile_models
from packhorse.serve.errors import ServeError
from packhorse.serve.http.body import LongBody
from packhorse.serve.http.json_parts import json_parts, to_json
from packhorse.serve.models.weight import MUCH
from serve_room import PACKAGES, Client, serving, settings_for

for package in PACKAGES:
    pytest.importorskip(package)

NAMES = ("bge-m3", "tagger", "filler", "answerer", "lm")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Any]]:
    folders = make_hostile_models(tmp_path_factory.mktemp("models"))
    models = [f"{name}={folders[name]}" for name in NAMES]
    given = {"kv_tokens": 4096, "max_client_sequences": 8, "max_client_batch_size": 64}
    with serving(settings_for(*models, **given)) as found:
        yield found


@pytest.fixture(scope="module")
def client(served: tuple[Client, Any]) -> Client:
    return served[0]


HUB = {"inputs": "the cat"}
GENERATE = {"prompt": "a", "max_tokens": 1}
LONG = "the cat " * 5000
REFUSED: dict[str, tuple[str, Any, str]] = {
    "stop strings": ("/v1/completions", {**GENERATE, "stop": ["x"] * 17}, "stop has 17 items"),
    "a stop string": ("/v1/completions", {**GENERATE, "stop": "x" * 1025}, "1025 characters"),
    "bias": (
        "/v1/completions",
        {**GENERATE, "logit_bias": {str(i): 1 for i in range(5000)}},
        "logit_bias has 5000 items, at most 4096",
    ),
    "sequences": (
        "/v1/completions",
        {"prompt": ["a", "b", "c"], "n": 3, "max_tokens": 1},
        "3 prompts times n = 3 are 9 texts, at most 8",
    ),
    "answers": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}], "n": 9, "max_tokens": 1},
        "1 prompts times n = 9",
    ),
    "a prompt": ("/v1/completions", {**GENERATE, "prompt": LONG * 5}, "tokens or more, expected"),
    "labels": (
        "/token-classification",
        {**HUB, "parameters": {"ignore_labels": ["x"] * 100}},
        "ignore_labels has 100 items, at most 18",
    ),
    "long labels": (
        "/token-classification",
        {**HUB, "parameters": {"ignore_labels": ["x" * 20_000]}},
        "20000 characters",
    ),
    "windows": (
        "/token-classification",
        {"inputs": LONG, "parameters": {"stride": 4}},
        "windows .* at most 64 are taken",
    ),
    "windows of a context": (
        "/question-answering",
        {"inputs": {"question": "who", "context": LONG}},
        "windows .* at most 64 are taken",
    ),
    "a question": (
        "/question-answering",
        {"inputs": {"question": LONG, "context": "a"}},
        "inputs.question has 40000 items",
    ),
    "targets": (
        "/fill-mask",
        {"inputs": "a [MASK]", "parameters": {"targets": ["x"] * 300}},
        "targets has 300 items, at most 64",
    ),
    "words for masks": (
        "/fill-mask",
        {"inputs": ["[MASK] " * 10] * 3, "parameters": {"top_k": 1000}},
        "30 masks with top_k 1000 are 30000 words",
    ),
    "texts": ("/embed", {"inputs": ["a"] * 65}, "inputs has 65 items, at most 64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_too_much_is_refused_by_name(client: Client, name: str) -> None:
    path, body, message = REFUSED[name]
    answer = client.post(path, body)
    assert answer.status in (400, 413, 422)
    error = answer.json["error"]
    assert_matches(error["message"] if isinstance(error, dict) else error, message)


def assert_matches(found: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        raise ValueError(found)


def test_tasks_are_kept_by_their_size(served: tuple[Client, Any]) -> None:
    client, server = served
    tagger = server.service.registry.named("tagger")
    labels = [f"{number} {'x' * 900}" for number in range(16)]
    body = {**HUB, "parameters": {"ignore_labels": labels}}
    assert client.post("/token-classification", body).status == 200
    assert not any("x" * 900 in str(key) for key in tagger._tasks)
    for label in ("O", "B-PER", "O"):
        body = {**HUB, "parameters": {"ignore_labels": [label]}}
        assert client.post("/token-classification", body).status == 200
    kept = [key for key in tagger._tasks if "B-PER" in str(key)]
    assert len(kept) == 1


def test_a_guess_of_tokens_learns_from_those_that_were_counted(served: tuple[Client, Any]) -> None:
    """Each request moves characters a token by 2 % of the way to its own; short ones do not."""
    client, server = served
    model = server.service.registry.named("bge-m3")
    before = model._characters_per_token
    own = 0.0
    for _ in range(5):
        answer = client.post("/v1/embeddings", {"model": "bge-m3", "input": "mat " * 30}).json
        own = 120 / answer["usage"]["prompt_tokens"]
        assert client.post("/v1/embeddings", {"model": "bge-m3", "input": "x"}).status == 200
    expected = own + (before - own) * 0.98**5
    assert own != pytest.approx(before, rel=0.05)
    assert model._characters_per_token == pytest.approx(expected)
    assert model.estimate(["x" * 90, ("x" * 50, "x" * 40)]) == (2 * (2 + int(90 / expected)), 180)


def test_unknown_targets_leave_no_warnings(client: Client) -> None:
    body = {"inputs": "a [MASK]", "parameters": {"targets": ["zebra", "quagga"]}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = client.post("/fill-mask", body)
    assert (answer.status, len(answer.json)) == (200, 2)


def test_a_chat_without_a_limit_has_one(served: tuple[Client, Any]) -> None:
    client, _ = served
    body = {"messages": [{"role": "user", "content": "a"}], "ignore_eos": True}
    with_default = settings_for(default_new_tokens=7)
    client_settings = served[1].service.settings
    served[1].service.settings = with_default
    try:
        answer = client.post("/v1/chat/completions", body).json
    finally:
        served[1].service.settings = client_settings
    assert answer["usage"]["completion_tokens"] == 7


def test_long_answers_are_those_of_short_ones(client: Client) -> None:
    """Written and sent in parts, on other threads."""
    texts = ["the cat sat on the mat " * 6] * 30
    body = {"model": "bge-m3", "truncate": True}
    whole = client.post("/embed_all", {**body, "inputs": texts})
    assert len(whole.body) > 200_000  # more than is written at once
    assert int(whole.headers["content-length"]) == len(whole.body)
    (alone,) = client.post("/embed_all", {**body, "inputs": texts[:1]}).json
    assert whole.json == [alone] * 30


def test_tokens_are_those_of_the_package(served: tuple[Client, Any]) -> None:
    client, server = served
    backend = server.service.registry.named("bge-m3").text.tokenizer.backend
    for text in ("the Cat [SEP] sat!", "", "mat " * 2000):
        for special in (True, False):
            body = {"model": "bge-m3", "inputs": text, "add_special_tokens": special}
            (found,) = client.post("/tokenize", body).json
            encoding = backend.encode(text, add_special_tokens=special)
            assert [one["id"] for one in found] == encoding.ids
            for one, (begin, end), own in zip(
                found, encoding.offsets, encoding.special_tokens_mask, strict=True
            ):
                assert one["special"] == bool(own)
                assert own or (one["start"], one["stop"]) == (begin, end)
                assert own or one["text"] == text[begin:end]


@pytest.mark.parametrize(
    "content",
    [
        [1, 2.5, None, "a"],
        {"a": [{"b": i, "c": "x" * (i % 99)} for i in range(3000)], "d": {}, "e": []},
        [[[i] * 50 for i in range(100)] for _ in range(9)],
        {"data": [{"embedding": np.arange(4000, dtype=np.float32)} for _ in range(9)]},
        np.arange(90_000, dtype=np.float32).reshape(300, 300),
        np.arange(MUCH * 3, dtype=np.int64),
        ["x" * 200_000, "y" * 300_000, 1],
    ],
    ids=range(7),
)
def test_parts_of_json_are_its_whole(content: Any) -> None:
    parts = list(json_parts(content))
    assert b"".join(parts) == to_json(content)


@pytest.mark.parametrize(
    "text",
    [
        "a, b, c [d] {e}",
        'say \\"a, b\\", [x]',
        "back \\\\",
        '\\\\\\"[,[,',
        "[,\\n" * 50_000,
    ],
)
def test_values_within_texts_are_not_counted(text: str) -> None:
    body = b'{"inputs": ["' + text.encode() + b'", "b"]}'
    assert LongBody(body, 9).read() == json.loads(body)
    with pytest.raises(ServeError, match="the body has 9 values"):
        LongBody(body, 8).read()


_LONG = "data:image/png;base64," + "iVBORw0KGgo/" * 3000


@pytest.mark.parametrize(
    "content",
    [
        {"input": [{"image": _LONG}, "a", _LONG[:-1], ""], "model": "m"},
        [_LONG, [_LONG, {_LONG: {"a": _LONG}}], 3, None],
        _LONG,
        {"a": _LONG + '"', "b": _LONG, "c": "\\" + _LONG, "d": "\\" * 20_001, "e": "\\"},
        {"a": _LONG + "\n", "b": _LONG + "\x7f", "c": "é" + _LONG, "d": _LONG},
        {"many": ["[,"] * 30_000, "a": _LONG},
    ],
)
def test_long_texts_are_read_as_they_are(content: Any) -> None:
    for ascii_alone in (False, True):
        body = json.dumps(content, ensure_ascii=ascii_alone).encode()
        assert LongBody(body, 1_000_000).read() == content
        for cut in (body[:-1], body[1:], body.replace(b'"', b"", 1), body.replace(b",", b"", 1)):
            try:
                expected = orjson.loads(cut)
            except orjson.JSONDecodeError as error:
                with pytest.raises(ServeError, match=re.escape(f"is not JSON: {error}")):
                    LongBody(cut, 1_000_000).read()
            else:
                assert LongBody(cut, 1_000_000).read() == expected


@pytest.mark.parametrize(
    ("content", "quick"),
    [
        ({"image": _LONG}, True),
        ({"image": _LONG * 20}, True),
        ({"image": _LONG * 40}, False),
        ({"image": _LONG, "more": [1] * 50_000}, False),
        ({"more": [1] * 50_000}, False),
    ],
)
def test_bodies_that_need_no_thread(content: Any, quick: bool) -> None:
    """At most 1 MB, little of it beside long texts."""
    assert LongBody(json.dumps(content).encode(), 1_000_000).is_quick is quick


def test_values_beside_long_texts_are_counted() -> None:
    body = json.dumps({"image": _LONG, "more": list(range(20))}).encode()
    LongBody(body, 28).read()
    with pytest.raises(ServeError, match="the body has 28 values"):
        LongBody(body, 27).read()


@pytest.mark.parametrize("one", ["[]", "{}", "1", '""', '"\\\\"', "[[[[]]]]"])
def test_a_body_of_many_values_is_refused(one: str) -> None:
    body = ("[" + ",".join([one] * 5000) + "]").encode()
    with pytest.raises(ServeError, match="at most 4000 are taken"):
        LongBody(body, 4000).read()
