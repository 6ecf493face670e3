"""Policy for the number of replicas of a deployment, by the tokens that wait in them."""

from __future__ import annotations

import math
from typing import Any


class QueuedTokens:
    """A policy of Ray Serve: so many replicas that each has the queue that is aimed at.

    A replica reports "queued_tokens" (`record_autoscaling_stats`); Ray averages over its look-back
    period, and applies bounds and delays to what comes of it. Requests count besides: those that
    generate have no tokens that wait, and what no replica has taken yet is in no replica's report.
    """

    def __init__(self, target_queued_tokens: int, target_ongoing_requests: int) -> None:
        """Sets the tokens and requests that a replica should have. Raises ValueError below 1."""
        for name, value in (
            ("target_queued_tokens", target_queued_tokens),
            ("target_ongoing_requests", target_ongoing_requests),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}, expected at least 1")
        self._tokens = target_queued_tokens
        self._requests = target_ongoing_requests

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """(replicas, state to keep: none) from an `AutoscalingContext`."""
        reports = (context.aggregated_metrics or {}).get("queued_tokens") or {}
        by_tokens = math.ceil(sum(reports.values()) / self._tokens)
        by_requests = math.ceil(context.total_num_requests / self._requests)
        return max(by_tokens, by_requests), {}
