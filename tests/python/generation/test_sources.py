"""Models with an encoder and a decoder: sources in, targets out, on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import packhorse
import pytest
import reference_text_to_text
from generation_sessions import LLAMA, PAGE, load
from packhorse import Sampling
from packhorse_weights import inspect_checkpoint
from text_to_text_cases import (
    FOLDER,
    NAMES,
    SETTINGS,
    Golden,
    log_probabilities,
    log_softmax,
    outcome,
    random_texts,
)

T5 = FOLDER / "t5"


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str) -> None:
    """Logits after prompts, greedy tokens and 4 beams equal transformers'."""
    golden = Golden(name)
    with load(FOLDER / name, dtype="float32", kv_tokens=100 * PAGE) as session:
        count = session.vocab_size
        scoring = Sampling(max_new_tokens=1, logprobs=count, prompt_logprobs=count)
        scored = session.generate(golden.targets, scoring, sources=golden.sources)
        for found, logits in zip(scored, golden.rows("logits", "target_cu"), strict=True):
            expected = log_softmax(logits)[:, :count]
            np.testing.assert_allclose(log_probabilities(found, count), expected, atol=5e-4)
        rules = {"max_new_tokens": 20, "no_repeat_ngram_size": 2}
        greedy = Sampling(**rules, forced_bos_token_id=golden.forced)
        texts = session.generate(golden.starts, greedy, sources=golden.sources)
        for found, ids in zip(texts, golden.rows("greedy", "greedy_cu"), strict=True):
            assert found.ids == ids.tolist()
        beams = Sampling(
            **rules, forced_bos_token_id=golden.forced, num_beams=4, length_penalty=0.8,
            early_stopping=True,
        )  # fmt: skip
        texts = session.generate(golden.starts, beams, sources=golden.sources)
        for found, ids in zip(texts, golden.rows("beams", "beams_cu"), strict=True):
            assert found.ids == ids.tolist()
        np.testing.assert_allclose([found.score for found in texts], golden.scores, atol=1e-4)
        assert session.stats["pages_used"] == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", ["t5", "umt5", "marian"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_alone_together_and_preempted(name: str, dtype: str, settings: dict[str, Any]) -> None:
    """Results have the same bits whatever else runs, and however often a request gives way."""
    if name == "t5" and "num_beams" not in settings:
        settings = {**settings, "max_new_tokens": 90}
    sampling = Sampling(**settings, logprobs=0)
    with load(FOLDER / name, dtype=dtype, threads=2, kv_tokens=200 * PAGE) as session:
        sources, prompts = random_texts(session)
        together = outcome(session.generate(prompts, sampling, sources=sources))
    with load(FOLDER / name, dtype=dtype, prefix_cache=False) as session:
        alone = [
            outcome(session.submit(prompt, sampling, source=source).results())
            for source, prompt in zip(sources, prompts, strict=True)
        ]
        assert [together[i] for i in range(len(prompts))] == [
            one if sampling.n > 1 else one[0] for one in alone
        ]
    with load(FOLDER / name, dtype=dtype, kv_tokens=9 * PAGE, max_tokens=300) as session:
        assert outcome(session.generate(prompts, sampling, sources=sources)) == together
        if name == "t5" or "num_beams" in settings:
            assert session.stats["preemptions"] > 0 or sampling.n == 3
        assert session.stats["pages_used"] == 0


def test_equal_sources_are_read_once() -> None:
    """Also those that come together, and those of requests that have ended; not of other salts."""
    with load(T5) as session:
        sources = [np.arange(3, 93)] * 3
        prompts = [[0], [0, 5], [0, 5, 6]]
        one = Sampling(max_new_tokens=3)
        found = session.generate(prompts, one, sources=sources)
        new = 3 * 3 - 3  # tokens that a step after the first computes
        assert session.stats["computed_tokens"] == 90 + 1 + 2 + 3 + new
        assert session.stats["prefix_hit_tokens"] == 2 * 90
        again = session.submit([0], one, source=sources[0]).result()
        assert again.ids == found[0].ids
        assert session.stats["prefix_hit_tokens"] == 3 * 90
        before = session.stats["computed_tokens"]
        other = session.submit([0], Sampling(max_new_tokens=3, cache_salt=1), source=sources[0])
        assert other.result().ids == found[0].ids
        assert session.stats["computed_tokens"] == before + 90 + 3
        # One that begins alike is another.
        longer = np.append(sources[0], 7)
        before = session.stats["computed_tokens"]
        session.submit([0], one, source=longer).result()
        assert session.stats["computed_tokens"] == before + 91 + 3


def test_targets_of_other_sources_share_nothing() -> None:
    """Keys and values of equal targets depend on their source."""
    with load(T5) as session:
        target = np.random.default_rng(1).integers(3, 98, 130)
        one = Sampling(max_new_tokens=2, logprobs=0)
        session.submit(target, one, source=[5, 6, 7]).result()
        found = session.submit(target, one, source=[5, 6, 8]).result()
        hits = session.stats["prefix_hit_tokens"]
        assert hits == 0
        assert outcome(session.submit(target, one, source=[5, 6, 8]).result()) == outcome(found)
        assert session.stats["prefix_hit_tokens"] == 3 + 128
    with load(T5) as session:
        assert outcome(session.submit(target, one, source=[5, 6, 8]).result()) == outcome(found)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_of_the_source(size: int) -> None:
    """`encoder_no_repeat_ngram_size`, against greedy search over the reference's logits."""
    model = inspect_checkpoint(T5)
    tensors = {
        ours: model.tensors[name].data.astype(np.float64) for ours, name in model.names.items()
    }
    source = np.random.default_rng(2).integers(3, 98, 40)
    grams = {tuple(source[i : i + size]) for i in range(len(source) - size + 1)}
    target = [0]
    for _ in range(12):
        scores = reference_text_to_text.logits(model.spec, tensors, source, np.array(target))[-1]
        begun = tuple(target[len(target) - size + 1 :]) if size > 1 else ()
        for gram in grams:
            if len(target) >= size - 1 and gram[:-1] == begun:
                scores[gram[-1]] = -np.inf
        target.append(int(scores.argmax()))
    with load(T5) as session:
        sampling = Sampling(max_new_tokens=12, encoder_no_repeat_ngram_size=size, ignore_eos=True)
        assert session.submit([0], sampling, source=source).result().ids == target[1:]


def test_refusals() -> None:
    with load(T5, max_tokens=100, max_sequences=8) as session:
        assert session.max_source_tokens == 100
        for source, message in [
            (None, "the source is empty, expected at least one token"),
            ([], "the source is empty"),
            (np.full(101, 3), "the source has 101 tokens, expected at most 100"),
            ([3, 100], r"source\[1\] = 100, expected 0 to 99"),
            ([-1], r"source\[0\] = -1"),
        ]:
            with pytest.raises(ValueError, match=message):
                session.submit([0], source=source)
        with pytest.raises(ValueError, match="there are 1 sources, expected one for each prompt"):
            session.generate([[0], [0]], sources=[[3]])
        with pytest.raises(ValueError, match="there are more sources than prompts, which are 1"):
            session.generate([[0]], sources=[[3], [4]])
        assert len(session.submit([0], Sampling(max_new_tokens=2), source=[3]).result().ids) == 2
    with load(T5, kv_tokens=2 * PAGE) as session:
        assert session.max_source_tokens == PAGE
        with pytest.raises(ValueError, match="source of 65, prompt of 1"):
            session.submit([0], Sampling(max_new_tokens=1), source=np.full(65, 3))
    with load(LLAMA) as session:
        assert session.max_source_tokens == 0
        with pytest.raises(ValueError, match="expected none: this model has no encoder"):
            session.submit([5], source=[3])
        with pytest.raises(ValueError, match="encoder_no_repeat_ngram_size is 2"):
            session.submit([5], Sampling(encoder_no_repeat_ngram_size=2))
    with pytest.raises(ValueError, match="max_adapters is 1: a model of speech takes no adapters"):
        packhorse.Session.load(FOLDER.parent / "speech" / "whisper", max_adapters=1)


def test_cancelled_requests_give_back_their_sources() -> None:
    with load(T5, max_sequences=4, kv_tokens=40 * PAGE) as session:
        endless = Sampling(max_new_tokens=300, ignore_eos=True, num_beams=2)
        requests = [session.submit([0], endless, source=np.full(70 + i, 5 + i)) for i in range(8)]
        requests[0].cancel()
        for request in requests:
            request.cancel()
        for request in requests:
            assert request.wait(60)
        found = session.submit([0], Sampling(max_new_tokens=2), source=[5]).result()
        assert len(found.ids) == 2
        assert session.stats["pages_used"] == 0
        assert session.stats["pages_free"] + session.stats["pages_cached"] == 40
