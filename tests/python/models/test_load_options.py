"""Load options: everything that is made from the fields of `LoadOptions` agrees with them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import packhorse
import pytest
from checkpoints import BERT, GOLDEN
from command_line import Cli, failed
from packhorse import Session, TextModel, plan_memory
from packhorse.load_options import (
    GENERATION,
    MACHINE,
    LoadCall,
    LoadOptions,
    ServedCall,
    SessionCall,
    TextCall,
    TextLoadOptions,
)
from packhorse.option_fields import choices_of, hints_of, kind_of, said, takes_several

NAMED = {"device", "dtype"}  # parameters that signatures name themselves
LLAMA = GOLDEN / "generation" / "llama"


@pytest.mark.parametrize(
    ("call", "options", "apart"),
    [
        (SessionCall, LoadOptions, NAMED | {"kv_tokens"}),
        (LoadCall, LoadOptions, NAMED),
        (TextCall, TextLoadOptions, NAMED),
        (ServedCall, TextLoadOptions, {"device"}),
    ],
)
def test_types_for_checkers_agree(call: type, options: type, apart: set[str]) -> None:
    expected = {name: hint for name, hint in hints_of(options).items() if name not in apart}
    assert get_type_hints(call) == expected


@pytest.mark.parametrize(
    ("function", "options"),
    [(Session.load, LoadOptions), (plan_memory, LoadOptions), (TextModel.load, TextLoadOptions)],
)
def test_signatures(function: Callable[..., Any], options: type[LoadOptions]) -> None:
    parameters = inspect.signature(function).parameters
    for one in fields(options):
        assert parameters[one.name].default == one.default
        assert parameters[one.name].kind == (
            inspect.Parameter.POSITIONAL_OR_KEYWORD
            if one.name in NAMED
            else inspect.Parameter.KEYWORD_ONLY
        )
    own = {"path", "model", "progress"}
    assert parameters.keys() - own == {one.name for one in fields(options)}
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_token'$"):
        function(BERT, max_token=8)


def test_docstrings_say_every_option() -> None:
    for one in fields(TextLoadOptions):
        function = Session.load if one.name in hints_of(LoadOptions) else TextModel.load
        text = " ".join((function.__doc__ or "").split())
        assert f"{one.name} {' '.join(said(one).doc.split())}" in text
    assert "{options}" not in f"{Session.load.__doc__}{TextModel.load.__doc__}"


def test_the_page_has_the_table() -> None:
    tool = Path(__file__).parents[3] / "tools" / "load_options.py"
    subprocess.run([sys.executable, tool], check=True)


def test_how_people_write_them() -> None:
    hints = hints_of(TextLoadOptions)
    kinds = {name: kind_of(hint) for name, hint in hints.items()}
    assert {name for name, kind in kinds.items() if kind is bool} == {
        *("pin_threads", "normalize", "prefix_cache", "generation_config")
    }
    assert {name for name, hint in hints.items() if takes_several(hint)} == {"pooling"}
    assert (kinds["kv_tokens"], kinds["memory_limit"], kinds["reranker"]) == (int, str, str)
    assert choices_of(hints["kv_cache_dtype"]) == ("float8",)
    assert "auto" in choices_of(hints["dtype"])
    assert choices_of(hints["pooling"]) == choices_of(hints["draft"]) == ()


def test_options_of_a_session() -> None:
    asked = LoadOptions()
    encodes = asked.of_session("float32", generates=False)
    assert (encodes.max_tokens, encodes.max_sequences, encodes.kv_tokens) == (8192, 256, 0)
    generates = replace(asked, max_tokens=16).of_session("float32", generates=True)
    assert (generates.max_tokens, generates.max_sequences) == (16, 16)
    assert asked.again() == {}
    again = replace(asked, threads=2, memory_limit="1kB", draft="ngram").again()
    assert again == {"threads": 2, "memory_limit": 1000, "draft": "ngram"}


@pytest.mark.parametrize(
    ("name", "value"), [("max_adapters", 1), ("draft", "ngram"), ("kv_cache_dtype", "float8")]
)
def test_what_only_sessions_that_generate_have_use_for(name: str, value: Any) -> None:
    options = {name: value}
    message = f"{name} is {value!r}, but this session gives hidden states and embeddings: "
    with pytest.raises(ValueError, match=message):
        Session.load(BERT, **options)
    assert plan_memory(LLAMA, **options).total_bytes > 0


def test_groups_are_options_of_commands(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that has a group has all its options; `inspect` those that a plan has use for."""
    monkeypatch.setenv("COLUMNS", "300")
    shown = {name: cli(name, "--help").out for name in ("generate", "inspect", "score", "serve")}
    for one in fields(TextLoadOptions):
        flag = f"--{(said(one).setting or one.name).replace('_', '-')}"
        assert flag in shown["serve"] or not said(one).help
        flag = f"--{one.name.replace('_', '-')}"
        if said(one).group in (MACHINE, GENERATION):
            assert flag in shown["generate"]
            assert (flag in shown["inspect"]) == (one.name in hints_of(LoadOptions))
        if said(one).group == MACHINE:
            assert flag in shown["score"]


def test_inspect_plans_what_is_asked_for(cli: Cli) -> None:
    plain, drafted = (cli("inspect", LLAMA, *more).out for more in ((), ("--draft", LLAMA)))
    assert plain != drafted
    assert failed(cli("inspect", BERT, "--draft", "ngram"), "drafts are of models that generate")
    plan = packhorse.plan_memory(LLAMA, draft=LLAMA)
    assert f"{plan.total_bytes / 2**20:.1f} MiB" in drafted


def test_shorter_sequences(cli: Cli, minilm: Path) -> None:
    """A session of a lower limit computes the same, plans less, and refuses what is longer."""
    row = [5, 6, 7, 8]
    with Session.load(BERT, threads=1) as all_of_it:
        expected = all_of_it.run([row]).hidden
    with Session.load(BERT, threads=1, max_seqlen=4) as session:
        assert session.max_seqlen == 4
        assert session.run([row]).hidden.tobytes() == expected.tobytes()
        with pytest.raises(ValueError, match="5"):
            session.run([[*row, 9]])
    with packhorse.GenerationSession.load(LLAMA, threads=1, max_seqlen=16) as generator:
        assert generator.max_context == 16
        assert generator.memory_plan == plan_memory(LLAMA, threads=1, max_seqlen=16)
        assert generator.memory_plan.total_bytes < plan_memory(LLAMA, threads=1).total_bytes
        assert len(generator.generate([[1] * 10])[0].ids) <= 6
    with TextModel.load(minilm, threads=1, max_seqlen=8) as model:
        assert model.max_length == 8
        model.embed("the cat sat on the mat " * 9)
        assert model.num_truncated == 1
    assert "8 tokens" in cli("inspect", minilm, "--max-seqlen", 8).out
    with pytest.raises(ValueError, match="max_seqlen is 121, expected 1 to the .*, 120"):
        Session.load(BERT, max_seqlen=121)
    with pytest.raises(ValueError, match="max_seqlen is 0, expected 1"):
        plan_memory(LLAMA, max_seqlen=0)
