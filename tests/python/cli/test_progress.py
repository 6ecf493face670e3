"""Progress on a terminal: of calls that take long, and of loading."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from checkpoints import GOLDEN
from fake_engine import text_model_of_chance
from packhorse import Session, TextModel, progress_bar
from packhorse._native import session as _session
from tiny_tokenizer import with_tokenizer

pytest.importorskip("tokenizers")
TEXTS = ["the cat", "a dog", "paris", "mark"]
Call = Callable[..., Any]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def any_time_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "_LONG_S", 1e-9)
    monkeypatch.setattr(progress_bar, "_EVERY_S", 0.0)


def shown(stderr: io.StringIO, call: Call, **given: Any) -> str:
    """The text that a call writes to such a stderr."""
    with redirect_stderr(stderr):
        call(**given)
    return stderr.getvalue()


def loaded(golden: str, folder: Path) -> TextModel:
    path = with_tokenizer(GOLDEN / golden, folder / golden)
    return TextModel.load(path, threads=1, max_sequences=2, progress=False)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Call]]:
    """Calls of four texts each, two of them in a batch."""
    root = tmp_path_factory.mktemp("models")
    with (
        loaded("bert-gelu", root) as encoder,
        loaded("bert-reranker", root) as reranker,
        loaded("bert-sequence", root) as classifier,
        loaded("bert-tokens", root) as tagger,
        text_model_of_chance() as writer,
    ):
        chats = [[{"role": "user", "content": text}] for text in TEXTS]
        yield {
            "embed": lambda **given: encoder.embed(iter(TEXTS), **given),
            "score": lambda **given: reranker.score("a", TEXTS, **given),
            "classify": lambda **given: classifier.classify(TEXTS, **given),
            "classify_tokens": lambda **given: tagger.classify_tokens(TEXTS, **given),
            "generate": lambda **given: writer.generate(TEXTS, max_new_tokens=3, **given),
            "chat": lambda **given: writer.chat(chats, max_new_tokens=3, **given),
        }


NAMES = ("embed", "score", "classify", "classify_tokens", "generate", "chat")


@pytest.mark.parametrize("name", NAMES)
def test_a_terminal_shows_how_far_a_call_has_come(calls: dict[str, Call], name: str) -> None:
    said = shown(Terminal(), calls[name])
    of_all = "" if name == "embed" else " of 4"  # a generator does not know
    assert said.startswith("\r")
    assert f"\r4{of_all} texts (" in said
    assert said.endswith(" \n")
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", NAMES)
def test_it_is_off_by_argument_and_elsewhere(calls: dict[str, Call], name: str) -> None:
    counts: list[tuple[int, int | None]] = []
    assert shown(Terminal(), calls[name], progress=False) == ""
    assert shown(Terminal(), calls[name], progress=lambda *done: counts.append(done)) == ""
    assert counts[-1][0] == 4
    assert shown(io.StringIO(), calls[name]) == ""
    assert "\r4" in shown(io.StringIO(), calls[name], progress=True)
    with pytest.raises(ValueError, match="progress is 3, expected a function"):
        calls[name](progress=3)


def test_short_calls_show_nothing(calls: dict[str, Call], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "_LONG_S", 60)
    for call in calls.values():
        assert shown(Terminal(), call) == ""


def test_a_line_that_an_error_ends(tmp_path: Path) -> None:
    """The next line begins at the left."""

    def broken() -> Iterator[str]:
        yield from TEXTS
        raise ZeroDivisionError

    stderr = Terminal()
    with loaded("bert-gelu", tmp_path) as encoder, pytest.raises(ZeroDivisionError):
        shown(stderr, encoder.embed, texts=broken())
    assert stderr.getvalue().endswith(" \n")


def test_loading_counts_its_seconds(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = _session.NativeSession.load
    stderr = Terminal()

    class Slow:
        """Waits until a line has come, where one comes."""

        @staticmethod
        def load(*given: Any) -> Any:
            end = time.monotonic() + 0.5
            while "loading" not in stderr.getvalue() and time.monotonic() < end:
                time.sleep(0.001)
            return load(*given)

    monkeypatch.setattr(progress_bar, "_EVERY_S", 0.05)
    monkeypatch.setattr(_session, "NativeSession", Slow)
    for kind in (Session, TextModel):
        stderr = Terminal()
        said = shown(stderr, kind.load, path=minilm, threads=1)
        assert said.startswith(f"\rloading {minilm}: 0 s ")
        assert said.endswith(" \n")
        assert said.count("\n") == 1
    stderr = Terminal()
    monkeypatch.setattr(_session, "load_progress", lambda: (1_000_000, 4_000_000))
    said = shown(stderr, TextModel.load, path=minilm, threads=1)
    assert said.startswith(f"\rloading {minilm}: [######..................]  25 % of 4 MB, 0 s ")
    stderr = Terminal()
    assert shown(stderr, TextModel.load, path=minilm, threads=1, progress=False) == ""
    with pytest.raises(ValueError, match="progress is 1, expected True or False"):
        Session.load(minilm, progress=1)  # type: ignore[arg-type]
