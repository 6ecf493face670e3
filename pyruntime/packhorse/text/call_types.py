"""Arguments that methods of `TextModel` share, for the overloads that tell type checkers what comes
back. The methods themselves name them one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import numpy.typing as npt

    from packhorse.names import ScoreActivation, Truncation
    from packhorse.progress_bar import Progress


class Call(TypedDict, total=False):
    max_length: int | None
    progress: Progress | None


class TextCall(Call, total=False):
    truncation: bool


class PairCall(Call, total=False):
    truncation: bool | Truncation


class PromptCall(TextCall, total=False):
    prompt: str | None
    prompt_name: str | None


class EmbedCall(PromptCall, total=False):
    truncate_dim: int | None
    normalize: bool | None
    ranges: npt.ArrayLike | None
    show_progress_bar: bool | None


class ScoreCall(PairCall, total=False):
    instruction: str | None
    activation: ScoreActivation | None


class ClassifyCall(PairCall, total=False):
    activation: ScoreActivation | None


class EntityCall(TextCall, total=False):
    ignore_labels: Collection[str]
    stride: int | None


class AnswerCall(TypedDict, total=False):
    max_length: int | None
    stride: int | None
    max_answer_length: int
    allow_none: bool
    align_to_words: bool


class MaskCall(TypedDict, total=False):
    top_k: int
    targets: str | Iterable[str] | None
    max_length: int | None
    truncation: bool
