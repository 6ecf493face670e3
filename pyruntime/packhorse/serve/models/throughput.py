"""Throughput of a model, by its latest batches."""

from __future__ import annotations

from collections.abc import Sequence

# A batch may hold a `_SHARE`th of what waits, and take up to `_MOST_TIMES` times as long.
_SHARE, _MOST_TIMES = 4, 4
_SLOWER = 0.5  # the least throughput that is expected, in parts of the latest mean
_MEMORY_S = 2.0  # seconds of running whose batches count


class ThroughputEstimator:
    """Tokens per second, and what follows from it: how long what waits will take, and how many
    tokens a batch may have to end in time.

    batch_s     how long a batch shall take at most
    max_tokens  tokens of the largest batch
    replicas    how many batches run at a time

    A batch of few tokens takes longer for each of them. It says nothing about how long many will
    take, and so counts only where it was faster than what is known.
    """

    def __init__(self, batch_s: float, max_tokens: int, replicas: int = 1) -> None:
        self._batch_s = batch_s
        self._max_tokens = max_tokens
        self._replicas = replicas
        self._tokens = 0.0
        self._seconds = 0.0
        self._latest = 0.0  # tokens per second of the last batch that counts

    def note(self, tokens: int, seconds: float) -> None:
        """A batch of so many tokens took so long."""
        seconds = max(seconds, 1e-9)
        if self._is_small(tokens) and tokens < seconds * self.tokens_per_second:
            return
        self._latest = tokens / seconds
        keep = max(0.0, 1.0 - seconds / _MEMORY_S) if self._seconds > _MEMORY_S else 1.0
        self._tokens = self._tokens * keep + tokens
        self._seconds = self._seconds * keep + seconds

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of one replica; 0 as long as nothing has run."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def _is_small(self, tokens: int) -> bool:
        """True if a batch says little about how long larger ones take."""
        return 2 * tokens < self.batch_tokens

    def wait_s(self, waiting: int, running: Sequence[tuple[int, float]] = ()) -> float:
        """Seconds until a request that comes now has its turn; 0 as long as nothing is known.

        waiting  tokens that are before it and do not run yet
        running  of each batch that runs: its tokens, and for how many seconds it has run

        Where a batch is slower than those of late, the last one or one that runs now, its pace
        counts, down to half of theirs: what is promised when a machine becomes slow shall be kept,
        too, and one batch that stood still for a moment shall not have all others refused.
        """
        mean = self.tokens_per_second
        if not mean:
            return 0.0
        rate = min(mean, self._latest)
        for tokens, seconds in running:
            if not self._is_small(tokens) and tokens < seconds * rate:
                rate = tokens / seconds
        rate = max(rate, _SLOWER * mean)
        left = sum(max(0.0, tokens / rate - seconds) for tokens, seconds in running)
        return (left + waiting / rate) / self._replicas

    @property
    def batch_tokens(self) -> int:
        """Tokens of the largest batch that takes at most `batch_s`."""
        rate = self.tokens_per_second
        return (
            max(1, min(self._max_tokens, int(rate * self._batch_s))) if rate else self._max_tokens
        )

    def batch_tokens_of(self, waiting: int) -> int:
        """Tokens of the largest batch where `waiting` tokens wait. Long batches take less time for
        each token: where the wait is longer anyway, a batch takes up to a quarter of it, and up to
        four times as long."""
        most = min(waiting // _SHARE, _MOST_TIMES * self.batch_tokens)
        return min(self._max_tokens, max(self.batch_tokens, most))
