"""`packhorse.Sampling`: what it takes and what it refuses."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import packhorse
import pytest
from packhorse import Sampling


def test_defaults_are_greedy() -> None:
    sampling = Sampling()
    assert (sampling.temperature, sampling.n, sampling.max_new_tokens) == (0, 1, None)


def test_numbers_of_numpy_are_taken() -> None:
    sampling = Sampling(
        max_new_tokens=np.int64(3),
        temperature=np.float32(0.5),
        stop_ids=np.array([4, 5]),
        logit_bias={np.int32(7): np.float32(2), 8: -math.inf},
    )
    assert sampling.stop_ids == (4, 5)
    assert sampling.logit_bias == {7: 2.0, 8: -math.inf}
    assert all(type(token) is int for token in (*sampling.stop_ids, *sampling.logit_bias))


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("max_new_tokens", (-1, 1.5, "3", True), "a whole number from 0 on, or None"),
        ("temperature", (-0.1, math.nan, math.inf, None, "hot"), "a number from 0 on"),
        ("top_k", (-1, 2.0, None), "a whole number from 0 on"),
        ("top_p", (0, 1.01, -1, None), "a number above 0 and up to 1"),
        ("min_p", (-0.1, 1.1), "a number from 0 to 1"),
        ("repetition_penalty", (0, -1, math.inf), "a number above 0"),
        ("presence_penalty", (math.nan, "x"), "a finite number"),
        ("frequency_penalty", (math.inf,), "a finite number"),
        ("length_penalty", (math.nan,), "a finite number"),
        ("deadline_s", (0, -1), "seconds above 0, or None"),
        ("seed", (-1, 2**64, 1.0), "a whole number from 0 to 2"),
        ("logprobs", (-1, True), "a whole number from 0 on, or None"),
        ("prompt_logprobs", (-1,), "a whole number from 0 on, or None"),
        ("n", (0, 2000, None), "a whole number from 1 to 1024"),
        ("num_beams", (0, 1.0), "a whole number from 1 on"),
        ("early_stopping", ("always", 1), "True, False or 'never'"),
        ("ignore_eos", (1, None), "True or False"),
        ("stop_ids", ("ab", 5, [-1], [1.0], [2**31]), "token id"),
        ("allowed_ids", ([True],), "token id"),
        ("allowed_ids", ([], (), np.array([], int)), "one token id at least, or None for all"),
        ("allowed_ids", ({5: 1}, "5", 5), "a list of token ids"),
        ("suppress_tokens", (3, [-1], None), "token id"),
        ("begin_suppress_tokens", ("3", [2**31]), "token id"),
        ("bad_words_ids", ([3], [[]], [["a"]], {1: 2}), "token id"),
        ("sequence_bias", ([3], [[1, 2]], [[[], 1.0]], [[[1], math.nan]], {3: 1.0}), "expected"),
        ("no_repeat_ngram_size", (-1, 1.5, None), "a whole number from 0 on"),
        ("min_new_tokens", (-1, None), "a whole number from 0 on"),
        ("forced_bos_token_id", (-1, [3]), "a token id, or None"),
        ("forced_eos_token_id", (-1, "3", [-1]), "token id"),
        ("exponential_decay_length_penalty", (3, (1,), (-1, 2.0), (1, 0), "ab"), "expected"),
        ("logit_bias", ([1], {-1: 1}, {1: "x"}, {1: math.inf}, {1: math.nan}), "expected"),
        ("mask", (5, object()), "an object with fill and accept"),
    ],
)
def test_what_is_refused(name: str, values: tuple[Any, ...], expected: str) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"{name}.* is .*, expected.*{expected}|{expected}"):
            Sampling(**{name: value})


def test_forms_of_settings() -> None:
    pairs = Sampling(sequence_bias=[[[1, 2], 3], ([4], -math.inf), [[1, 2], 5.0]])
    mapped = Sampling(sequence_bias={(1, 2): 5.0, (4,): -math.inf})
    assert pairs.sequence_bias == mapped.sequence_bias == (((1, 2), 5.0), ((4,), -math.inf))
    assert Sampling(forced_eos_token_id=3).forced_eos_token_id == (3,)
    assert Sampling(bad_words_ids=np.array([[1, 2]])).bad_words_ids == ((1, 2),)
    assert Sampling(exponential_decay_length_penalty=[2, 1]).exponential_decay_length_penalty == (
        2,
        1.0,
    )
    assert pickle.loads(pickle.dumps(pairs)) == pairs


@pytest.mark.parametrize("chance", [{"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.5}])
def test_beam_search_leaves_nothing_to_chance(chance: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(chance))} is .*num_beams=2"):
        Sampling(num_beams=2, **chance)


def test_no_more_hypotheses_than_beams() -> None:
    assert Sampling(n=3, num_beams=3).n == 3
    with pytest.raises(ValueError, match="n is 4, expected at most num_beams, which is 3"):
        Sampling(n=4, num_beams=3)


def test_it_is_frozen_and_can_be_pickled() -> None:
    sampling = Sampling(temperature=0.7, stop_ids=[3])
    assert pickle.loads(pickle.dumps(sampling)) == sampling
    with pytest.raises(AttributeError):
        sampling.temperature = 1.0  # type: ignore[misc]


def test_a_session_of_embeddings_refuses(session: packhorse.Session) -> None:
    for name in ("generate", "submit", "stats"):
        with pytest.raises(AttributeError, match="does not generate: load a causal language model"):
            getattr(session, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'$"):
        session.nothing  # type: ignore[attr-defined]  # noqa: B018
    assert not session.generates
