"""Base class of the comparisons."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from packhorse.evaluation.items import Entry
from packhorse.evaluation.measures import Measure, Spread
from packhorse.text import TextModel

Report = Callable[[int, int | None], object]


class Task(ABC):
    """A method of `TextModel` whose results are compared."""

    name: ClassVar[str]
    default_count: ClassVar[int] = 2000
    load: ClassVar[Mapping[str, Any]] = {"kv_tokens": 0}  # arguments of `TextModel.load`
    least: ClassVar[int] = 1  # items

    @abstractmethod
    def items(self, entries: Sequence[Entry]) -> Sequence[Any]:
        """Arguments of the model's method, one for each entry. Raises ValueError naming
        texts[i]."""

    @abstractmethod
    def run(self, model: TextModel, items: Sequence[Any], report: Report) -> Any:
        """Results of the items."""

    @abstractmethod
    def compare(self, found: Any, expected: Any) -> tuple[list[Measure], Spread]:
        """Results of a dtype and of float32, of the same items."""
