"""Comparison of models that generate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from packhorse_weights.spec import stem_of

from packhorse.evaluation.items import Entry, plain_texts
from packhorse.evaluation.measures import Measure, Spread
from packhorse.evaluation.statistics import Float64s
from packhorse.evaluation.task import Report, Task
from packhorse.generation.sampling import Sampling
from packhorse.text import TextModel

LONGEST = 512  # tokens of a text that are scored
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 16, 64, 64  # prompts that are continued greedily
_CHUNK = 16  # texts at a time, between reports


class Generated(NamedTuple):
    """Results of a model. logprobs, best: [tokens of all texts but the first of each]; greedy: new
    tokens of prompts."""

    logprobs: Float64s
    best: Any
    greedy: list[list[int]]


class Generate(Task):
    """Log-probabilities of the texts' tokens, and greedy continuations of their beginnings."""

    name = "generate"
    default_count = 100
    load: ClassVar[Mapping[str, Any]] = {"kv_tokens": 4096, "prefix_cache": False}

    def items(self, entries: Sequence[Entry]) -> Sequence[str]:
        return plain_texts(entries)

    def run(self, model: TextModel, items: Sequence[str], report: Report) -> Generated:
        longest = min(LONGEST, model.max_length - NEW_TOKENS)
        table = stem_of(model.session.config)["vocab_size"]
        ids = model.tokenizer.encode(items, max(longest, 2), pairs=False, table=table).ids
        ids = [row for row in ids if row.size > 1]
        if not ids:
            raise ValueError("no text has two tokens, which log-probabilities take")
        scores: list[float] = []
        best: list[int] = []
        score = Sampling(max_new_tokens=1, ignore_eos=True, prompt_logprobs=1)
        for i in range(0, len(ids), _CHUNK):
            for found in model.generation_session.generate(ids[i : i + _CHUNK], score):
                scores += found.prompt_logprobs.logprobs
                best += [top[0][0] for top in found.prompt_logprobs.top]
            report(min(i + _CHUNK, len(ids)), len(ids))
        prompts = [row[: max(1, min(PROMPT_TOKENS, row.size // 2))] for row in ids[:PROMPTS]]
        go_on = Sampling(max_new_tokens=NEW_TOKENS, ignore_eos=True)
        greedy = [found.ids for found in model.generation_session.generate(prompts, go_on)]
        return Generated(np.array(scores, np.float64), np.array(best), greedy)

    def compare(self, found: Generated, expected: Generated) -> tuple[list[Measure], Spread]:
        ours, theirs = (float(np.exp(-one.logprobs.mean())) for one in (found, expected))
        differences = np.abs(found.logprobs - expected.logprobs)
        same = [_common(a, b) for a, b in zip(found.greedy, expected.greedy, strict=True)]
        new = max(1, max(map(len, expected.greedy)))
        return [
            Measure("perplexity_float32", "perplexity in float32", theirs, "lower"),
            Measure("perplexity", "perplexity", ours, "lower"),
            Measure(
                "perplexity_ratio", "its ratio to float32's", ours / theirs, "lower", 1.02, 1.1
            ),
            Measure(
                "top_token_same",
                "most probable token the same",
                float((found.best == expected.best).mean()),
                "higher",
                0.95,
                0.85,
            ),
            Measure(
                "logprob_difference_mean",
                "mean difference of log-probabilities",
                float(differences.mean()),
                "lower",
            ),
            Measure(
                "logprob_difference_max",
                "largest difference of log-probabilities",
                float(differences.max()),
                "lower",
            ),
            Measure(
                "greedy_same",
                f"of {new} greedy tokens the same before the first other one, mean share",
                float(np.mean(same) / new),
            ),
            Measure(
                "greedy_first_difference",
                "greedy tokens before the first other one, median",
                float(np.median(same)),
            ),
        ], Spread("difference of log-probabilities to float32", differences)


def _common(found: Sequence[int], expected: Sequence[int]) -> int:
    """Length of the common prefix."""
    pairs = zip(found, expected, strict=False)
    shorter = min(len(found), len(expected))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
