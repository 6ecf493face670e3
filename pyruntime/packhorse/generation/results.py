"""Results of generation: tokens, texts, reasons for the end, usage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

FinishReason = Literal["", "stop", "length", "cancelled", "deadline", "error", "tool_calls"]
TokenLogprobs = list[tuple[int, float]]  # (token id, its log-probability), most probable first


@dataclass(frozen=True)
class Usage:
    """Tokens that a request took.

    prompt_tokens         of its prompt
    cached_prompt_tokens  of them, those whose keys and values came from the prefix cache
    new_tokens            that were computed, of all sequences of the request
    drafted_tokens        that were computed ahead (`Session.load`, `draft`)
    accepted_tokens       of them, those that were what came next
    """

    prompt_tokens: int
    cached_prompt_tokens: int
    new_tokens: int
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class TokenText(NamedTuple):
    """The part of a text that a token adds.

    text  of the characters that are whole with this token; a token that is a part of a character
          that others complete has ""
    data  its bytes: those of all tokens, joined, are the text in UTF-8
    """

    text: str
    data: bytes


@dataclass(frozen=True)
class PromptLogprobs:
    """Log-probabilities of a prompt of P tokens, by the model itself.

    logprobs  [P - 1] of the tokens 1 to P - 1, each after those before it
    top       [P - 1] lists of the `prompt_logprobs` most probable tokens at their places
    """

    logprobs: list[float]
    top: list[TokenLogprobs]


@dataclass(frozen=True)
class GeneratedTokens:
    """One sequence that was generated.

    ids              its tokens, the one that ended it included
    finish_reason    "stop" (a token or text that ends it, or a mask that allowed no more),
                     "length" (max_new_tokens, the model's context or the whole cache),
                     "cancelled", "deadline"; "" while it runs
    logprobs         of the tokens `ids`, where they were asked for
    top_logprobs     for each token, the `logprobs` most probable ones at its place
    score            of a hypothesis of beam search; else 0
    prompt_logprobs  where they were asked for
    usage            of the whole request
    alignment        where it was asked for, weights of cross attention of a prompt of P tokens over
                     S tokens of the source, float32 [alignment_heads, P, S]
    """

    ids: list[int]
    finish_reason: FinishReason
    logprobs: list[float] | None
    top_logprobs: list[TokenLogprobs] | None
    score: float
    prompt_logprobs: PromptLogprobs | None
    usage: Usage
    alignment: npt.NDArray[np.float32] | None = field(
        default=None, kw_only=True, compare=False, repr=False
    )


@dataclass(frozen=True)
class Generation(GeneratedTokens):
    """One text that was generated: `text`, without what ended it, and its tokens.

    token_texts  where `logprobs` is not None, what each of `ids` adds to the text: joined, they are
                 it. While it runs, those of the first tokens, as far as they are certain
    top_texts    the texts of `top_logprobs`, each in its place
    tool_calls   of a conversation with tools, the calls in the text, as messages have them, with
                 arguments as dicts; finish_reason is "tool_calls" where there are any
    content      then, the text outside of calls
    attention    where it was asked for (`TextModel.translate`), the weights by which each of `ids`
                 attends to each of `source_ids`, float32 [len(ids), len(source_ids)]: the mean of
                 all heads of a layer
    source_ids   then, the tokens that the encoder has read
    """

    text: str
    token_texts: list[TokenText] | None = None
    top_texts: list[list[TokenText]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    content: str | None = None
    attention: npt.NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    source_ids: list[int] | None = None
