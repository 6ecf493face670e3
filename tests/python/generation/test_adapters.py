"""LoRA adapters of sessions that generate: against PEFT (tests/golden/make_adapter_golden.py), with
the same bits whatever runs beside a request, added and removed while others run."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import packhorse
import pytest
from adapted_model import adapted_texts
from command_line import Cli, failed
from generation_sessions import LLAMA, ON, PAGE, Held
from generation_sessions import load as load_session
from packhorse import GeneratedTokens, GenerationSession, Sampling, TextModel

GOLDEN = Path(__file__).parents[2] / "golden"
ADAPTERS = sorted(path.parent for path in GOLDEN.glob("adapters/*/golden.npz"))
FEW, GATE, ALL = (GOLDEN / "adapters" / name for name in ("llama_few", "llama_gate", "llama"))
VOCAB = 67

Ids = Sequence[int]


load = partial(load_session, max_adapters=2, kv_tokens=32 * PAGE)


def base_of(adapter: Path) -> Path:
    return GOLDEN / "generation" / adapter.name.partition("_")[0]


def log_probabilities(session: GenerationSession, ids: Ids, adapter: str | None) -> Any:
    """[T, vocab_size] after every token."""
    asked = Sampling(max_new_tokens=1, logprobs=VOCAB, prompt_logprobs=VOCAB, adapter=adapter)
    (found,) = session.generate([ids], asked)
    rows = np.empty((len(ids), VOCAB), np.float64)
    for row, top in zip(rows, [*found.prompt_logprobs.top, *found.top_logprobs], strict=True):
        row[[token for token, _ in top]] = [logprob for _, logprob in top]
    return rows


def log_softmax(logits: npt.NDArray[np.float32]) -> Any:
    wide = logits.astype(np.float64)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def errors(session: GenerationSession, adapter: Path) -> Any:
    with np.load(adapter / "golden.npz") as golden:
        sequences = np.split(golden["ids"], golden["cu_seqlens"][1:-1])
        expected = log_softmax(golden["logits"])
    found = [log_probabilities(session, ids.tolist(), adapter.name) for ids in sequences]
    return np.concatenate(found) - expected


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda one: one.name)
def test_logits_and_tokens_of_peft(adapter: Path) -> None:
    with load(base_of(adapter)) as session, np.load(adapter / "golden.npz") as golden:
        session.add_adapter(adapter.name, adapter)
        assert np.abs(errors(session, adapter)).max() < 5e-4
        prompts = np.split(golden["prompts"], np.cumsum(golden["prompt_lengths"])[:-1])
        asked = Sampling(max_new_tokens=40, ignore_eos=True, adapter=adapter.name)
        found = session.generate(prompts, asked)
        assert [one.ids for one in found] == golden["continuations"].tolist()


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda one: one.name)
@pytest.mark.parametrize("on", [one for one in ON if one[1] != "float32"], ids="-".join)
def test_errors_of_16_bits(on: tuple[str, str], adapter: Path) -> None:
    """No worse than twice what PyTorch's own bfloat16 on the CPU is off."""
    device, dtype = on
    if dtype == "int8":
        pytest.skip("how far int8 is off is tested without adapters")
    with load(base_of(adapter), device=device, dtype=dtype) as session:
        session.add_adapter(adapter.name, adapter)
        found = errors(session, adapter)
    with np.load(adapter / "golden.npz") as golden:
        assert np.sqrt((found**2).mean()) < 2 * golden["bfloat16_error"]


def outcome(one: GeneratedTokens) -> tuple[Any, ...]:
    """Results that have to be the same, to the last bit."""
    assert one.prompt_logprobs is not None
    return one.ids, one.logprobs, one.top_logprobs, one.prompt_logprobs.top


def asked_of(adapter: str | None, tokens: int = 12) -> Sampling:
    return Sampling(
        max_new_tokens=tokens, ignore_eos=True, logprobs=2, prompt_logprobs=2, adapter=adapter
    )


@pytest.mark.parametrize("on", ON, ids="-".join)
def test_the_same_bits_whatever_runs_beside(on: tuple[str, str]) -> None:
    """Requests with three adapters and with none run in the same steps. One without an adapter has
    the bits of a session that knows none."""
    device, dtype = on
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, VOCAB, length).tolist() for length in (1, 40, 7, 23, 3, 70, 2, 9)]
    names = [None, "all", "few", "gate"] * 2
    with load(device=device, dtype=dtype, max_adapters=0) as plain:
        expected = [outcome(plain.generate([ids], asked_of(None))[0]) for ids in prompts]
    with load(device=device, dtype=dtype, max_adapters=3, max_tokens=50) as session:
        for name, folder in (("few", FEW), ("all", ALL), ("gate", GATE)):
            session.add_adapter(name, folder)
        assert session.adapters == ("few", "all", "gate")
        alone = [
            outcome(session.generate([ids], asked_of(name))[0])
            for ids, name in zip(prompts, names, strict=True)
        ]
        for name, one, base in zip(names, alone, expected, strict=True):
            assert (one == base) == (name is None), name
        steps = session.stats["steps"]
        for _ in range(2):  # slots have another order in the second round
            requests = [
                session.submit(ids, asked_of(name))
                for ids, name in zip(prompts, names, strict=True)
            ]
            assert [outcome(one.results()[0]) for one in requests] == alone
            prompts, names, alone = prompts[::-1], names[::-1], alone[::-1]
        assert session.stats["steps"] - steps < 2 * 12 * len(prompts)


def test_several_sequences_and_beams() -> None:
    with load() as session:
        session.add_adapter("all", ALL)
        drawn = Sampling(max_new_tokens=5, n=3, temperature=1.0, seed=1, adapter="all")
        one = session.generate([[1, 2, 3]], drawn)
        session.add_adapter("few", FEW)
        assert [two.ids for two in session.generate([[1, 2, 3]], drawn)[0]] == [
            two.ids for two in one[0]
        ]
        beams = Sampling(max_new_tokens=5, num_beams=3, adapter="all")
        assert session.generate([[1, 2, 3]], beams)[0].score < 0


def test_added_and_removed_while_others_run() -> None:
    prompt = list(range(40))
    asked = {name: asked_of(name, 150) for name in (None, "all")}
    with load(max_adapters=2) as session:
        session.add_adapter("all", ALL)
        expected = {
            name: outcome(session.generate([prompt], one)[0]) for name, one in asked.items()
        }
        session.add_adapter("few", FEW)
        few = outcome(session.generate([prompt], asked_of("few"))[0])
        session.remove_adapter("few")
        failures: list[str] = []
        done = threading.Event()

        def generate(name: str | None) -> None:
            while not done.is_set():
                if outcome(session.generate([prompt], asked[name])[0]) != expected[name]:
                    failures.append(f"{name}")

        threads = [threading.Thread(target=generate, args=(name,)) for name in asked]
        for thread in threads:
            thread.start()
        try:
            for i in range(6):
                name, folder = ("few", FEW) if i % 2 else ("gate", GATE)
                session.add_adapter(name, folder)
                found = outcome(session.generate([prompt], asked_of(name))[0])
                assert (found == few) == (name == "few")
                session.remove_adapter(name)
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert failures == []


def test_requests_of_a_removed_adapter_end_with_it() -> None:
    held = Held(tokens=3)
    asked = Sampling(max_new_tokens=9, ignore_eos=True, adapter="all")
    with load(max_adapters=1) as session:
        session.add_adapter("all", ALL)
        (expected,) = session.generate([[1, 2]], asked)
        request = session.submit([1, 2], replace(asked, mask=held))
        assert held.reached.wait(10)
        session.remove_adapter("all")
        assert session.adapters == ()
        with pytest.raises(ValueError, match="adapter is 'all', expected none: no adapter has"):
            session.submit([1, 2], asked)
        with pytest.raises(RuntimeError, match=r"no slot is free.*'all \(removed, still in use\)'"):
            session.add_adapter("few", FEW)
        held.go_on.set()
        assert request.results()[0].ids == expected.ids
        session.add_adapter("few", FEW)
        assert session.adapters == ("few",)


def test_prefixes_of_different_adapters_are_not_shared() -> None:
    prompt = [i % VOCAB for i in range(2 * PAGE + 9)]

    def cached(session: GenerationSession, name: str | None) -> tuple[int, Any]:
        asked = Sampling(max_new_tokens=8, ignore_eos=True, logprobs=1, adapter=name)
        (one,) = session.generate([prompt], asked)
        return one.usage.cached_prompt_tokens, (one.ids, one.logprobs)

    with load(prefix_cache=False) as session:
        session.add_adapter("all", ALL)
        session.add_adapter("few", FEW)
        expected = {name: cached(session, name)[1] for name in (None, "all", "few")}
    with load() as session:
        session.add_adapter("all", ALL)
        session.add_adapter("few", FEW)
        for count in (0, 2 * PAGE):
            for name, result in expected.items():
                assert cached(session, name) == (count, result)
        session.remove_adapter("few")
        session.add_adapter("again", FEW)  # in the same slot
        assert cached(session, "again") == (0, expected["few"])
        session.remove_adapter("all")
        session.add_adapter("all", FEW)  # under the same name
        assert cached(session, "all") == (0, expected["few"])
        assert cached(session, None) == (2 * PAGE, expected[None])


def test_prefixes_of_different_salts_are_not_shared() -> None:
    prompt = [i % VOCAB for i in range(2 * PAGE + 9)]
    with load() as session:
        session.add_adapter("all", ALL)
        found = {}
        for count in (0, 2 * PAGE):
            for name in (None, "all"):
                for salt in (0, 1, 2**29):
                    asked = Sampling(max_new_tokens=8, adapter=name, cache_salt=salt)
                    (one,) = session.generate([prompt], asked)
                    assert one.usage.cached_prompt_tokens == count
                    assert found.setdefault(name, one.ids) == one.ids
    for wrong in (-1, 2**29 + 1, 1.0, True, "a"):
        with pytest.raises(ValueError, match="cache_salt is .*, expected a whole number from 0"):
            Sampling(cache_salt=wrong)  # type: ignore[arg-type]


def test_memory_is_planned() -> None:
    with load(max_adapters=0) as session:
        plain = session.memory_plan
    assert plain.adapters.bytes == 0
    options: dict[str, Any] = {"kv_tokens": 32 * PAGE, "max_adapters": 3, "max_adapter_rank": 5}
    with load(**options) as session:
        plan = session.memory_plan
        assert plan.total_bytes == (
            plan.weights.bytes + plan.arena.bytes + plan.adapters.bytes + plan.kv_cache.bytes
        )
        # Rows of A and B of qkv, output, gate and up, down; heads of 8 are stored as 16 columns.
        numbers = 3 * 32 + (4 + 2 * 2) * 16 + 4 * 16 + 32 + 2 * 32 + 2 * 48 + 48 + 32
        least = 2 * 3 * 5 * 4 * numbers
        assert least <= plan.adapters.bytes < least + 30 * 256
        assert "adapters" in str(plan)
        assert packhorse.plan_memory(LLAMA, threads=1, **options) == plan
        with pytest.raises(ValueError, match="rank 8, but max_adapter_rank is 5"):
            session.add_adapter("few", FEW)
    with pytest.raises(MemoryError, match="a cache of .* weights, adapters and arena"):
        load(**options, memory_limit=plan.total_bytes - 1)


def test_errors() -> None:
    asked = Sampling(max_new_tokens=1, adapter="few")
    with load(max_adapters=0) as session:
        with pytest.raises(ValueError, match="loaded with max_adapters 0"):
            session.generate([[1]], asked)
        with pytest.raises(RuntimeError, match="takes no adapters: load it with max_adapters"):
            session.add_adapter("few", FEW)
    with load() as session:
        with pytest.raises(ValueError, match="expected none: no adapter has been added"):
            session.generate([[1]], asked)
        session.add_adapter("few", FEW)
        session.add_adapter("gate", GATE)
        with pytest.raises(ValueError, match="adapter 'few' already: remove it first"):
            session.add_adapter("few", FEW)
        with pytest.raises(RuntimeError, match="max_adapters is 2, taken by 'few', 'gate'; remove"):
            session.add_adapter("all", ALL)
        with pytest.raises(ValueError, match="adapter is 'x', expected one of 'few', 'gate'"):
            session.remove_adapter("x")
        with pytest.raises(ValueError, match="name is '', expected a text"):
            session.add_adapter("", FEW)
        session.remove_adapter("gate")
        with pytest.raises(ValueError, match="of another base model"):
            session.add_adapter("gemma", GOLDEN / "adapters" / "gemma2")
        session.add_adapter("all", ALL)  # a failed adapter has kept no slot
        assert session.generate([[1]], asked)[0].finish_reason == "length"
    with pytest.raises(ValueError, match="adapters are supported where a model generates"):
        packhorse.Session.load(LLAMA, kv_tokens=0, max_adapters=1)
    with pytest.raises(ValueError, match="max_adapter_rank is 0, expected 1 to 4096"):
        load(max_adapter_rank=0)
    with pytest.raises(ValueError, match="adapter is 3, expected the name of an adapter, or None"):
        Sampling(adapter=3)  # type: ignore[arg-type]


def test_of_a_text_model(tmp_path: Path, cli: Cli) -> None:
    folder, adapter = adapted_texts(tmp_path)
    text = "the cat sat"
    options: dict[str, Any] = {"kv_tokens": 256, "threads": 1, "max_adapters": 1}
    with TextModel.load(folder, **options) as model:
        assert isinstance(model.session, GenerationSession)
        plain = model.generate(text, max_new_tokens=8)
        model.session.add_adapter("mine", adapter)
        found = model.generate(text, max_new_tokens=8, adapter="mine")
        assert found != plain
        assert "".join(model.generate(text, max_new_tokens=8, adapter="mine", stream=True)) == found
        assert model.generate(text, max_new_tokens=8) == plain
        with pytest.raises(ValueError, match="adapter is 'x', expected one of 'mine'"):
            model.generate(text, adapter="x")
    command = ("generate", folder, text, "--max-new-tokens", 8, "--kv-tokens", 256)
    assert cli(*command).out == f"{text}{plain}\n"
    assert cli(*command, "--adapter", adapter).out == f"{text}{found}\n"
    assert failed(cli(*command, "--adapter", folder), "no adapter_config.json")
