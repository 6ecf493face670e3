"""Errors of signal handlers come through while texts are tokenized or prompts written."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from checkpoints import GOLDEN
from packhorse.text import TextTokenizer
from packhorse.text.foreign_errors import raised_in
from packhorse.text.generation.chat_template import ChatTemplates
from tiny_tokenizer import with_tokenizer


class HandlersError(Exception):
    """An error of a program's own."""


class Interrupted(KeyboardInterrupt):
    """An exception that some programs raise for Ctrl-C."""


ERRORS = [HandlersError, Interrupted, TimeoutError, ValueError, TypeError, Exception]


@pytest.fixture(params=ERRORS)
def raises(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The class that a handler of SIGALRM raises, and a call that lets the signal come."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        raise request.param("from the handler")

    before = signal.signal(signal.SIGALRM, handle)
    yield request.param
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("models") / "m"
    return TextTokenizer.load(with_tokenizer(GOLDEN / "bert-tokens", folder))


def struck(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call during which the signal comes."""

    def strike(*arguments: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGALRM)
        return call(*arguments, **options)

    return strike


class Struck:
    """A tokenizer of the package during whose work the signal comes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._tokenizer, name)
        return struck(found) if name.startswith("encode_batch") else found


@pytest.mark.parametrize("call", ["encode", "read"])
def test_while_texts_are_tokenized(
    raises: type[BaseException],
    tokenizer: TextTokenizer,
    call: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizer, "_tokenizer", Struck(tokenizer.backend))
    with pytest.raises(raises, match="^from the handler$") as raised:
        tokenizer.encode(["the cat"], 8) if call == "encode" else tokenizer.read(["the cat"])
    assert raised.type is raises


def test_while_a_prompt_is_written(raises: type[BaseException]) -> None:
    class Message(dict[str, Any]):
        def items(self) -> Any:
            signal.raise_signal(signal.SIGALRM)
            return super().items()

    templates = ChatTemplates({"default": "{% for a in x.items() %}{{ a }}{% endfor %}"}, {})
    user = {"role": "user", "content": "a"}
    with pytest.raises(raises, match="^from the handler$") as raised:
        templates.render([user], template_args={"x": Message()})
    assert raised.type is raises


def test_the_tokenizers_own_errors_name_the_text(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"texts\[1\] has a lone surrogate"):
        tokenizer.encode(["the cat", "\ud83d"], 8)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="tokenizer.json"):
        TextTokenizer.load(tmp_path)


def test_errors_without_a_frame_are_of_no_package() -> None:
    assert not raised_in(ValueError("never raised"))
    assert not raised_in(TimeoutError())
