"""Measures of how far results are from those of float32, and what they are good for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from packhorse.evaluation.statistics import Float64s

Grade = Literal["close", "usable", "far"]
GRADES: tuple[Grade, ...] = ("far", "usable", "close")


@dataclass(frozen=True)
class Measure:
    """A number that says how far the results of a dtype are from those of float32.

    name    of scripts and of JSON, such as "cosine_min"
    title   for people
    better  whether a higher or a lower value is nearer to float32
    close   the value up to which results count as close, and `usable` as usable; None: the number
            has no part in the verdict
    """

    name: str
    title: str
    value: float
    better: Literal["higher", "lower"] = "higher"
    close: float | None = None
    usable: float | None = None

    def reaches(self, mark: float) -> bool:
        """True if the value is at least `mark`, or at most where lower is better. False for NaN."""
        return self.value >= mark if self.better == "higher" else self.value <= mark

    @property
    def grade(self) -> Grade | None:
        """Grade of the value by `close` and `usable`; None: the number has no part in the
        verdict."""
        if self.close is None or self.usable is None:
            return None
        if self.reaches(self.close):
            return "close"
        return "usable" if self.reaches(self.usable) else "far"


@dataclass(frozen=True)
class Spread:
    """Values of a histogram: one for each text, pair or token."""

    title: str
    values: Float64s


@dataclass(frozen=True)
class Comparison:
    """The results of one dtype beside those of float32."""

    dtype: str
    device: str
    measures: Sequence[Measure]
    spread: Spread

    @property
    def verdict(self) -> Grade:
        """The worst of the grades of all measures."""
        return min((one.grade for one in self.measures if one.grade), key=GRADES.index)

    @property
    def reasons(self) -> list[Measure]:
        """The measures that the verdict comes from; none for "close"."""
        verdict = self.verdict
        return [] if verdict == "close" else [one for one in self.measures if one.grade == verdict]

    def measure(self, name: str) -> Measure:
        """The measure of a name. Raises ValueError that lists the names there are."""
        found = next((one for one in self.measures if one.name == name), None)
        if found is None:
            names = ", ".join(one.name for one in self.measures)
            raise ValueError(f"{name!r:.80} is not one of {names}")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON. Numbers that are not finite become None."""
        values = {one.name: one.value for one in self.measures}
        return {
            "dtype": self.dtype,
            "device": self.device,
            "verdict": self.verdict,
            "reasons": [one.name for one in self.reasons],
            "measures": {n: v if math.isfinite(v) else None for n, v in values.items()},
        }


@dataclass(frozen=True)
class Evaluation:
    """A model in some dtypes beside the same model in float32 on the CPU.

    task       the method of `TextModel` whose results were compared
    source     where the texts are from
    count      how many texts, or pairs where the task takes pairs
    digest     of the texts: the first 16 digits of their SHA-256. The same on machines that
               compared the same texts
    """

    model: str
    reference: str
    task: str
    source: str
    count: int
    digest: str
    comparisons: Sequence[Comparison]

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON."""
        return {
            "model": self.model,
            "reference": {"model": self.reference, "dtype": "float32", "device": "cpu"},
            "task": self.task,
            "texts": {"source": self.source, "count": self.count, "sha256": self.digest},
            "comparisons": [one.as_dict() for one in self.comparisons],
        }
