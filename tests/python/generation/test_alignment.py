"""Weights of cross attention of a prompt's tokens over its source: beside transformers and float64,
and the same bits whatever else runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference_text_to_text
from checkpoints import GOLDEN
from generation_sessions import LLAMA, PAGE, load
from packhorse import GenerationSession, Sampling
from packhorse_weights import inspect_checkpoint
from text_to_text_cases import FOLDER, NAMES, Golden, log_softmax, random_texts


def all_heads(session: GenerationSession) -> list[tuple[int, int]]:
    layers = session.config["stacks"]["decoder"]["layers"]
    heads = [layer["blocks"][1]["num_heads"] for layer in layers]
    return [(i, head) for i, count in enumerate(heads) for head in range(count)]


def weights(found: Any) -> Any:
    return [one.alignment for one in found]


@pytest.mark.parametrize("name", NAMES)
def test_transformers(name: str) -> None:
    """Weights of all layers and heads, of every source and target of the golden models."""
    golden = Golden(name)
    checkpoint = inspect_checkpoint(FOLDER / name)
    tensors = {
        ours: checkpoint.tensors[theirs].data.astype(np.float64)
        for ours, theirs in checkpoint.names.items()
    }
    theirs = np.load(GOLDEN / "alignment.npz")[name]
    with load(FOLDER / name, dtype="float32", kv_tokens=100 * PAGE) as session:
        sampling = Sampling(max_new_tokens=0, alignment_heads=all_heads(session))
        found = session.generate(golden.targets, sampling, sources=golden.sources)
        assert session.stats["pages_used"] == 0
    flat = theirs.reshape(-1, *theirs.shape[2:])
    np.testing.assert_allclose(found[0].alignment, flat, rtol=5e-5, atol=1e-5)
    for one, source, target in list(zip(found, golden.sources, golden.targets, strict=True))[:2]:
        expected = reference_text_to_text.weights_over_source(
            checkpoint.spec, tensors, source, target
        )
        assert one.alignment.dtype == np.float32
        np.testing.assert_allclose(
            one.alignment, expected.reshape(-1, len(target), len(source)), atol=5e-5
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_alone_together_and_preempted(dtype: str) -> None:
    """In prompts of any length, cut into steps of any size, with new tokens or without."""
    wanted = {"alignment_heads": [(1, 0), (0, 1)], "prompt_logprobs": 0}
    with load(FOLDER / "t5", dtype=dtype, threads=2, kv_tokens=200 * PAGE) as session:
        sources, prompts = random_texts(session)
        prompts[3] = np.arange(150, dtype=np.int32) % 90 + 3
        sampling = Sampling(max_new_tokens=0, **wanted)
        together = session.generate(prompts, sampling, sources=sources)
        cut = session.generate(
            prompts, Sampling(max_new_tokens=0, alignment_heads=[(1, 0)], alignment_source=1),
            sources=sources,
        )  # fmt: skip
        assert session.stats["pages_used"] == 0
    for one, source, prompt, first in zip(together, sources, prompts, cut, strict=True):
        assert one.alignment.shape == (2, len(prompt), len(source))
        np.testing.assert_allclose(one.alignment.sum(-1), 1, atol=1e-5)
        np.testing.assert_array_equal(first.alignment, np.ones((1, len(prompt), 1)))
    with load(FOLDER / "t5", dtype=dtype, prefix_cache=False) as session:
        for i, (source, prompt) in enumerate(zip(sources, prompts, strict=True)):
            alone = session.submit(prompt, sampling, source=source).result()
            np.testing.assert_array_equal(alone.alignment, together[i].alignment)
    # Steps that cut prompts, and requests that give way to others.
    generating = Sampling(max_new_tokens=70, ignore_eos=True, **wanted)
    with load(FOLDER / "t5", dtype=dtype, kv_tokens=12 * PAGE, max_tokens=300) as session:
        for one, other in zip(
            session.generate(prompts, generating, sources=sources), together, strict=True
        ):
            np.testing.assert_array_equal(one.alignment, other.alignment)
        assert session.stats["preemptions"] > 0
        assert session.stats["pages_used"] == 0


def test_a_prompt_that_is_cached_is_computed_again() -> None:
    source, prompt = np.arange(3, 80), np.arange(130) % 90 + 3
    with load(FOLDER / "t5") as session:
        session.submit(prompt, Sampling(max_new_tokens=1), source=source).result()
        sampling = Sampling(max_new_tokens=1, alignment_heads=[(0, 0)])
        first, again = (session.submit(prompt, sampling, source=source).result() for _ in range(2))
        np.testing.assert_array_equal(first.alignment, again.alignment)
        assert first.alignment.shape == (1, 130, 77)
        assert np.all(first.alignment.sum(-1) > 0.99)


def test_speech() -> None:
    """Weights over frames, and log-probabilities among tokens of text, beside float64."""
    folder = GOLDEN / "speech" / "whisper"
    checkpoint = inspect_checkpoint(folder)
    tensors = {
        ours: checkpoint.tensors[theirs].data.astype(np.float64)
        for ours, theirs in checkpoint.names.items()
    }
    frames = np.random.default_rng(0).normal(size=(100, 6)).astype(np.float32)
    prompt = [257, 258, 262, 266, 70, 80, 90, 256]
    texts = 256  # tokens of text, the first ones
    with load(folder, dtype="float32", kv_tokens=8192) as session:
        sampling = Sampling(
            max_new_tokens=0, prompt_logprobs=0, filtered_logprobs=True, allowed_ids=range(texts),
            alignment_heads=all_heads(session), alignment_source=33,
        )  # fmt: skip
        found = session.submit_features(prompt, frames, sampling).result()
    read = reference_text_to_text.hidden_of_audio(checkpoint.spec, tensors, frames)
    args = checkpoint.spec, tensors, read, np.array(prompt)
    expected = reference_text_to_text.weights_over_audio(*args)[..., :33]
    expected = (expected / expected.sum(-1, keepdims=True)).reshape(-1, len(prompt), 33)
    np.testing.assert_allclose(found.alignment, expected, atol=1e-5)
    logprobs = log_softmax(reference_text_to_text.speech_logits(*args)[:, :texts])
    for row in (3, 4, 5):
        wanted = logprobs[row, prompt[row + 1]]
        assert found.prompt_logprobs.logprobs[row] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alignment_heads": [(2, 0)]}, r"one of alignment_heads is \(2, 0\), expected a layer"),
        ({"alignment_heads": [(0, 9)]}, r"\(0, 9\), expected a layer from 0 to 1 and a head"),
        ({"alignment_heads": [(0, 0)] * 99}, "the number of alignment_heads is 99, expected at"),
        ({"alignment_heads": [(0, 0)], "alignment_source": 4}, "alignment_source is 4, expected 1"),
        ({"alignment_source": 2}, "alignment_source is 2 without alignment_heads"),
    ],
)
def test_refusals(settings: dict[str, Any], message: str) -> None:
    with load(FOLDER / "t5") as session:
        with pytest.raises(ValueError, match=message):
            session.submit([0], Sampling(**settings), source=[3, 4, 5])
        found = session.submit([0], Sampling(max_new_tokens=2), source=[3, 4, 5]).result()
        assert found.alignment is None


def test_models_without_cross_attention() -> None:
    with (
        load(LLAMA) as session,
        pytest.raises(ValueError, match="none in a model without cross attention"),
    ):
        session.submit([1, 2], Sampling(alignment_heads=[(0, 0)]))
    for given in ([(0,)], [(-1, 0)], "00", [(0, True)]):
        with pytest.raises(ValueError, match="alignment_heads"):
            Sampling(alignment_heads=given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="alignment_source is 0"):
        Sampling(alignment_heads=[(0, 0)], alignment_source=0)
