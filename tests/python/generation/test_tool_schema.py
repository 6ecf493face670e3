"""Functions as tools: the schemas of transformers, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from checkpoints import GOLDEN
from packhorse.text.generation.tool_schema import tool_schemas
from tool_cases import TOOLS, weather

EXPECTED = json.loads((GOLDEN / "tool_schemas.json").read_text())["schemas"]


@pytest.mark.parametrize("name", TOOLS)
def test_schemas_of_transformers(name: str) -> None:
    (found,) = tool_schemas([TOOLS[name]])
    assert json.dumps(found) == json.dumps(EXPECTED[name])  # in the same order, too


def test_schemas_are_taken_as_they_are() -> None:
    tool = {"type": "function", "function": {"name": "f", "more": [1]}}
    assert tool_schemas([tool, weather, {"name": "g"}])[::2] == [tool, {"name": "g"}]


class Counter:
    """Counts.

    Args:
        to: Up to what
    """

    def __call__(self, to: int) -> int:
        return to


def test_an_object_that_is_called() -> None:
    (found,) = tool_schemas([Counter()])
    assert found["function"]["name"] == "Counter"
    assert found["function"]["parameters"]["properties"]["to"]["description"] == "Up to what"


def silent(city: str) -> None: ...


def untyped(city) -> None:  # type: ignore[no-untyped-def]
    """Tells.

    Args:
        city: The city
    """


def unsaid(city: str, day: str) -> None:
    """Tells.

    Args:
        city: The city
    """


def strange(city: Counter) -> None:
    """Tells.

    Args:
        city: The city
    """


def bad_choices(city: str) -> None:
    """Tells.

    Args:
        city: The city (choices: Paris)
    """


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([silent], r"tools\[0\], the function silent, has no docstring"),
        ([weather, untyped], r"tools\[1\], the function untyped, has no type hint for .*'city'"),
        ([unsaid], r"tools\[0\], the function unsaid, has no description of .* 'day'"),
        ([strange], r"tools\[0\], the function strange, has the type hint .*Counter.* 'city'"),
        ([bad_choices], r"tools\[0\], the function bad_choices, has choices 'Paris' for .*'city'"),
        ([Counter], r"tools\[0\] is <class .*Counter'>, expected a function or a JSON schema"),
        (["weather"], r"tools\[0\] is 'weather', expected a function"),
        ([None], r"tools\[0\] is None"),
        (weather, "tools is <function weather .*, expected a list of functions"),
        ({"name": "f"}, "tools is .*, expected a list of functions"),
        ("weather", "tools is 'weather', expected a list"),
    ],
)
def test_what_is_no_tool(tools: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tool_schemas(tools)
