"""Arguments with which models are loaded and planned: wrong kinds are said, usual ways of writing
taken."""

from __future__ import annotations

from typing import Any

import packhorse
import pytest
from checkpoints import BERT, GOLDEN
from command_line import Cli, failed
from packhorse import plan_memory
from packhorse.dtypes import choose_dtype
from packhorse.load_arguments import cores, parse_bytes

LLAMA = GOLDEN / "generation" / "llama"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (None, None),
        (0, 0),
        (512, 512),
        ("512", 512),
        ("1GB", 10**9),
        ("1.5 GB", 1_500_000_000),
        ("2g", 2 * 10**9),
        ("512MiB", 512 << 20),
        ("1Gi", 1 << 30),
        ("3 kb", 3000),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(written: Any, expected: int | None) -> None:
    assert parse_bytes("memory_limit", written) == expected


@pytest.mark.parametrize(
    "wrong", [-1, 1.5, True, "", "GB", "1XB", "-1GB", "1iB", "1 GB free", b"1"]
)
def test_what_is_no_size(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"memory_limit is .*, expected bytes .*'1GB' or '512MiB'"):
        parse_bytes("memory_limit", wrong)


def test_a_limit_as_text() -> None:
    for path in (BERT, LLAMA):
        given: dict[str, Any] = {"threads": 1, "max_tokens": 64, "max_sequences": 8}
        expected = plan_memory(path, memory_limit=8_000_000, **given)
        assert plan_memory(path, memory_limit="8MB", **given) == expected
        with pytest.raises(MemoryError, match="memory_limit is 1000"):
            packhorse.Session.load(path, memory_limit="1kB", **given)


def test_a_limit_that_quantised_weights_exceed() -> None:
    path = GOLDEN / "gguf" / "llama.gguf"
    with pytest.raises(MemoryError, match="bytes as stored, memory_limit is 1000"):
        packhorse.Session.load(path, memory_limit=1000, threads=1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"threads": 0}, f"threads is 0, expected 1 to {16 * cores()}, or None"),
        ({"threads": 99999}, "threads is 99999, expected 1 to"),
        ({"threads": "2"}, "threads is '2', expected 1 to"),
        ({"threads": True}, "threads is True, expected 1 to"),
        ({"max_tokens": "5"}, "max_tokens is '5', expected a whole number"),
        ({"max_sequences": 1.5}, "max_sequences is 1.5, expected a whole number"),
        ({"kv_tokens": "64"}, "kv_tokens is '64', expected a whole number"),
        ({"max_adapters": "a"}, "max_adapters is 'a', expected a whole number"),
        ({"pin_threads": 3}, "pin_threads is 3, expected True or False"),
        ({"memory_limit": "much"}, "memory_limit is 'much', expected bytes"),
    ],
)
def test_wrong_kinds(wrong: dict[str, Any], message: str) -> None:
    for load in (packhorse.Session.load, packhorse.TextModel.load, plan_memory):
        for path in (BERT, LLAMA):
            with pytest.raises(ValueError, match=message):
                load(path, **wrong)


@pytest.mark.parametrize(
    ("name", "means"),
    [("fp32", "float32"), ("float", "float32"), ("torch.float32", "float32"), ("auto", None)],
)
def test_names_of_dtypes(name: Any, means: Any) -> None:
    with packhorse.Session.load(BERT, dtype=name) as session:
        assert session.dtype == (means or "float32")
    assert plan_memory(BERT, dtype=name) == plan_memory(BERT, dtype=means)
    for other, ours in (("fp16", "float16"), ("half", "float16"), ("bf16", "bfloat16")):
        assert choose_dtype(other, "cpu", "float32") == ours
    with pytest.raises(ValueError, match="unknown dtype 'fp15'"):
        packhorse.Session.load(BERT, dtype="fp15")


def test_the_command_line(cli: Cli) -> None:
    shown = cli("inspect", LLAMA, "--memory-limit", "8MB", "--dtype", "fp32")
    assert shown.status == 0
    assert "in float32" in shown.out
    assert failed(cli("inspect", LLAMA, "--memory-limit", "lots"), "'1GB' or '512MiB'")
    assert "by default; --kv-tokens N" in cli("inspect", LLAMA).out
    assert "by default; --kv-tokens" not in cli("inspect", LLAMA, "--kv-tokens", 64).out


def test_the_cache_is_named_where_it_cannot_be_allocated() -> None:
    with pytest.raises(MemoryError, match=r"for a cache of \d+ tokens: lower kv_tokens"):
        packhorse.Session.load(LLAMA, kv_tokens=2**40, threads=1)
