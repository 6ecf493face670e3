"""A request that was submitted, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from packhorse.generation.results import (
    FinishReason,
    GeneratedTokens,
    PromptLogprobs,
    TokenLogprobs,
    Usage,
)
from packhorse.generation.sampling import Sampling

if TYPE_CHECKING:
    from packhorse._native.generation import NativeMailbox, NativeRequest


class GenerationRequest:
    """Made by `GenerationSession.submit`. Its methods may be called from any thread, also when the
    session was closed: the request then has ended. `sequence` counts from 0 to `sampling.n` - 1."""

    def __init__(self, native: NativeRequest, prompt_tokens: int, sampling: Sampling) -> None:
        self._native = native
        self._prompt_tokens = prompt_tokens
        self.sampling = sampling

    def tokens(self, sequence: int = 0) -> Iterator[int]:
        """The new tokens of a sequence, one by one as they come, each given once: what another
        iterator of the same sequence has given does not come again. With beam search all come at
        the end.

        An iterator that is closed before the end, as at a `break` out of a loop over it, cancels
        the request. Raises RuntimeError where the request failed. Ctrl-C ends the waiting.
        """
        ended = False
        try:
            while batch := self._native.next(self._number(sequence)):
                yield from batch
            ended = True
        finally:
            if not ended:
                self.cancel()
        self._check(sequence)

    def poll(self, sequence: int = 0) -> list[int]:
        """The new tokens of a sequence that are there now, each given once; does not wait."""
        return self._native.next(self._number(sequence), 0.0)

    def listen(self, mailbox: NativeMailbox | None, number: int = 0) -> None:
        """News of the request are posted to the mailbox under this number; None: no longer."""
        if mailbox is None:
            self._native.stop_listening()
        else:
            self._native.listen(mailbox, number)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the end of all sequences, up to `timeout_s` seconds. True if they have ended.
        Ctrl-C ends the waiting."""
        return self._native.wait(timeout_s)

    def cancel(self) -> None:
        """Ends the request soon, with the tokens that it has. Does not wait for that."""
        self._native.cancel()

    def finish_reason(self, sequence: int = 0) -> FinishReason:
        """Reason for which a sequence has ended; "" while it has not."""
        return self._native.finish_reason(self._number(sequence))

    def result(self, sequence: int = 0) -> GeneratedTokens:
        """Waits for the end of the request and gives one of its sequences.

        Raises RuntimeError where the request failed.
        """
        self._wait_to_end()
        self._check(sequence)
        return self.so_far(sequence)

    def results(self) -> list[GeneratedTokens]:
        """Waits for the end of the request and gives all its sequences. Raises as `result`."""
        self._wait_to_end()
        return [self.result(sequence) for sequence in range(self.sampling.n)]

    def so_far(self, sequence: int = 0) -> GeneratedTokens:
        """Tokens of a sequence up to this moment."""
        number = self._number(sequence)
        ids, logprobs, top, score, reason, _error = self._native.result(number)
        wanted = self.sampling.logprobs
        return GeneratedTokens(
            ids=ids,
            finish_reason=reason,
            logprobs=None if wanted is None else logprobs,
            top_logprobs=_rows(top, wanted, len(ids)),
            score=score,
            prompt_logprobs=self._prompt_logprobs(),
            usage=Usage(*self._native.usage()),
            alignment=self._alignment(),
        )

    def _wait_to_end(self) -> None:
        try:
            self.wait()
        except BaseException:  # Ctrl-C: nobody waits for the result any more
            self.cancel()
            raise

    def _prompt_logprobs(self) -> PromptLogprobs | None:
        wanted = self.sampling.prompt_logprobs
        if wanted is None:
            return None
        logprobs, top = self._native.prompt_logprobs()
        return PromptLogprobs(logprobs, _rows(top, wanted, len(logprobs)) or [])

    def _alignment(self) -> npt.NDArray[np.float32] | None:
        heads = len(self.sampling.alignment_heads)
        if heads == 0:
            return None
        weights, source = self._native.alignment()
        return weights.reshape(heads, -1, max(1, source))

    def _number(self, sequence: int) -> int:
        if not isinstance(sequence, int) or not 0 <= sequence < self.sampling.n:
            raise ValueError(
                f"sequence is {sequence!r:.80}, expected 0 to {self.sampling.n - 1}: the request "
                f"has n={self.sampling.n}"
            )
        return sequence

    def _check(self, sequence: int) -> None:
        if self.finish_reason(sequence) == "error":
            raise RuntimeError(self._native.result(sequence)[-1])

    def __repr__(self) -> str:
        reasons = [self.finish_reason(i) or "running" for i in range(self.sampling.n)]
        return f"GenerationRequest({self._prompt_tokens} prompt tokens, {', '.join(reasons)})"


def _rows(top: TokenLogprobs, columns: int | None, rows: int) -> list[TokenLogprobs] | None:
    if columns is None:
        return None
    return [top[row * columns : (row + 1) * columns] for row in range(rows)]
