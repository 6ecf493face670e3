"""Comparison of a model in bfloat16, float16 or int8 with float32, on text: needs the extra
`text`."""

from packhorse.evaluation.compare import evaluate
from packhorse.evaluation.figure import draw
from packhorse.evaluation.measures import Comparison, Evaluation, Measure, Spread
from packhorse.evaluation.passages import Passage, read_passages

__all__ = [
    "Comparison",
    "Evaluation",
    "Measure",
    "Passage",
    "Spread",
    "draw",
    "evaluate",
    "read_passages",
]
