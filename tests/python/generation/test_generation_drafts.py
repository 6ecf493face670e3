"""Speculative decoding: the same ids and log-probabilities, bit by bit, as without. Reference:
each request alone in a session that drafts nothing, which other tests compare with transformers."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from command_line import Cli, failed
from fake_engine import fake_session
from generation_sessions import LLAMA, ON, PAGE, held, load
from packhorse import GenerationSession, Sampling, TextModel
from packhorse.text import TextTokenizer
from packhorse_weights.generation_files import GenerationFiles
from tiny_tokenizer import with_kind

GOLDEN = Path(__file__).parents[2] / "golden"
OTHER = GOLDEN / "generation" / "smollm"
DRAFTS = ["ngram", LLAMA, OTHER]

Asked = list[tuple[Sequence[int], Sampling]]


@pytest.fixture(scope="module")
def plain() -> Iterator[GenerationSession]:
    with load() as session:
        yield session


def asked(new: int = 90) -> Asked:
    """Requests of all kinds that draft, whose prompts repeat themselves."""
    random = np.random.default_rng(5)
    base = Sampling(ignore_eos=True, max_new_tokens=new, logprobs=2, seed=11)
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.7},
        {"temperature": 1.0, "top_k": 9, "logprobs": None},
        {"temperature": 0.9, "top_p": 0.8, "n": 2, "logprobs": 0},
        {"temperature": 0.5, "min_p": 0.1, "logit_bias": {7: 4.0, 9: -2.0}},
        {"allowed_ids": list(range(3, 40)), "prompt_logprobs": 1},
    ]
    prompts = [random.integers(3, 60, 20 + 35 * i).tolist() for i in range(len(kinds))]
    return [
        ([*prompt, *prompt[:15]], dataclasses.replace(base, **kind))
        for prompt, kind in zip(prompts, kinds, strict=True)
    ]


def results(request: packhorse.GenerationRequest) -> list[dict[str, Any]]:
    """Results of a request without their usage."""
    found = [dataclasses.asdict(one) for one in request.results()]
    return [{name: one[name] for name in one.keys() - {"usage"}} for one in found]


def alone(session: GenerationSession, requests: Asked) -> list[Any]:
    return [results(session.submit(ids, sampling)) for ids, sampling in requests]


def together(session: GenerationSession, requests: Asked) -> list[Any]:
    with held(session):
        submitted = [session.submit(ids, sampling) for ids, sampling in requests]
    return [results(request) for request in submitted]


@pytest.mark.parametrize("draft", DRAFTS, ids=["ngram", "itself", "another"])
@pytest.mark.parametrize(("device", "dtype"), ON)
def test_the_same_bits_with_drafts(device: str, dtype: str, draft: Any) -> None:
    requests = asked()
    where = {"device": device, "dtype": dtype}
    own = {} if draft == "ngram" else {"draft_dtype": dtype}
    with load(**where) as session:
        expected = alone(session, requests)
        # Prompts in pieces, and too few pages for all.
        few = {"kv_tokens": 5 * PAGE, "max_tokens": 24, "max_sequences": 7}
        with load(**where, **few, draft=draft, **own, draft_tokens=5) as drafting:
            for _ in range(2):
                assert together(drafting, requests) == expected
            stats = drafting.stats
            assert stats["preemptions"] > 0
            assert stats["pages_used"] == 0
            assert stats["drafted_tokens"] > 50
            if draft == LLAMA:  # the draft draws the tokens that the model itself draws
                assert stats["accepted_tokens"] == stats["drafted_tokens"]
        with load(**where, draft=draft, **own) as drafting:
            assert alone(drafting, requests) == expected
            stats = drafting.stats
            if draft != OTHER:  # two models of random weights hardly ever agree
                assert stats["accepted_tokens"] > 0
                # Where steps overlap, a text whose draft waits for its last token sits out steps
                # that the other text of its request takes: at most one for each token.
                apart = 0 if device == "cpu" else 90
                assert stats["steps"] < session.stats["steps"] + apart
            assert stats["new_tokens"] == session.stats["new_tokens"]


@pytest.mark.parametrize("draft", ["ngram", LLAMA], ids=["ngram", "itself"])
def test_texts_end_within_drafts(plain: GenerationSession, draft: Any) -> None:
    prompt = [5, 6, 7, 8] * 6
    with load(draft=draft, draft_tokens=8) as drafting:
        for new in range(1, 24):
            sampling = Sampling(max_new_tokens=new, ignore_eos=True, logprobs=0)
            assert together(drafting, [(prompt, sampling)]) == alone(plain, [(prompt, sampling)])
        whole = plain.generate([prompt], Sampling(max_new_tokens=40, ignore_eos=True))[0].ids
        for stop in set(whole):
            sampling = Sampling(max_new_tokens=40, ignore_eos=True, stop_ids=[stop])
            (found,) = drafting.generate([prompt], sampling)
            assert found.ids == whole[: whole.index(stop) + 1]
            assert found.finish_reason == "stop"
        to_the_end = Sampling(ignore_eos=True)
        assert together(drafting, [(prompt, to_the_end)]) == alone(plain, [(prompt, to_the_end)])
        assert drafting.stats["accepted_tokens"] > 100


@pytest.mark.parametrize("draft", ["ngram", LLAMA], ids=["ngram", "itself"])
def test_the_next_turn_finds_the_answer_in_the_cache(plain: GenerationSession, draft: Any) -> None:
    sampling = Sampling(max_new_tokens=150, ignore_eos=True, temperature=1.0, seed=2, logprobs=0)
    prompt = list(range(3, 63))
    with load(draft=draft) as drafting:
        for _ in range(2):
            first = drafting.submit(prompt, sampling)
            assert results(first) == alone(plain, [(prompt, sampling)])[0]
            prompt = [*prompt, *first.result().ids, 4]
        usage = first.result().usage
        assert usage.cached_prompt_tokens >= 2 * PAGE
        assert usage.accepted_tokens <= usage.drafted_tokens


@pytest.mark.parametrize("draft", ["ngram", LLAMA], ids=["ngram", "itself"])
def test_adapters_beside_drafts(draft: Any) -> None:
    adapter = GOLDEN / "adapters" / "llama"
    requests = [
        (ids, dataclasses.replace(sampling, adapter=name))
        for ids, sampling in asked(40)
        for name in ("one", None)
    ]
    slots = {"max_adapters": 1, "max_adapter_rank": 8}
    with load(**slots) as session, load(**slots, draft=draft) as drafting:
        for one in (session, drafting):
            one.add_adapter("one", adapter)
        assert together(drafting, requests) == alone(session, requests)
        assert drafting.stats["accepted_tokens"] > 0


def test_what_does_not_draft(plain: GenerationSession) -> None:
    """Penalties, beams and masks; their results are the same as well."""
    kinds: list[dict[str, Any]] = [
        {"repetition_penalty": 1.2},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"num_beams": 3, "n": 2},
        {"draft_tokens": 0},
    ]
    requests: Asked = [
        ([5, 6, 7, 8] * 6, Sampling(max_new_tokens=12, ignore_eos=True, **kind)) for kind in kinds
    ]
    expected = alone(
        plain, [(ids, dataclasses.replace(one, draft_tokens=None)) for ids, one in requests]
    )
    with load(draft="ngram") as drafting:
        assert together(drafting, requests) == expected
        assert drafting.stats["drafted_tokens"] == 0


def test_a_request_drafts_no_more_than_it_asks_for() -> None:
    with load(draft=LLAMA, draft_tokens=6) as session:
        request = session.submit(
            [5, 6], Sampling(max_new_tokens=31, ignore_eos=True, draft_tokens=2)
        )
        usage = request.result().usage
        # Each step gives the two drafts and a token of its own; the prompt's gives one.
        assert (usage.drafted_tokens, usage.accepted_tokens, usage.new_tokens) == (20, 20, 31)
        with pytest.raises(ValueError, match="draft_tokens is 7, expected 0 to 6"):
            session.submit([5], Sampling(draft_tokens=7))
    with pytest.raises(ValueError, match="draft_tokens is -1"):
        Sampling(draft_tokens=-1)


def test_the_draft_model_is_planned() -> None:
    given: dict[str, Any] = {"kv_tokens": 256, "threads": 1, "draft": OTHER, "draft_tokens": 4}
    planned = packhorse.plan_memory(LLAMA, **given)
    without = packhorse.plan_memory(LLAMA, kv_tokens=256, threads=1)
    with load(**given) as session:
        assert session.memory_plan == planned
    draft = packhorse.plan_memory(OTHER, kv_tokens=256, threads=1)
    assert planned.draft_weights == draft.weights
    assert planned.draft_kv_cache == draft.kv_cache
    assert planned.total_bytes > without.total_bytes + draft.weights.bytes + draft.kv_cache.bytes
    assert "for the draft model" in str(planned)
    assert without.draft_bytes == 0
    with pytest.raises(MemoryError, match="weights, adapters and arena take"):
        load(**given, memory_limit=planned.total_bytes - 1)
    # The cache takes the rest of the memory, for both models, if kv_tokens is not given.
    limited = packhorse.plan_memory(LLAMA, draft=OTHER, memory_limit=planned.total_bytes, threads=1)
    assert limited.total_bytes <= planned.total_bytes
    assert limited.draft_kv_cache.bytes > 0


def test_what_is_refused(tmp_path: Path) -> None:
    gemma = GOLDEN / "generation" / "embedding-gemma"
    for options, error in [
        ({"draft_tokens": 3}, "draft_tokens is 3, but nothing drafts"),
        ({"draft_dtype": "int8"}, "draft_dtype is 'int8', but nothing drafts"),
        ({"draft": "ngram", "draft_dtype": "int8"}, "'ngram' is no model"),
        ({"draft": "ngram", "draft_tokens": 0}, "draft_tokens is 0, expected 1 to 32"),
        ({"draft": "ngram", "draft_tokens": 33}, "draft_tokens is 33, expected 1 to 32"),
        ({"draft": gemma}, "the draft model: .*heads.lm"),
    ]:
        with pytest.raises(ValueError, match=error):
            load(**options)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load(draft=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="drafts are of models that generate"):
        packhorse.Session.load(LLAMA, kv_tokens=0, draft="ngram")


def test_a_draft_model_of_another_vocabulary(smollm2: Path) -> None:
    expected = "vocabulary of 49152 tokens, expected that of the model it drafts for: 67"
    with pytest.raises(ValueError, match=expected):
        packhorse.plan_memory(LLAMA, kv_tokens=64, draft=smollm2)


def test_a_pickled_session_drafts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(LLAMA.parent)
    with load(draft="smollm", draft_tokens=3) as session:
        monkeypatch.chdir(GOLDEN)
        again = pickle.loads(pickle.dumps(session))
    with again:
        again.generate([[5, 6]], Sampling(max_new_tokens=9, ignore_eos=True))
        assert again.stats["drafted_tokens"] > 0
        with pytest.raises(ValueError, match="expected 0 to 3"):
            again.submit([5], Sampling(draft_tokens=4))


def test_texts_with_drafts(tmp_path: Path) -> None:
    model = with_kind(LLAMA, tmp_path / "model", "bytes")
    given: dict[str, Any] = {"kv_tokens": 512, "threads": 1}
    options: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True, "details": True}
    with (
        TextModel.load(model, **given) as without,
        TextModel.load(model, **given, draft=LLAMA, draft_tokens=4) as drafting,
    ):
        expected = without.generate("the cat", **options)
        found = drafting.generate("the cat", **options)
        assert (found.text, found.ids) == (expected.text, expected.ids)
        assert found.usage.accepted_tokens > 0
        pieces = drafting.generate("the cat", stream=True, max_new_tokens=30, ignore_eos=True)
        assert "".join(pieces) == expected.text
        off = drafting.generate("the cat", **options, draft_tokens=0)
        assert (off.text, off.usage.drafted_tokens) == (expected.text, 0)
    with pytest.raises(ValueError, match="drafts are of models that generate"):
        TextModel.load(model, kv_tokens=0, draft="ngram")


def test_the_command_line_loads_drafts(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = with_kind(LLAMA, tmp_path / "model", "bytes")
    tokenizer = TextTokenizer.load(folder)
    session = fake_session(lambda *_: [3], 104, eos_ids=[3], max_context=120)
    model = TextModel(session, tokenizer, files=GenerationFiles((3,), {}, {}, {}))
    given: list[dict[str, Any]] = []

    def record(_path: str, **options: Any) -> TextModel:
        given.append(options)
        return model

    monkeypatch.setattr(TextModel, "load", record)
    drafts = ("--draft", "small", "--draft-dtype", "int8", "--draft-tokens", 5)
    assert cli("generate", "model", "the cat", *drafts).status == 0
    named = ("draft", "draft_dtype", "draft_tokens")
    assert [given[0].get(name) for name in named] == ["small", "int8", 5]
    monkeypatch.undo()
    assert failed(cli("generate", str(folder), "x", "--draft-tokens", 5), "nothing drafts")
