"""`packhorse serve`: the page at /, as a server sends it, and the routes that it alone needs.
What it does in a browser: test_serve_browser.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import packhorse.serve
import pytest
from checkpoints import GOLDEN
from packhorse import TextModel
from serve_room import PACKAGES, Client, make_models, serving, settings_for
from tiny_tokenizer import with_tokenizer

for package in PACKAGES:
    pytest.importorskip(package)

FOLDER = Path(packhorse.serve.__file__).parent / "page"
KINDS = {
    "index.html": "text/html; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
TEXT = "the cat sat on the mat in paris, where mark was"
CONTEXT = "the cat sat on the mat in paris. " * 20
QUESTION = "where was the cat"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    reader = with_tokenizer(GOLDEN / "bert-answers", root / "reader")
    return {"tagger": make_models(root)["tagger"], "reader": reader}


@pytest.fixture(scope="module")
def client(folders: dict[str, Path]) -> Iterator[Client]:
    named = [f"{name}={path}" for name, path in folders.items()]
    with serving(settings_for(*named, api_key=("secret",))) as (found, _):
        yield found


KEY = {"authorization": "Bearer secret"}


# --- the files


def test_all_files_are_served_without_a_key(client: Client) -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(KINDS)
    for name, kind in KINDS.items():
        answer = client.get("/" if name == "index.html" else f"/page/{name}")
        assert answer.status == 200
        assert answer.body == (FOLDER / name).read_bytes()
        assert answer.headers["content-type"] == kind
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
    assert client.get("/page/../app.py").status == 404
    assert client.ask("HEAD", "/").body == b""
    assert client.get("/models").status == 401


def test_the_policy_lets_nothing_in_but_the_servers_own(client: Client) -> None:
    policy = client.get("/").headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.pop("default-src") == "'none'"
    for name in ("script-src", "style-src", "img-src", "connect-src"):
        assert rules.pop(name) == "'self'"
    for name in ("base-uri", "form-action", "frame-ancestors", "trusted-types"):
        assert rules.pop(name) == "'none'"
    assert rules == {"require-trusted-types-for": "'script'"}


class Parts(HTMLParser):
    """Collects what a page loads, and what in it a policy would keep from working."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag != "a":
            self.loads += [given[name] or "" for name in ("src", "href") if name in given]
        self.inline += [name for name in given if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)


def test_the_page_asks_nobody_else() -> None:
    for name in KINDS:
        text = (FOLDER / name).read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert re.search(r"https?:|\"//|'//|url\(|@import", text) is None, name
    parts = Parts()
    parts.feed((FOLDER / "index.html").read_text("utf-8"))
    # Relative, so that the page also works below a path of a proxy.
    assert sorted(parts.loads) == ["page/icon.svg", "page/page.css", "page/page.js"]
    assert parts.inline == []


def test_it_can_be_left_out(folders: dict[str, Path]) -> None:
    with serving(settings_for(f"tagger={folders['tagger']}", page=False)) as (client, _):
        assert client.get("/").body == b""
        assert client.get("/page/page.js").status == 404


# --- entities and answers, for which other protocols have no routes


def test_token_classification(client: Client, folders: dict[str, Path]) -> None:
    with TextModel.load(folders["tagger"], threads=1) as tagger:
        for strategy in ("none", "simple", "first", "average", "max"):
            expected = tagger.classify_tokens([TEXT, "a dog"], aggregation_strategy=strategy)
            body = {"inputs": [TEXT, "a dog"], "parameters": {"aggregation_strategy": strategy}}
            assert client.post("/token-classification", body, headers=KEY).json == expected
        expected = tagger.classify_tokens(
            TEXT, aggregation_strategy="simple", ignore_labels=("B-PER", "O"), stride=2
        )
        parameters = {"ignore_labels": ["B-PER", "O"], "stride": 2}
        body = {"inputs": TEXT, "parameters": parameters, "model": "tagger"}
        assert client.post("/token-classification", body, headers=KEY).json == expected


def test_question_answering(client: Client, folders: dict[str, Path]) -> None:
    inputs = {"question": QUESTION, "context": CONTEXT}
    with TextModel.load(folders["reader"], threads=1) as reader:
        answer = client.post("/question-answering", {"inputs": inputs}, headers=KEY)
        assert answer.json == reader.answer(QUESTION, CONTEXT)
        parameters = {
            "top_k": 3,
            "doc_stride": 4,
            "max_seq_len": 30,
            "max_answer_len": 5,
            "handle_impossible_answer": True,
            "align_to_words": False,
        }
        expected = reader.answer(
            QUESTION,
            CONTEXT,
            top_k=3,
            stride=4,
            max_length=30,
            max_answer_length=5,
            allow_none=True,
            align_to_words=False,
        )
    body = {"inputs": inputs, "parameters": parameters, "model": "reader"}
    assert client.post("/question-answering", body, headers=KEY).json == expected


def test_texts_in_windows_are_prepared_together(folders: dict[str, Path]) -> None:
    """Requests of one task share a call, although their texts are not a sequence each."""
    from packhorse.serve.models.tokenizing import TokenizingTask, _prepare
    from packhorse.text.tasks.answers import Answering
    from packhorse.text.tasks.spans import AnswerOptions

    class Untimed:
        tokenize_s = 0.0
        given_up = False

    with TextModel.load(folders["reader"], threads=1) as reader:
        options = AnswerOptions(1, 15, False, True)
        task = Answering(reader._runner, max_length=30, stride=4, options=options)
        works = [Untimed(), Untimed()]
        contexts = [CONTEXT, TEXT]
        jobs = [
            TokenizingTask(work, task, [(QUESTION, context)], print)  # type: ignore[arg-type]
            for work, context in zip(works, contexts, strict=True)
        ]
        for (_, prepared), context in zip(_prepare(jobs), contexts, strict=True):
            assert not isinstance(prepared, Exception)
            alone, kept = task.prepare([(QUESTION, context)], 0)
            assert len(prepared[0].ids) == len(alone.ids) == len(kept[0])
            np.testing.assert_array_equal(
                np.concatenate(prepared[0].ids), np.concatenate(alone.ids)
            )


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("token-classification", {"inputs": 3}, 422, "inputs is 3"),
        ("token-classification", {"inputs": []}, 400, "inputs is empty"),
        (
            "token-classification",
            {"inputs": "a", "parameters": {"aggregation_strategy": "best"}},
            422,
            'expected "none" or "simple"',
        ),
        (
            "token-classification",
            {"inputs": "a", "parameters": {"ignore_labels": "O"}},
            422,
            "parameters.ignore_labels",
        ),
        (
            "token-classification",
            {"inputs": "a", "parameters": {"stride": 3, "aggregation_strategy": "none"}},
            422,
            "stride joins entities",
        ),
        ("token-classification", {"inputs": "a", "model": "reader"}, 424, "classifier of tokens"),
        ("question-answering", {"inputs": "a"}, 422, "expected an object"),
        ("question-answering", {"inputs": {"question": "a"}}, 422, "inputs.context is missing"),
        (
            "question-answering",
            {"inputs": {"question": "", "context": "a"}},
            400,
            "inputs.question is empty",
        ),
        (
            "question-answering",
            {"inputs": {"question": "a", "context": "b"}, "parameters": {"max_question_len": 3}},
            422,
            "max_question_len is not supported",
        ),
        (
            "question-answering",
            {"inputs": {"question": "a " * 99, "context": "b " * 99}},
            422,
            "no room",
        ),
    ],
)
def test_errors(client: Client, path: str, body: object, status: int, said: str) -> None:
    answer = client.post(f"/{path}", body, headers=KEY)
    assert answer.status == status, answer.body
    assert said in answer.json["error"]
