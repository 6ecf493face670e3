"""Chat templates that would run for ever or fill the memory end with an error, soon."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("jinja2")

from packhorse.text.generation import template_sandbox
from packhorse.text.generation.chat_template import ChatTemplates
from packhorse.text.giving_up import GaveUpError, giving_up

USER = {"role": "user", "content": "hello"}


def growing(first: str, step: str, end: str = "{{ n.x }}") -> str:
    return (
        f"{{% set n = namespace(x={first}) %}}{{% for i in range(60) %}}{step}{{% endfor %}}{end}"
    )


def nested(end: str) -> str:
    """A namespace of namespaces, each of which holds the one before twice."""
    step = "{% set m = namespace() %}{% set m.a = n.x %}{% set m.b = n.x %}{% set n.x = m %}"
    return growing("1", step, end)


HOSTILE = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "steps": "{% for a in range(999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n-1) ~ f(n-1) }}{% endif %}{% endmacro %}{{ f(99) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "times": "{{ 'x' * 10**9 }}",
    "list times": "{{ [0] * 10**9 }}",
    "power": "{{ 10 ** 99999 }}",
    "center": "{{ 'x'|center(10**9) }}",
    "ljust": "{{ 'x'.ljust(10**9) }}",
    "expandtabs": "{{ ('\t' * 9999).expandtabs(99999) }}",
    "to_bytes": "{{ (0).to_bytes(10**9, 'big') }}",
    "from_bytes": "{{ (0).from_bytes(('x' * 9999).encode(), 'big') }}",
    "format width": "{{ '%1000000000d' % 3 }}",
    "format argument": "{{ '%*d' % (10**9, 3) }}",
    "str.format width": "{{ '{:1000000000}'.format(3) }}",
    "str.format argument": "{{ '{:{w}}'.format(3, w=10**9) }}",
    "format many": "{{ ('{0}' * 99999).format('x' * 99999) }}",
    "replace": "{{ ('a' * 99999)|replace('a', 'b' * 9999) }}",
    "str.replace": "{{ ('a' * 99999).replace('a', 'b' * 9999) }}",
    "join": "{{ range(99999)|join('x' * 9999) }}",
    "str.join": "{{ ('x' * 9999).join(range(99999)|map('string')) }}",
    "indent": "{{ ('x\n' * 99999)|indent(99999) }}",
    "tojson": "{{ messages|tojson(indent=10**9) }}",
    "batch": "{{ [1]|batch(10**9, 0)|list }}",
    "slice": "{{ [1]|slice(10**9)|list }}",
    "round": "{{ 1.5|round(10**9, 'ceil') }}",
    "int": "{{ ('9' * 99999)|int }}",
    "lipsum": "{{ lipsum(n=10**9) }}",
    "plus": growing("'xx'", "{% set n.x = n.x + n.x %}"),
    "joined": growing("'xx'", "{% set n.x = n.x ~ n.x %}"),
    "lists": growing("1", "{% set n.x = [n.x, n.x] %}"),
    "tuples": growing("1", "{% set n.x = (n.x, n.x) %}", "{{ n.x == n.x }}"),
    "mappings": growing("1", "{% set n.x = {'a': n.x, 'b': n.x} %}"),
    "dict": growing("1", "{% set n.x = dict(a=n.x, b=n.x) %}"),
    "fromkeys": growing("1", "{% set n.x = {}.fromkeys('ab', n.x) %}"),
    "namespaces": nested("{{ n.x }}"),
    "namespaces as text": nested("{{ n.x|string }}"),
    "namespaces joined": nested("{{ '' ~ n.x }}"),
    "namespaces formatted": nested("{{ '%s' % n.x }}"),
    "output": "{% for i in range(99999) %}" + "y" * 9999 + "{% endfor %}",
    "block": "{% set x %}{% for i in range(9999) %}"
    + "y" * 9999
    + "{% endfor %}{% endset %}{{ x }}",
    "source": "{{ 1 }}" * 99999,
    "deep": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "message": "{{ raise_exception('x' * 999999) }}",
}


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Low limits, so that each is reached at once."""
    monkeypatch.setattr(template_sandbox, "MOST_SECONDS", 0.2)
    monkeypatch.setattr(template_sandbox, "MOST_STEPS", 20_000)
    monkeypatch.setattr(template_sandbox, "_LOOK", 8)
    monkeypatch.setattr(template_sandbox, "MOST_ITEMS", 20_000)
    monkeypatch.setattr(template_sandbox, "MOST_CHARACTERS", 1_000_000)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_would_not_end_is_refused(name: str) -> None:
    begin = time.thread_time()
    with pytest.raises(ValueError, match="chat template: ") as raised:
        ChatTemplates({"default": HOSTILE[name]}, {}).render([USER])
    assert time.thread_time() - begin < 2
    assert len(str(raised.value)) < 1100


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ 'ab' * 3 }}{{ [1] * 2 }}{{ 2 ** 10 }}{{ 7 % 4 }}", "ababab[1, 1]10243"),
        ("{{ '%s is %5.1f' % ('x', 2) }}", "x is   2.0"),
        ("{{ '{} {:>4}'.format(1, 'a') }}", "1    a"),
        ("{{ 'a-b'.replace('-', '+') }}{{ ['a', 1]|join(', ') }}", "a+ba, 1"),
        ("{{ 'a\nb'|indent(2) }}", "a\n  b"),
        ("{{ {'a': [1, (2,)]}|tojson(indent=1) }}", '{\n "a": [\n  1,\n  [\n   2\n  ]\n ]\n}'),
        ("{% for a, b in [(1, 2), (3, 4)] %}{{ a ~ b ~ none }}{% endfor %}", "12None34None"),
        ("{{ [1, 2, 3]|batch(2)|list }}", "[[1, 2], [3]]"),
        ("{{ 2.345|round(1) }}{{ '12'|int + 1 }}", "2.313"),
        ("{% set n = namespace(a=[]) %}{% set n.a = n.a + [1] %}{{ n.a }}", "[1]"),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('a') + f('b') }}", "<a><b>"),
        ("{{ undefined_name }}{{ none }}{{ true }}", "NoneTrue"),
    ],
)
def test_ordinary_steps_are_as_ever(template: str, expected: str) -> None:
    assert ChatTemplates({"default": template}, {}).render([USER]) == expected


def test_long_conversations_are_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    template = "{% for m in messages %}{{ m.role + ': ' + m.content|trim + '\n' }}{% endfor %}"
    messages = [{"role": "user", "content": "hello " * 50}] * 5000
    made = ChatTemplates({"default": template}, {}).render(messages)
    assert made == f"user: {('hello ' * 50).strip()}\n" * 5000


def test_templates_of_calls_are_not_kept() -> None:
    templates = ChatTemplates({"default": "own"}, {})
    for i in range(20):
        assert templates.render([USER], chat_template=f"{{{{ {i} }}}}") == str(i)
    assert templates.render([USER]) == "own"
    assert list(templates._compiled) == ["own"]


def test_rendering_ends_when_nobody_waits() -> None:
    steps: list[Any] = []

    def gone() -> bool:
        steps.append(None)
        return len(steps) > 2

    templates = ChatTemplates({"default": HOSTILE["steps"]}, {})
    with giving_up(gone), pytest.raises(GaveUpError):
        templates.render([USER])
