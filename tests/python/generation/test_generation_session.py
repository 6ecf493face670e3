"""`GenerationSession` and its engine: ids in, ids out, from any thread."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import packhorse_weights
import pytest
from packhorse import GenerationSession, Sampling
from packhorse.load_options import LoadOptions
from packhorse.planning import plan_generation
from packhorse_weights.spec import stack_of

pytestmark = pytest.mark.arm

GOLDEN = Path(__file__).parents[2] / "golden" / "generation"
LONG = Sampling(ignore_eos=True, temperature=1.0)


def load(folder: Path, **options: Any) -> GenerationSession:
    session = packhorse.Session.load(folder, **{"kv_tokens": 4096, "threads": 1, **options})
    assert isinstance(session, GenerationSession)
    return session


@pytest.fixture(scope="module")
def shared() -> Iterator[GenerationSession]:
    with load(GOLDEN / "llama") as session:
        yield session


def test_the_same_tokens_alone_and_together(shared: GenerationSession) -> None:
    prompts = [[i + 1, i + 2, *range(i)] for i in range(20)]
    sampling = Sampling(temperature=1.0, seed=7, max_new_tokens=30, logprobs=0, prompt_logprobs=0)
    together = shared.generate(prompts, sampling)
    for prompt, expected in zip(prompts, together, strict=True):
        (alone,) = shared.generate([prompt], sampling)
        assert (alone.ids, alone.logprobs) == (expected.ids, expected.logprobs)
        assert alone.prompt_logprobs == expected.prompt_logprobs
        assert len(alone.prompt_logprobs.logprobs) == len(prompt) - 1


def test_several_sequences_and_beams(shared: GenerationSession) -> None:
    sampling = Sampling(temperature=1.0, seed=1, n=3, max_new_tokens=6)
    (drawn,) = shared.generate([[1, 2, 3]], sampling)
    assert len({tuple(one.ids) for one in drawn}) > 1
    (beams,) = shared.generate([[1, 2, 3]], Sampling(num_beams=4, n=2, max_new_tokens=6))
    assert beams[0].score >= beams[1].score


def test_submit(shared: GenerationSession) -> None:
    request = shared.submit([1, 2, 3], Sampling(max_new_tokens=9, ignore_eos=True))
    tokens = list(request.tokens())
    assert tokens == request.result().ids
    assert len(tokens) == 9
    assert list(request.tokens()) == request.poll() == []
    assert (request.finish_reason(), request.wait(0)) == ("length", True)
    assert request.result().usage.prompt_tokens == 3
    assert "length" in repr(request)
    with pytest.raises(ValueError, match="sequence is 1, expected 0 to 0"):
        request.result(1)


def test_leaving_the_tokens_cancels(shared: GenerationSession) -> None:
    request = shared.submit([1], LONG)
    for _ in request.tokens():
        break
    assert request.wait(10)
    assert request.finish_reason() == "cancelled"


def test_requests_of_many_threads(shared: GenerationSession) -> None:
    sampling = Sampling(temperature=1.0, seed=3, max_new_tokens=20)
    found: list[Any] = [None] * 8

    def run(i: int) -> None:
        found[i] = [one.ids for one in shared.generate([[1 + i % 2, 2]] * 4, sampling)]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0::2] == [found[0]] * 4
    assert found[1::2] == [found[1]] * 4


class EveryThird:
    """Allows tokens that three divides, and counts what was chosen."""

    def __init__(self, chosen: list[int]) -> None:
        self.chosen = chosen

    def fill(self, words: memoryview) -> bool:
        assert (words.format, words.readonly, not any(words)) == ("I", False, True)
        for token in range(0, 32 * len(words), 3):
            words[token // 32] |= 1 << token % 32
        return True

    def accept(self, token: int) -> None:
        self.chosen.append(token)

    def fork(self) -> EveryThird:
        return EveryThird(list(self.chosen))


def test_a_mask(shared: GenerationSession) -> None:
    mask = EveryThird([])
    request = shared.submit([1], Sampling(mask=mask, max_new_tokens=20, ignore_eos=True))
    ids = request.result().ids
    assert mask.chosen == ids[:-1]  # after the last one nothing is chosen
    assert all(token % 3 == 0 for token in ids)
    with pytest.raises(ValueError, match="of one request alone"):
        shared.generate([[1]], Sampling(mask=mask))


@pytest.mark.parametrize("fails", [False, True])
def test_the_words_of_a_mask_end_with_the_call(shared: GenerationSession, fails: bool) -> None:
    kept: list[memoryview] = []
    arrays: list[Any] = []

    class Keeping(EveryThird):
        def fill(self, words: memoryview) -> bool:
            super().fill(words)
            kept.append(words)
            arrays.append(np.frombuffer(words, np.uint32) if len(kept) == 2 else np.zeros(1))
            if fails and len(kept) == 3:
                raise LookupError("no state")
            return True

    request = shared.submit([1], Sampling(mask=Keeping([]), max_new_tokens=4, ignore_eos=True))
    request.wait()
    assert request.finish_reason() == ("error" if fails else "length")
    assert all(token % 3 == 0 for token in request.so_far().ids)
    arrays[1][:] = 0  # an array holds its memory, which is Python's own
    for words in kept:
        with pytest.raises(ValueError, match="released"):
            words[0] = 1


@pytest.mark.parametrize("where", ["fill", "accept"])
def test_a_mask_that_raises_fails_its_request_alone(shared: GenerationSession, where: str) -> None:
    class Broken(EveryThird):
        pass

    def fail(*_: object) -> None:
        raise LookupError("no such state: é")

    setattr(Broken, where, fail)
    other = shared.submit([1], Sampling(max_new_tokens=5, ignore_eos=True))
    request = shared.submit([1], Sampling(mask=Broken([])))
    with pytest.raises(RuntimeError, match="LookupError: no such state: é"):
        request.result()
    with pytest.raises(RuntimeError, match="LookupError"):
        list(request.tokens())
    assert len(other.result().ids) == 5


@pytest.mark.parametrize(
    ("ids", "sampling", "message"),
    [
        ([], {}, "ids is empty"),
        ([10**6], {}, "ids"),
        ([1] * 600, {}, "the prompt has 600 tokens, expected at most 511: the context is 512"),
        ([1], {"stop_ids": [10**6]}, "stop_ids is 1000000"),
        ([1], {"logit_bias": {10**6: 1.0}}, "logit_bias is 1000000"),
        ([1], {"logprobs": 1000}, "logprobs is 1000"),
    ],
)
def test_requests_that_are_refused(
    shared: GenerationSession, ids: list[int], sampling: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        shared.submit(ids, Sampling(**sampling))
    assert shared.generate([[1]], Sampling(max_new_tokens=1))[0].ids


def test_ctrl_c_ends_the_waiting(shared: GenerationSession) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            shared.generate(([1] for _ in range(10**6)), LONG)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    until = time.monotonic() + 10
    while shared.stats["running"] + shared.stats["queued"] and time.monotonic() < until:
        time.sleep(0.01)
    assert shared.stats["running"] == shared.stats["queued"] == 0


def test_closing_ends_requests() -> None:
    session = load(GOLDEN / "llama")
    request = session.submit([1], LONG)
    session.close()
    assert session.closed
    assert request.result().finish_reason in ("cancelled", "length")
    for call in (lambda: session.submit([1]), lambda: session.generate([[1]])):
        with pytest.raises(RuntimeError, match="this session was closed"):
            call()
    assert session.memory_plan.kv_tokens == 4096


def test_copies_and_pickles(shared: GenerationSession) -> None:
    assert copy.deepcopy(shared) is shared
    sampling = Sampling(max_new_tokens=5)
    with pickle.loads(pickle.dumps(shared)) as other:
        assert repr(other) == repr(shared)
        assert (
            other.generate([[1, 2]], sampling)[0].ids == shared.generate([[1, 2]], sampling)[0].ids
        )


def test_the_plan(shared: GenerationSession) -> None:
    plan = shared.memory_plan
    assert plan.kv_tokens == 4096
    assert plan.kv_cache.bytes == plan.kv_tokens * plan.bytes_per_token
    assert plan.total_bytes == plan.weights.bytes + plan.arena.bytes + plan.kv_cache.bytes
    assert f"{plan.kv_tokens} tokens of {plan.bytes_per_token} bytes" in str(plan)
    assert packhorse.plan_memory(GOLDEN / "llama", kv_tokens=4096, threads=1) == plan


def test_the_default_cache_of_the_cpu() -> None:
    spec = packhorse_weights.resolve_model(GOLDEN / "llama").spec | {"max_seqlen": 10_000}

    def plan(spec: dict[str, Any], **options: Any) -> packhorse.GenerationMemoryPlan:
        given = LoadOptions(threads=1, **options).of_session("float32", generates=True)
        return plan_generation(spec, given)

    assert plan(spec, max_tokens=64, max_sequences=64).kv_tokens == 64 * 2048
    assert plan(spec, max_tokens=64, max_sequences=8).kv_tokens == 8 * 2048
    assert plan(spec, max_tokens=64, max_sequences=1).kv_tokens == 157 * 64  # one whole context
    # 270 GiB are beyond a quarter of what is free, which changes a little meanwhile.
    meminfo = Path("/proc/meminfo").read_text()
    available = int(meminfo.split("MemAvailable:")[1].split()[0]) * 1024
    deep = {**stack_of(spec), "layers": [stack_of(spec)["layers"][0]] * 512}
    spec = spec | {"stacks": dict.fromkeys(spec["stacks"], deep)}
    cache = plan(spec, max_tokens=2048, max_sequences=2048).kv_cache
    assert 0 < cache.bytes < available / 4 + (64 << 20)


def test_sizes_that_are_refused() -> None:
    with pytest.raises(
        ValueError, match="max_sequences is 32, expected 1 to max_tokens, which is 16"
    ):
        load(GOLDEN / "llama", max_tokens=16, max_sequences=32)
    with pytest.raises(MemoryError, match=r"for a cache of \d+ tokens: lower kv_tokens"):
        load(GOLDEN / "llama", kv_tokens=1 << 38)


def test_what_decides_whether_a_model_generates() -> None:
    folder = GOLDEN / "llama"
    limit = 64 << 20
    with packhorse.Session.load(folder, memory_limit=limit, threads=1) as session:
        assert isinstance(session, GenerationSession)
        assert 0 < session.memory_plan.total_bytes <= limit
        assert (session.max_tokens, session.max_sequences) == (2048, 64)
    for options in ({"kv_tokens": 0}, {"pooling": "mean"}, {"max_predictions": 4}):
        with packhorse.Session.load(folder, **options) as session:  # type: ignore[arg-type]
            assert not session.generates
            assert session.run([[1, 2]]).hidden.shape == (2, 32)
    with pytest.raises(ValueError, match="it has no head of a causal language model"):
        packhorse.Session.load(GOLDEN / "embedding-gemma", kv_tokens=64)


def test_a_session_that_generates_gives_nothing_else(shared: GenerationSession) -> None:
    for name in ("run", "run_many", "score", "explain", "outputs", "embedding_size"):
        with pytest.raises(AttributeError, match=f"'{name}': .* load the model with kv_tokens=0"):
            getattr(shared, name)
    assert shared.hidden_size == 32


def test_a_class_of_sessions_loads_no_other_kind() -> None:
    folder = GOLDEN / "llama"
    with packhorse.GenerationSession.load(folder, threads=1) as session:
        assert type(session) is GenerationSession
    with packhorse.EncoderSession.load(folder, kv_tokens=0) as encoder:
        assert type(encoder) is packhorse.EncoderSession
    with pytest.raises(ValueError, match=r"EncoderSession\.load: .* kv_tokens=0"):
        packhorse.EncoderSession.load(folder)
    with pytest.raises(ValueError, match=r"GenerationSession\.load: .* does not generate"):
        packhorse.GenerationSession.load(folder, kv_tokens=0)
