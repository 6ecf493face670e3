"""Functions that are tools, for which transformers makes the schemas of
tests/golden/tool_schemas.json."""

# ruff: noqa: UP007, UP045 (all ways to write a hint)

from enum import Enum
from typing import Any, Literal, Optional, Union


class Season(Enum):
    WET = "wet"
    DRY = "dry"
    FIRST = 1


def weather(city: str):
    """Tells the weather.

    Args:
        city: The city
    """


def add(a: int, b: float = 1.5, *, strict: bool = False) -> float:
    """Adds two numbers,
    one of them whole.

    It has a second paragraph.

    Args:
        a: The first number,
            which goes on here: with a colon
        b (float, optional): The second number

        strict:
            Whether to be strict

    Returns:
        The sum
        of both

    Raises:
        ValueError: never
    """
    return a + b


def nested(
    many: list[int],
    table: dict[str, list[float]],
    plain: list,  # type: ignore[type-arg]
    anything: Any,
    pair: tuple[int, str],
    rows: list[dict[str, Optional[int]]],
) -> list[str]:
    """Takes nested values.

    Args:
        many: Many numbers
        table: A table
        plain: A list
        anything: Whatever
        pair: A number and its name
        rows: The rows
    """
    return []


def unions(
    a: Optional[str] = None,
    b: Union[int, str] = 1,
    c: "int | float | None" = None,
    d: Union[list[int], str, None] = None,
    e: Literal["x", "y"] = "x",
    f: Optional[Literal[1, "one"]] = None,
    g: Season = Season.DRY,
) -> None:
    """Takes one of several types.

    Args:
        a: A text or nothing
        b: A number or a text
        c: A number
        d: Numbers or a text
        e: A letter
        f: One
        g: A season
    """


def choices(drink: str, size: int = 1):
    """Pours a drink

    Args:
        drink: The drink (choices: ["tea", " coffee "])
        size: How large it is (Choices: [1, 2, 3])
    Returns:
        Nothing much
    """


def nothing() -> dict[str, Any]:
    """Has no arguments."""
    return {}


class Station:
    """A weather station."""

    def measure(self, unit: Literal["C", "F"] = "C") -> float:
        """Measures the temperature.

        Args:
            unit: The unit

        Returns:
            The temperature
        """
        return 0.0

    @staticmethod
    def at(place: str) -> "Station":
        """Finds a station.

        Args:
            place: Where it is
        """
        return Station()


TOOLS: dict[str, Any] = {
    **{one.__name__: one for one in (weather, add, nested, unions, choices, nothing)},
    "measure": Station().measure,
    "at": Station.at,
}
