"""Sessions that generate, over real models: against transformers token for token, and with the same
bits whatever runs beside a request. See tests/golden/make_generation_golden.py."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import packhorse
import pytest
from packhorse import GeneratedTokens, GenerationSession, Sampling, TextModel

GOLDEN = Path(__file__).parents[2] / "golden"
FOLDERS = sorted(path.parent for path in GOLDEN.glob("generation/*/golden.npz"))
MODELS = [path for path in FOLDERS if "continuations" in np.load(path / "golden.npz")]
# Grouped heads and rotated keys; learned positions; a window and soft caps; compressed attention.
SOME = [GOLDEN / "generation" / name for name in ("llama", "gpt2", "gemma2", "zaya")]


class Cached(NamedTuple):
    """A model with a cache of another dtype than its activations."""

    folder: Path
    kv_cache_dtype: str

    @property
    def name(self) -> str:
        return f"{self.folder.name} in {self.kv_cache_dtype}"


CASES = [*SOME, Cached(GOLDEN / "generation" / "llama", "float8")]
PAGE = 64  # tokens of a page of the cache
GREEDY = Sampling(max_new_tokens=200, ignore_eos=True, logprobs=2)
DRAWN = Sampling(
    max_new_tokens=60,
    ignore_eos=True,
    logprobs=0,
    temperature=1.3,
    top_k=40,
    top_p=0.95,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    seed=7,
    n=2,
)

Ids = Sequence[int]


def load(folder: Path | Cached, **options: Any) -> GenerationSession:
    given: dict[str, Any] = {"kv_tokens": 64 * PAGE, "threads": 1, **options}
    if isinstance(folder, Cached):
        folder, given["kv_cache_dtype"] = folder
    session = packhorse.Session.load(folder, **given)
    assert isinstance(session, GenerationSession)
    return session


def prompts_of(folder: Path | Cached) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts of 1 to 300 tokens, and how transformers continues them."""
    folder = folder.folder if isinstance(folder, Cached) else folder
    with np.load(folder / "golden.npz") as golden:
        ends = np.cumsum(golden["prompt_lengths"])[:-1]
        prompts = [row.tolist() for row in np.split(golden["prompts"], ends)]
        return prompts, golden["continuations"].tolist()


@pytest.fixture(params=CASES, ids=lambda one: one.name)
def folder(request: pytest.FixtureRequest) -> Path | Cached:
    case: Path | Cached = request.param
    return case


@pytest.mark.arm
@pytest.mark.parametrize("model", MODELS, ids=lambda one: one.name)
def test_greedy_tokens_of_transformers(model: Path) -> None:
    """All prompts of a family are continued at once."""
    prompts, expected = prompts_of(model)
    with load(model) as session:
        found = session.generate(prompts, GREEDY)
    assert [one.ids for one in found] == expected
    assert {one.finish_reason for one in found} == {"length"}
    for one in found:
        assert [top[0] for top in one.top_logprobs] == list(zip(one.ids, one.logprobs, strict=True))


def alone(session: GenerationSession, prompts: Sequence[Ids], sampling: Sampling) -> list[Any]:
    return [session.generate([prompt], sampling)[0] for prompt in prompts]


def outcome(results: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Results that have to be the same, to the last bit."""
    flat: list[GeneratedTokens] = []
    for one in results:
        flat += one if isinstance(one, list) else [one]
    return [(one.ids, one.logprobs, one.top_logprobs, one.finish_reason) for one in flat]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_the_same_bits_whatever_runs_beside(folder: Path | Cached, sampling: Sampling) -> None:
    prompts, _ = prompts_of(folder)
    with load(folder, prefix_cache=False) as session:
        expected = outcome(alone(session, prompts, sampling))
        assert len({tuple(ids) for ids, *_ in expected}) == len(expected)
        assert outcome(session.generate(prompts, sampling)) == expected
        turned = session.generate([*prompts[::-1], *prompts], sampling)
        assert outcome(turned[len(prompts) :]) == expected


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize(("max_tokens", "max_sequences"), [(7, 3), (33, 4), (65, 64)])
def test_the_same_bits_however_prompts_are_cut(
    folder: Path | Cached, max_tokens: int, max_sequences: int, sampling: Sampling
) -> None:
    prompts, _ = prompts_of(folder)
    with load(folder) as session:
        expected = outcome(session.generate(prompts, sampling))
    with load(folder, max_tokens=max_tokens, max_sequences=max_sequences) as session:
        assert outcome(session.generate(prompts, sampling)) == expected


def test_the_same_bits_from_the_prefix_cache(folder: Path | Cached) -> None:
    prompts, _ = prompts_of(folder)
    longest = prompts[-1]
    branches = [longest[:200] + prompts[2], longest[: 2 * PAGE], longest, longest[: 2 * PAGE + 1]]
    with load(folder, prefix_cache=False) as session:
        expected = outcome(session.generate(branches, GREEDY))
    with load(folder) as session:
        session.generate([longest], GREEDY)
        found = session.generate(branches, GREEDY)
        assert outcome(found) == expected
        # Three whole pages of the first, one of the second (a token is left to be computed).
        cached = [one.usage.cached_prompt_tokens for one in found]
        assert cached == [3 * PAGE, PAGE, 4 * PAGE, 2 * PAGE]
        # Generated tokens are a prefix in the cache, too.
        again = longest + found[2].ids[:150]
        hit = session.generate([again], GREEDY)[0]
        assert hit.usage.cached_prompt_tokens > len(longest)
    with load(folder, prefix_cache=False) as session:
        assert outcome(session.generate([again], GREEDY)) == outcome([hit])


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("prefix_cache", [False, True], ids=["no cache", "prefix cache"])
def test_the_same_bits_after_preemption(
    folder: Path | Cached, sampling: Sampling, prefix_cache: bool
) -> None:
    prompts, _ = prompts_of(folder)
    with load(folder) as session:
        expected = outcome(session.generate(prompts, sampling))
    # The longest prompt and its continuation fit, and hardly more.
    most = len(prompts[-1]) + (sampling.max_new_tokens or 0)
    pages = -(-most // PAGE) + 1
    with load(folder, kv_tokens=pages * PAGE, prefix_cache=prefix_cache) as session:
        for _ in range(2):
            assert outcome(session.generate(prompts, sampling)) == expected
        stats = session.stats
        assert stats["preemptions"] > 0
        assert stats["pages_used"] == stats["running"] == stats["queued"] == 0
        assert stats["pages_free"] + stats["pages_cached"] == stats["pages"]


def test_the_same_bits_for_many_callers(folder: Path | Cached) -> None:
    """Threads, with neighbours that come and are cancelled meanwhile."""
    prompts, _ = prompts_of(folder)
    with load(folder, max_tokens=48, max_sequences=6) as session:
        expected = outcome(session.generate(prompts, DRAWN))
        found: dict[int, list[tuple[Any, ...]]] = {}

        def call(number: int) -> None:
            neighbour = session.submit(prompts[number % len(prompts)], GREEDY)
            found[number] = outcome(session.generate(prompts, DRAWN))
            neighbour.cancel()

        threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert list(found.values()) == [expected] * len(threads)


def test_logprobs_are_those_of_the_model(folder: Path | Cached) -> None:
    """Log-probabilities of the prompt and of generated tokens are those of the logits of
    `Session.run`. Where scores are capped, a second request has the first one as its prompt."""
    prompt = prompts_of(folder)[0][2]
    with load(folder) as session:
        greedy = Sampling(max_new_tokens=40, ignore_eos=True, logprobs=3, prompt_logprobs=3)
        made = session.generate([prompt], greedy)[0]
        whole = session.generate([prompt + made.ids], Sampling(max_new_tokens=0, prompt_logprobs=3))
        read = whole[0].prompt_logprobs
    assert read.logprobs[len(prompt) - 1 :] == made.logprobs
    assert read.top[len(prompt) - 1 :] == made.top_logprobs
    assert read.logprobs[: len(prompt) - 1] == made.prompt_logprobs.logprobs
    if isinstance(folder, Cached) or folder.name == "gemma2":
        return  # `Session.run` has no cache, and no capped scores
    ids = np.array(prompt + made.ids, np.int32)
    with packhorse.Session.load(folder, max_predictions=ids.size) as model:
        rows = np.arange(ids.size - 1, dtype=np.int32)
        logits = model.run([ids], outputs=["predictions"], rows=rows).predictions.astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    np.testing.assert_allclose(read.logprobs, logprobs[rows, ids[1:]], atol=1e-4)
    top = np.argsort(-logprobs, axis=1)[:, :3]
    assert [[token for token, _ in row] for row in read.top] == top.tolist()


def test_beams_part_with_all_of_their_pages(folder: Path | Cached) -> None:
    """Pages that beams copy from each other hold what a prompt of the same text computes."""
    prompt = prompts_of(folder)[0][-1][:100]
    beams = Sampling(max_new_tokens=70, ignore_eos=True, logprobs=0, num_beams=4, n=4)
    with load(folder, prefix_cache=False) as session:
        for made in session.generate([prompt], beams)[0]:
            scoring = Sampling(max_new_tokens=0, prompt_logprobs=0)
            scored = session.generate([prompt + made.ids], scoring)[0].prompt_logprobs
            assert scored is not None
            assert scored.logprobs[len(prompt) - 1 :] == made.logprobs


# --- the real model


@pytest.fixture(scope="module")
def lm(smollm2: Path) -> Iterator[TextModel]:
    with TextModel.load(smollm2, dtype="float32", kv_tokens=1024) as model:
        yield model


def test_real_model_continues_as_transformers(lm: TextModel) -> None:
    """transformers reads the same GGUF file."""
    expected = json.loads((GOLDEN / "gguf.json").read_text())["greedy"]
    prompts = [ids for ids, _ in expected.values()]
    new = len(next(iter(expected.values()))[1])
    found = lm.session.generate(prompts, Sampling(max_new_tokens=new, ignore_eos=True))
    assert [one.ids for one in found] == [tokens for _, tokens in expected.values()]


def test_real_model_answers(lm: TextModel) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = lm.apply_chat_template(question)
    assert prompt.startswith("<|im_start|>system\n")  # the template's own
    assert prompt.endswith(
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    made = lm.chat(question, max_new_tokens=24, details=True)
    assert made.text == "The capital of France is Paris."
    assert made.finish_reason == "stop"
    assert made.ids[-1] == lm.tokenizer.id_of("<|im_end|>")
    stream = lm.chat(question, stream=True, max_new_tokens=24)
    pieces = list(stream)
    assert ("".join(pieces), stream.result.ids) == (made.text, made.ids)
    assert len(pieces) > 3


def test_real_model_keeps_to_a_form(lm: TextModel) -> None:
    pytest.importorskip("llguidance")
    assert lm.generate("The date is ", regex=r"\d{4}-\d\d-\d\d", max_new_tokens=16)[4] == "-"
    animal = lm.chat(
        [{"role": "user", "content": "Which animal barks?"}], choices=["a cat", "a dog"]
    )
    assert animal in ("a cat", "a dog")


def test_real_model_draws_the_same_by_a_seed(lm: TextModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0.9, "top_p": 0.9}
    prompts = ["Once upon a time", "The mules carried", "In 1912"]
    together = lm.generate(prompts, seed=3, **options)
    assert [lm.generate(prompt, seed=3, **options) for prompt in prompts] == together
    assert lm.generate(prompts, seed=4, **options) != together


def test_a_model_that_generates_does_not_embed(lm: TextModel) -> None:
    with pytest.raises(ValueError, match="load the model with kv_tokens=0"):
        lm.embed("a text")
    with pytest.raises(ValueError, match="use generate"):
        lm.score("a", ["b"])
