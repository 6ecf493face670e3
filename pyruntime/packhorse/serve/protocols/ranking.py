"""Scores of texts for a query, for all protocols."""

from __future__ import annotations

import numpy as np

from packhorse.serve.errors import ServeError
from packhorse.serve.http.exchange import Exchange
from packhorse.serve.models.model import ServedModel
from packhorse.serve.models.served import Outcome
from packhorse.serve.models.tasks import Ranking
from packhorse.serve.protocols.cut import Cut

RERANKS = "a reranker"


async def score(
    exchange: Exchange,
    model: ServedModel,
    pairs: list[tuple[str, str]],
    *,
    cut: Cut,
    raw: bool,
) -> Outcome:
    """`found` is float32[pairs], between 0 and 1, or logits if they are to be raw."""
    task = model.task(Ranking, raw=raw, **cut._asdict())
    outcome = await exchange.run(model, task, pairs, "predict")
    if not np.isfinite(outcome.found).all():
        raise ServeError("backend", "a score is not a number")
    return outcome


async def rank(
    exchange: Exchange,
    model: ServedModel,
    query: str,
    texts: list[str],
    *,
    cut: Cut,
    raw: bool = False,
    top_n: int | None = None,
) -> tuple[list[tuple[int, float]], Outcome]:
    """((number of a text, its score), best first, at most `top_n`; what it took)"""
    pairs = [(query, text) for text in texts]
    outcome = await score(exchange, model, pairs, cut=cut, raw=raw)
    order = np.argsort(-outcome.found, kind="stable")[:top_n]
    scores = outcome.found[order].tolist()
    return list(zip(order.tolist(), scores, strict=True)), outcome
