"""`packhorse evaluate`: how far dtypes are from float32, on lines of a file or text that ships."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packhorse.cli.evaluation_view import show
from packhorse.cli.lines import open_lines
from packhorse.cli.progress import count_progress
from packhorse.evaluation import Comparison, Evaluation, draw, evaluate
from packhorse.evaluation.measures import GRADES
from packhorse.evaluation.task import Task

EXIT_BELOW = 3  # all was measured, and a mark was missed
_JSON_LINES = (".jsonl", ".ndjson")
_MOST = Task.default_count  # lines that are read; some tasks take fewer


def read_texts(file: Path, errors: str, count: int) -> list[Any]:
    """The first `count` lines of a file that are not empty; of JSON lines, what they hold."""
    as_json = file.suffix.lower() in _JSON_LINES
    found: list[Any] = []
    with open_lines(file, "reading", errors) as reader:
        for lines in reader:
            for text, number in zip(lines.texts, lines.numbers, strict=True):
                if text.strip():
                    found.append(_parsed(text, file, number) if as_json else text)
            if len(found) >= count:
                break
        reader.note()
    return found[:count]


def _parsed(text: str, file: Path, number: int) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{file}, line {number + 1}: not JSON: {error}") from None
    if not isinstance(value, str | dict):
        raise ValueError(f"{file}, line {number + 1}: {text:.80}, expected a text or an object")
    return value


def read_marks(given: Sequence[str]) -> dict[str, float]:
    """{name of a measure: number} of texts NAME=NUMBER. Raises ValueError."""
    marks = {}
    for text in given:
        name, _, number = text.partition("=")
        try:
            marks[name.strip()] = float(number)
        except ValueError:
            raise ValueError(
                f"--require {text!r:.80}: expected NAME=NUMBER, such as cosine_min=0.99"
            ) from None
    return marks


def _missed(comparison: Comparison, least: str | None, marks: dict[str, float]) -> list[str]:
    """Describes each requirement that a dtype does not meet."""
    found = []
    if least is not None and GRADES.index(comparison.verdict) < GRADES.index(least):
        found.append(f"is {comparison.verdict}, required {least}")
    for name, mark in marks.items():
        measure = comparison.measure(name)
        if not measure.reaches(mark):
            most = "at least" if measure.better == "higher" else "at most"
            found.append(f"{name} is {measure.value:.6g}, required {most} {mark:g}")
    return found


def run(
    model: str,
    file: Path | None,
    load: dict[str, Any],
    *,
    errors: str,
    reference: str | None,
    task: str | None,
    count: int | None,
    as_json: bool,
    svg: Path | None,
    fail_under: str | None,
    require: Sequence[str],
) -> bool:
    """Prints what `evaluate` finds; returns whether all requirements are reached.

    load: arguments of `TextModel.load`; "dtype" may be several with commas between. The other
    arguments are the options of the command. Raises ValueError, and what `evaluate` raises.
    """
    if fail_under is not None and fail_under not in GRADES:
        raise ValueError(f"--fail-under {fail_under!r:.80} is not one of {', '.join(GRADES)}")
    marks = read_marks(require)
    if svg is not None and not svg.parent.is_dir():
        raise ValueError(f"--svg {svg}: {svg.parent} is not a folder")
    given: dict[str, Any] = {}
    if file is not None:
        source = "stdin" if str(file) == "-" else str(file)
        given = {"texts": read_texts(file, errors, count or _MOST), "source": source}
    load = dict(load)
    dtypes = [name for name in load.pop("dtype", "").split(",") if name]
    with count_progress("comparing") as report:
        found: Evaluation = evaluate(
            model,
            dtypes=dtypes,
            task=task,
            reference=reference,
            count=count,
            progress=report,
            **given,
            **load,
        )
    if svg is not None:
        svg.write_text(draw(found), encoding="utf-8")
    if as_json:
        print(json.dumps(found.as_dict(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        show(found)
    reached = True
    for comparison in found.comparisons:
        for words in _missed(comparison, fail_under, marks):
            print(f"packhorse: {comparison.dtype} {words}", file=sys.stderr)
            reached = False
    return reached
