"""How fast a model runs, by its batches of late."""

from __future__ import annotations

_SHARE, _MOST_TIMES = 4, 4  # of what waits that a batch may hold; of a batch, how much longer
_MEMORY_S = 2.0  # seconds of running whose batches count


class Pace:
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

    def note(self, tokens: int, seconds: float) -> None:
        """A batch of so many tokens took so long."""
        seconds = max(seconds, 1e-9)
        if 2 * tokens < self.batch_tokens and tokens < seconds * self.tokens_per_second:
            return
        keep = max(0.0, 1.0 - seconds / _MEMORY_S) if self._seconds > _MEMORY_S else 1.0
        self._tokens = self._tokens * keep + tokens
        self._seconds = self._seconds * keep + seconds

    @property
    def tokens_per_second(self) -> float:
        """Of one replica; 0 as long as nothing has run."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def seconds(self, tokens: int) -> float:
        """How long the replicas take for so many tokens; 0 as long as nothing is known."""
        rate = self.tokens_per_second * self._replicas
        return tokens / rate if rate else 0.0

    @property
    def batch_tokens(self) -> int:
        """How many tokens a batch may have to take no longer than it shall."""
        rate = self.tokens_per_second
        return (
            max(1, min(self._max_tokens, int(rate * self._batch_s))) if rate else self._max_tokens
        )

    def batch_tokens_of(self, waiting: int) -> int:
        """The same where so many tokens wait. Long batches take less time for each token: where the
        wait is longer anyway, a batch takes up to a quarter of it, and up to four times as long."""
        most = min(waiting // _SHARE, _MOST_TIMES * self.batch_tokens)
        return min(self._max_tokens, max(self.batch_tokens, most))
