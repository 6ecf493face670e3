"""Steps of generation that are launched while the one before them runs give the bits of steps that
wait for each token.

A request whose mask restricts nothing waits for each of its tokens: the host has to show the token
to the mask. Alone in a session it runs step by step, and everything else is compared with it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import packhorse
import pytest
from generation_sessions import held
from gpu_support import DEVICE
from packhorse import GenerationSession, Sampling
from packhorse.generation.results import GeneratedTokens

GOLDEN = Path(__file__).parents[1] / "golden"
PAGE = 64  # tokens of a page of the cache
DRAWN: dict[str, Any] = {"temperature": 1.1, "ignore_eos": True}
SAMPLINGS = {
    "greedy": Sampling(max_new_tokens=150, ignore_eos=True, temperature=0),
    "drawn": Sampling(max_new_tokens=130, seed=1, **DRAWN),
    "filtered": Sampling(max_new_tokens=140, seed=2, top_k=20, top_p=0.9, min_p=0.01, **DRAWN),
    "penalised": Sampling(
        max_new_tokens=150,
        seed=3,
        repetition_penalty=1.3,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        **DRAWN,
    ),
    "biased": Sampling(max_new_tokens=70, seed=4, logit_bias={3: 2.0, 7: -4.0}, **DRAWN),
    "restricted": Sampling(max_new_tokens=70, seed=5, allowed_ids=tuple(range(1, 60, 3)), **DRAWN),
    "by place": Sampling(
        max_new_tokens=90,
        seed=9,
        suppress_tokens=(4, 8),
        begin_suppress_tokens=tuple(range(30)),
        min_new_tokens=60,
        stop_ids=tuple(range(20, 26)),
        forced_bos_token_id=9,
        forced_eos_token_id=(20, 21),
        exponential_decay_length_penalty=(60, 1.01),
        **DRAWN,
    ),
    "looking back": Sampling(
        max_new_tokens=90,
        seed=10,
        no_repeat_ngram_size=2,
        bad_words_ids=[[3], *[[i, (i + 7) % 60] for i in range(60)]],
        sequence_bias={(i, (i * 3) % 60): 2.0 for i in range(1, 60)},
        presence_penalty=0.2,
        **DRAWN,
    ),
    "with logprobs": Sampling(max_new_tokens=100, seed=6, logprobs=0, **DRAWN),
    "with the best": Sampling(max_new_tokens=100, seed=7, logprobs=3, **DRAWN),
    "of the prompt": Sampling(max_new_tokens=20, seed=8, prompt_logprobs=2, **DRAWN),
}
LENGTHS = (1, 5, 63, 64, 65, 130)


class Free:
    """Restricts nothing."""

    def fill(self, words: memoryview) -> bool:
        return False

    def accept(self, token: int) -> None:
        pass

    def fork(self) -> Free:
        return Free()


def load(name: str = "llama", **options: Any) -> GenerationSession:
    given: dict[str, Any] = {"kv_tokens": 200 * PAGE, "max_tokens": 256, **options}
    session = packhorse.Session.load(GOLDEN / "generation" / name, DEVICE, "bfloat16", **given)
    assert isinstance(session, GenerationSession)
    return session


def prompt_of(length: int) -> list[int]:
    return [1 + (7 * i + length) % 60 for i in range(length)]


def step_by_step(session: GenerationSession, ids: list[int], sampling: Sampling) -> GeneratedTokens:
    return session.submit(ids, replace(sampling, mask=Free())).result()


@pytest.fixture(scope="module", params=["llama", "gpt2", "gemma2"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def expected(kernels: str, name: str) -> dict[tuple[str, int], GeneratedTokens]:
    with load(name, prefix_cache=False) as session:
        return {
            (kind, length): step_by_step(session, prompt_of(length), sampling)
            for kind, sampling in SAMPLINGS.items()
            for length in LENGTHS
        }


@pytest.mark.parametrize("max_sequences", [1, 3, 9, 64])
def test_the_bits_of_single_steps(
    name: str, expected: dict[tuple[str, int], GeneratedTokens], max_sequences: int
) -> None:
    with load(name, max_sequences=max_sequences) as session:
        running = {key: session.submit(prompt_of(key[1]), SAMPLINGS[key[0]]) for key in expected}
        for key, request in running.items():
            assert request.result() == replace(expected[key], usage=request.result().usage), key


def test_recordings_of_whole_steps(
    name: str, expected: dict[tuple[str, int], GeneratedTokens]
) -> None:
    """Whole steps without and with log-probabilities, and steps whose tokens are chosen apart."""
    with load(name) as session:
        for length in LENGTHS:
            sampling = SAMPLINGS["greedy"]
            whole, apart = (
                session.generate([prompt_of(length)], replace(sampling, logprobs=count))[0]
                for count in (0, 3)
            )
            assert whole.ids == apart.ids == expected["greedy", length].ids
            assert whole.logprobs == apart.logprobs
            scored = Sampling(max_new_tokens=1, prompt_logprobs=0, ignore_eos=True)
            (again,) = session.generate([prompt_of(length) + whole.ids], scored)
            assert again.prompt_logprobs is not None
            assert again.prompt_logprobs.logprobs[-len(whole.ids) :] == whole.logprobs


def test_with_preemptions_and_masks(
    name: str, expected: dict[tuple[str, int], GeneratedTokens]
) -> None:
    """Some requests wait for masks, and all for pages."""
    with load(name, kv_tokens=16 * PAGE, max_tokens=64, max_sequences=16) as session:
        with held(session):
            running = {
                key: session.submit(
                    prompt_of(key[1]),
                    replace(SAMPLINGS[key[0]], mask=Free()) if i % 3 == 0 else SAMPLINGS[key[0]],
                )
                for i, key in enumerate(expected)
            }
        for key, request in running.items():
            assert request.result() == replace(expected[key], usage=request.result().usage), key
        assert session.stats["preemptions"] > 0
        assert session.stats["pages_used"] == 0


def test_stops_and_cancels(name: str, expected: dict[tuple[str, int], GeneratedTokens]) -> None:
    """A token that was launched after the end is seen by nobody, whoever gets slot and pages."""
    with load(name, kv_tokens=24 * PAGE, max_sequences=5) as session:
        running = []
        for round_ in range(12):
            for key, whole in expected.items():
                sampling = SAMPLINGS[key[0]]
                # Rules by place look at the tokens that end a text, so another one changes it.
                if sampling.prompt_logprobs is not None or key[0] == "by place":
                    continue
                stop = whole.ids[(5 * round_ + len(running)) % len(whole.ids)]
                request = session.submit(prompt_of(key[1]), replace(sampling, stop_ids=(stop,)))
                if len(running) % 7 == 0:
                    request.cancel()
                running.append((whole, stop, request))
        for whole, stop, request in running:
            found = request.result()
            assert found.ids == whole.ids[: len(found.ids)]
            if found.finish_reason == "stop":
                assert found.ids.index(stop) == len(found.ids) - 1
            else:
                assert found.finish_reason == "cancelled"
        assert session.stats["pages_used"] == 0


def test_beams_beside_others(name: str, expected: dict[tuple[str, int], GeneratedTokens]) -> None:
    beams = Sampling(num_beams=4, n=4, max_new_tokens=40, repetition_penalty=1.1)
    with load(name) as session:
        (alone,) = session.generate([prompt_of(65)], beams)
        others = [session.submit(prompt_of(n), SAMPLINGS["drawn"]) for n in LENGTHS]
        (together,) = session.generate([prompt_of(65)], beams)
        assert [(one.ids, one.score) for one in together] == [(one.ids, one.score) for one in alone]
        for length, request in zip(LENGTHS, others, strict=True):
            assert request.result().ids == expected["drawn", length].ids


def test_adapters_come_and_go() -> None:
    """Slots change between two steps, and steps with adapters overlap as others do."""
    folders = [GOLDEN / "adapters" / name for name in ("llama", "llama_few")]
    sampling = Sampling(max_new_tokens=120, seed=1, **DRAWN)
    with load(max_adapters=2, max_sequences=8) as session:
        for folder in folders:
            session.add_adapter(folder.name, folder)
        kinds = [None, *(folder.name for folder in folders)]
        alone = {
            (kind, length): step_by_step(
                session, prompt_of(length), replace(sampling, adapter=kind)
            )
            for kind in kinds
            for length in LENGTHS
        }
        running = {
            key: session.submit(prompt_of(key[1]), replace(sampling, adapter=key[0]))
            for key in alone
        }
        # It waits until nobody uses the slot any more, while the others run.
        session.remove_adapter("llama_few")
        for key, request in running.items():
            assert request.result().ids == alone[key].ids
        busy = [session.submit(prompt_of(n), sampling) for n in LENGTHS]
        session.add_adapter("llama_few", folders[1])
        for length, request in zip(LENGTHS, busy, strict=True):
            assert request.result().ids == alone[None, length].ids
        again = session.submit(prompt_of(63), replace(sampling, adapter="llama_few"))
        assert again.result().ids == alone["llama_few", 63].ids
