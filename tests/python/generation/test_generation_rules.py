"""Settings that forbid, force and favour tokens: against transformers' `generate`, and the same
tokens whatever else runs."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import packhorse
import pytest
from checkpoints import GOLDEN
from generation_sessions import held
from packhorse import Sampling

FOUND = json.loads((GOLDEN / "generation_rules.json").read_text())
CASES: list[dict[str, Any]] = FOUND["cases"]
EOS, NEW_TOKENS = FOUND["eos"], FOUND["new_tokens"]


def sampling_of(case: dict[str, Any]) -> Sampling:
    settings = {"max_new_tokens": NEW_TOKENS, "stop_ids": [EOS], **case["settings"]}
    # A limit on prompt and new tokens together is for those who have both.
    least = settings.pop("min_length", 0) - len(case["prompt"])
    settings.setdefault("min_new_tokens", max(least, 0))
    return Sampling(**settings)


@pytest.mark.parametrize("model", sorted({case["model"] for case in CASES}))
def test_as_transformers(model: str, device: str) -> None:
    cases = [case for case in CASES if case["model"] == model]
    dtype = "float32" if device == "cpu" else "float16"
    folder = GOLDEN / "generation" / model
    with packhorse.Session.load(folder, device, dtype, kv_tokens=4096) as session:
        requests = [session.submit(case["prompt"], sampling_of(case)) for case in cases]
        found = [request.result() for request in requests]
    for case, text in zip(cases, found, strict=True):
        if device == "cpu":  # logits of float16 differ
            assert text.ids == case["ids"], case
        assert text.finish_reason == ("stop" if text.ids[-1] == EOS else "length")


DRAWN: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 70, "logprobs": 1}
MANY: list[dict[str, Any]] = [
    {"no_repeat_ngram_size": 2},
    {"bad_words_ids": [[3], *[[a, (a + 1) % 67] for a in range(67)]], "n": 2},
    {"sequence_bias": {(a, (a * 5) % 67): 3.0 for a in range(67)}, "presence_penalty": 0.5},
    {"suppress_tokens": range(20), "begin_suppress_tokens": range(20, 60)},
    {"min_new_tokens": 40, "stop_ids": range(20, 40)},
    {"forced_eos_token_id": [5, 6], "stop_ids": [5, 6]},
    {"exponential_decay_length_penalty": (20, 1.05), "stop_ids": [9]},
    {"temperature": 0.0, "num_beams": 3, "no_repeat_ngram_size": 2, "logprobs": 0},
]


@pytest.mark.parametrize("draft", [None, "ngram"])
def test_a_text_is_the_same_alone_and_with_others(device: str, draft: str | None) -> None:
    folder = GOLDEN / "generation" / "llama"
    dtype = "float32" if device == "cpu" else "float16"
    wanted = [Sampling(**{**DRAWN, **one, "seed": i}) for i, one in enumerate(MANY)]
    prompts = [[(i * 7 + k * k) % 67 for k in range(60)] for i in range(len(wanted))]
    with packhorse.Session.load(folder, device, dtype, kv_tokens=4096) as session:
        alone = [
            session.submit(ids, one).results() for ids, one in zip(prompts, wanted, strict=True)
        ]
    with packhorse.Session.load(folder, device, dtype, kv_tokens=640, draft=draft) as session:
        with held(session):
            requests = [session.submit(ids, one) for ids, one in zip(prompts, wanted, strict=True)]
        together = [request.results() for request in requests]
        assert session.stats["preemptions"] > 0
    for one, two in zip(alone, together, strict=True):
        assert [text.ids for text in one] == [text.ids for text in two]
        assert [text.logprobs for text in one] == [text.logprobs for text in two]
    bigrams = list(pairwise(alone[0][0].ids))
    assert len(bigrams) == len(set(bigrams)) == 69
    assert not any((b - a) % 67 == 1 or b == 3 for a, b in pairwise(alone[1][0].ids))
    assert min(alone[3][0].ids) == 0 or min(alone[3][0].ids) >= 20
    assert len(alone[4][0].ids) > 40
    assert alone[5][0].ids[-1] in (5, 6)


def test_a_session_goes_on_where_no_token_is_left() -> None:
    with packhorse.Session.load(GOLDEN / "generation" / "llama", kv_tokens=512) as session:
        for settings in (
            {"logit_bias": dict.fromkeys(range(67), float("-inf"))},
            {"suppress_tokens": range(67)},
            {"allowed_ids": [4], "suppress_tokens": [4]},
        ):
            for chance in (0.0, 1.0):
                text = session.submit([1, 2], Sampling(temperature=chance, **settings)).result()
                assert (text.ids, text.finish_reason) == ([], "stop")
        few = session.submit([1, 2], Sampling(allowed_ids=[4, 5], no_repeat_ngram_size=1)).result()
        assert (sorted(few.ids), few.finish_reason) == ([4, 5], "stop")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"suppress_tokens": [67]}, "suppress_tokens is 67, expected a token id from 0 to 66"),
        ({"bad_words_ids": [[1, 99]]}, "bad_words_ids is 99, expected a token id"),
        ({"sequence_bias": {(70,): 1.0}}, "sequence_bias is 70"),
        ({"forced_bos_token_id": 68}, "forced_bos_token_id is 68"),
        ({"forced_eos_token_id": 68}, "forced_eos_token_id is 68"),
    ],
)
def test_tokens_that_the_model_does_not_have(settings: dict[str, Any], message: str) -> None:
    with packhorse.Session.load(GOLDEN / "generation" / "llama", kv_tokens=64) as session:
        with pytest.raises(ValueError, match=message):
            session.submit([1], Sampling(**settings))
        # More than the context takes is as many as it takes.
        longest = session.submit([1], Sampling(max_new_tokens=10**9)).result()
        assert len(longest.ids) == len(session.submit([1]).result().ids)
