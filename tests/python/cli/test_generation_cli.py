"""`packhorse generate` and `packhorse chat`, with an engine whose tokens are known."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import GOLDEN
from command_line import Cli, failed
from fake_engine import byte_level, fake_session, text_model_of_chance
from packhorse import TextModel
from packhorse.text import TextTokenizer
from packhorse_weights.generation_files import GenerationFiles
from tiny_tokenizer import with_kind

EOS = 3
STORY = " on the mat."
TEMPLATE = "{% for m in messages %}{{ m.role }}, {{ m.content }}. {% endfor %}"
SPEED = re.compile(r"\[\d+ prompt tokens, \d+ new; first text after [\d.]+ s.*; (stop|length)\]")

Said = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Said:
    """Prompts that the model was given, with the settings of their requests. `TextModel.load` gives
    a model that says a story to each."""
    tokenizer = TextTokenizer.load(with_kind(GOLDEN / "qwen3", tmp_path / "model", "bytes"))
    tokens = tokenizer.plain_ids(STORY).tolist()
    session = fake_session(lambda *_: [*tokens, EOS], 104, eos_ids=[EOS], max_context=120)
    files = GenerationFiles((EOS,), {}, {"default": TEMPLATE}, {})
    model = TextModel(session, tokenizer, files=files)
    engine: Any = session._engine
    submit: Callable[..., Any] = engine.submit
    prompts: Said = []

    def record(ids: Any, sampling: Any, timeout_s: float, source: Any = None) -> Any:
        prompts.append((tokenizer.decode(ids.tolist(), skip_special=True), vars(sampling)))
        return submit(ids, sampling, timeout_s)

    monkeypatch.setattr(engine, "submit", record)
    monkeypatch.setattr(TextModel, "load", lambda *_, **options: model)
    return prompts


def test_generate_goes_on_with_a_prompt(cli: Cli, said: Said) -> None:
    outcome = cli("generate", "model", "the cat", "--temperature", 0.5, "--seed", 3)
    assert (outcome.status, outcome.out) == (0, f"the cat{STORY}\n")
    assert SPEED.fullmatch(outcome.err.strip())
    assert (said[0][1]["temperature"], said[0][1]["seed"]) == (0.5, 3)


def test_generate_keeps_from_words_and_repetitions(cli: Cli, said: Said) -> None:
    options = ("--bad-word", "dog", "--no-repeat-ngram-size", 3, "--min-new-tokens", 2)
    assert cli("generate", "model", "the cat", *options, "--no-generation-config").status == 0
    settings = said[0][1]
    assert (settings["no_repeat_ngram_size"], settings["min_new_tokens"]) == (3, 2)
    assert settings["bad_words_ids"]


def test_generate_reads_stdin_whole(cli: Cli, said: Said) -> None:
    assert cli("generate", "model", "-", "--stop", "mat", stdin=b"a dog\nat a").status == 0
    assert said[0][0].startswith("a dog")


def test_generate_answers_a_message(cli: Cli, said: Said) -> None:
    outcome = cli("generate", "model", "who", "--chat", "--max-new-tokens", 2)
    assert outcome.out.strip() == "on the"
    assert "length" in outcome.err
    assert said[0][0].startswith("user")


def test_generate_by_a_grammar(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    model = text_model_of_chance(byte_level())
    monkeypatch.setattr(TextModel, "load", lambda *_, **options: model)
    grammar = tmp_path / "answer.gbnf"
    grammar.write_text('root ::= "the mat" | "a dog"')
    outcome = cli("generate", "model", "who", "--grammar", grammar)
    assert outcome.out in ("whothe mat\n", "whoa dog\n")
    assert failed(cli("generate", "model", "who", "--grammar", tmp_path / "no"), "No such file")


@pytest.mark.parametrize("chat", [(), ("--chat",)])
def test_generate_for_each_line(
    cli: Cli, said: Said, tmp_path: Path, chat: tuple[str, ...]
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("the cat\na dog\n")
    outcome = cli("generate", "model", "--file", lines, "--text", *chat)
    found = [json.loads(line) for line in outcome.out.splitlines()]
    assert found == [
        {"index": i, "prompt": prompt, "text": STORY, "finish_reason": "stop"}
        for i, prompt in enumerate(["the cat", "a dog"])
    ]
    assert "new tokens in" in outcome.err
    assert [prompt.startswith("user") for prompt, _ in said] == [bool(chat)] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either a PROMPT or --file FILE"),
        (("a", "--file", "b"), "give either a PROMPT or --file FILE"),
        (("a", "--text"), "--text repeats the lines"),
        (("a", "--top-p", "0.5"), "top_p is 0.5, but the most probable token"),
        (("the " * 200,), "the prompt has"),
    ],
)
def test_generate_refuses(cli: Cli, said: Said, arguments: tuple[str, ...], message: str) -> None:
    outcome = cli("generate", "model", *arguments)
    assert outcome.status == 1
    assert message in outcome.err


def test_a_model_of_embeddings(cli: Cli, minilm: Path) -> None:
    assert failed(cli("generate", minilm, "a"), "not loaded for generation")
    assert failed(cli("chat", minilm), "not loaded for generation")
    assert failed(cli("generate", minilm, "a", "--kv-tokens", 64), "kv_tokens is 64")


def test_chat_keeps_what_was_said(cli: Cli, said: Said) -> None:
    script = b"who\nwhat\n\n/reset\nwhen\n/nothing\n/exit\nnever\n"
    outcome = cli("chat", "model", "--system", "a", stdin=script)
    assert outcome.status == 0
    assert outcome.out == f"{STORY}\n" * 3
    prompts = [re.sub(r"[^a-z]+", " ", prompt).strip() for prompt, _ in said]
    assert prompts == [
        "system a user who",
        "system a user who assistant on the mat user what",
        "system a user when",
    ]
    assert "64 tokens of cache" in outcome.err
    assert "[forgotten]" in outcome.err
    assert "/nothing is not known" in outcome.err


def test_chat_goes_on_after_a_message_that_is_too_long(cli: Cli, said: Said) -> None:
    script = b"who\n" + b"the " * 200 + b"\nwhat\n"
    outcome = cli("chat", "model", stdin=script)
    assert outcome.status == 0
    assert outcome.out == f"{STORY}\n" * 2
    assert "packhorse: messages: the prompt has" in outcome.err


def test_ctrl_c_ends_an_answer_alone(cli: Cli, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    from packhorse.text import TextStreaming

    advance, calls = TextStreaming.__next__, []

    def interrupted(stream: TextStreaming) -> str:
        calls.append(stream)
        if len(calls) == 1:
            stream.close()
            raise KeyboardInterrupt
        return advance(stream)

    monkeypatch.setattr(TextStreaming, "__next__", interrupted)
    outcome = cli("chat", "model", stdin=b"who\nwhat\n")
    assert outcome.status == 0
    assert "[ended]" in outcome.err
    assert outcome.out.strip() == STORY.strip()
    assert "who" not in said[1][0]
