"""Patterns of modules: the same as Python's matcher finds, in a time that cannot explode."""

from __future__ import annotations

import random
import re
import time

import pytest
from packhorse_weights.adapters.module_patterns import ModulePattern

NAMES = (
    *("model.layers.0.self_attn.q_proj", "q_proj", "x.q_proj", "layers.12.mlp.down_proj", "a\n"),
    *("", "model.layers.31.mlp.experts.3.w1", "é.ü_1", "q_proj.lora", "model.layers.3.mlp.up_proj"),
)
PATTERNS = (
    *(
        "q_proj",
        ".*q_proj",
        r"layers\.(\d+)\.mlp\.down_proj",
        "(q|k)_proj",
        "[^.]*_proj",
        "q_proj$",
    ),
    *(r"model\.layers\.[0-3]\.self_attn\.(q|k|v)_proj", r".*\.(?:mlp|attn)\..*", "^q_proj", "a$"),
    *(
        r"(self_attn\.)?q_proj",
        r"\w+",
        "[qk]_?proj",
        "x*",
        "(a|b)*",
        ".{3,6}_proj",
        r"\D+",
        "(a*)*",
    ),
    *(
        "q_proj|k_proj",
        r"(?:layers\.\d{1,2}\.)+mlp.*?proj",
        r"\S*\.w\d",
        r"[\w.]+",
        r"a\Z",
        "",
        "(|a)",
    ),
    *("(?P<name>q)_proj", r"model\.layers\.(?:[0-9]|[12][0-9]|3[01])\.mlp\.(up|down)_proj"),
)


def expected(pattern: str, name: str) -> bool:
    """The match that PEFT finds."""
    return re.match(rf"(.*\.)?({pattern})$", name) is not None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_matches_as_python_does(pattern: str) -> None:
    ours = ModulePattern(pattern)
    for name in NAMES:
        assert ours.matches(name) == expected(pattern, name), name


def random_pattern(source: random.Random, depth: int) -> str:
    kind = source.random()
    if depth == 0 or kind < 0.4:
        return source.choice(["a", "b", ".", r"\.", "[ab]", "[^a]", r"\d", r"\w"])
    first = random_pattern(source, depth - 1)
    if kind < 0.55:
        return first + random_pattern(source, depth - 1)
    if kind < 0.7:
        return f"({first}|{random_pattern(source, depth - 1)})"
    if kind < 0.9:
        return f"({first})" + source.choice(["*", "+", "?", "{2}", "{1,2}", "*?"])
    return source.choice(["^", "$", ""]) + first


def test_random_patterns_match_as_python_does() -> None:
    source = random.Random(3)
    for _ in range(400):
        pattern = random_pattern(source, 4)
        ours = ModulePattern(pattern)
        for _ in range(4):
            name = "".join(source.choice("ab.1") for _ in range(source.randint(0, 8)))
            assert ours.matches(name) == expected(pattern, name), (pattern, name)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(.*a){20}b", "(a|b|c)" * 50 + "d"])
def test_no_pattern_takes_long(pattern: str) -> None:
    begin = time.thread_time()
    assert not ModulePattern(pattern).matches("model." + "a" * 300)
    assert time.thread_time() - begin < 1


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("[", "unterminated character set"),
        ("q_pro(?=j)", "assert is not supported"),
        (r"(q)\1", "groupref is not supported"),
        (r"\bq", "at is not supported"),
        ("a{100000}", "more than 1000 states"),
        ("((a{30}){30}){30}", "more than 1000 states"),
        ("a" * 2000, "at most 1000 are taken"),
        ("(" * 300 + "a" + ")" * 300 + "(?i:b)", "not supported"),
    ],
)
def test_what_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModulePattern(pattern)
