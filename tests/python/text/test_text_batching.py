"""TextModel: requests of several threads in one batch."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packhorse import TextModel
from shared_runs import SECONDS, Runs, embeds, gather, in_thread, load_text_model
from tiny_tokenizer import make_tokenizer

pytest.importorskip("tokenizers")

TEXTS = [f"{'the cat sat ' * (i % 5)}on mat {i}" for i in range(20)]


@pytest.fixture
def model(tmp_path: Path, device: str) -> TextModel:
    return load_text_model(tmp_path, "bert-gelu", device)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


# --- sharing


def test_waiting_callers_share_a_batch(model: TextModel, runs: Runs) -> None:
    alone = [model.embed(text) for text in TEXTS]
    first = runs.hold(lambda: model.embed(TEXTS[0]))
    others = gather(model, embeds(model, TEXTS[1:]), 1)
    runs.release()
    for found, expected in zip([first, *others], alone, strict=True):
        np.testing.assert_array_equal(found.result(SECONDS), expected)
        assert found.result().base is None or found.result().base.shape == (1, 32)
    assert runs.sequences == [1, 19]


def test_batches_stay_within_the_plan(tmp_path: Path, device: str, runs: Runs) -> None:
    model = load_text_model(tmp_path, "bert-gelu", device, max_tokens=41, max_sequences=4)
    texts = ["a"] * 6 + ["mat " * 36, "a", "mat " * 30, "b", "c"]  # tokens: 3, 38, 32
    alone = [model.embed(text) for text in texts]
    first = runs.hold(lambda: model.embed("dog"))
    others = gather(model, embeds(model, texts), 1)
    runs.release()
    for found, expected in zip(others, alone, strict=True):
        np.testing.assert_array_equal(found.result(SECONDS), expected)
    assert first.result(SECONDS).shape == (32,)
    # Four of 3 tokens; 3 + 3 + 3 + 32; the one that comes first now, 38 + 3; what is left.
    assert runs.sequences == [1, 4, 4, 2, 1]


def test_long_requests_take_turns_with_short_ones(tmp_path: Path, device: str, runs: Runs) -> None:
    """Rows keep their order, though other callers' runs come between."""
    model = load_text_model(tmp_path, "bert-gelu", device, max_tokens=64, max_sequences=8)
    texts = ["the cat sat on the mat " * 2 + word for word in ("a", "dog", "who", "at")] * 4
    expected, short = model.embed(texts), model.embed("the dog")
    first = runs.hold(lambda: model.embed(texts))
    others = gather(model, [lambda: model.embed("the dog")] * 3, 1)
    runs.release()
    np.testing.assert_array_equal(first.result(SECONDS), expected)
    for found in others:
        np.testing.assert_array_equal(found.result(SECONDS), short)
    assert runs.sequences[1] == 3  # before the rest of the long one


def test_only_equal_outputs_are_mixed(tmp_path: Path, device: str, runs: Runs) -> None:
    model = load_text_model(tmp_path, "bge-m3", device)
    calls: list[Callable[[], Any]] = [
        lambda: model.embed(TEXTS[1]),
        lambda: model.embed_tokens(TEXTS[2]),
        lambda: model.embed_sparse(TEXTS[3]),
        lambda: model.embed(TEXTS[4]),
        lambda: model.embed_tokens(TEXTS[5]),
        lambda: model.embed_sparse(TEXTS[6]),
    ]
    alone = [call() for call in calls]
    first = runs.hold(lambda: model.embed(TEXTS[0]))
    others = gather(model, calls, 1)
    runs.release()
    for found, expected in zip(others, alone, strict=True):
        for one, of_alone in zip(found.result(SECONDS), expected, strict=True):
            np.testing.assert_array_equal(one, of_alone)
    first.result(SECONDS)
    assert runs.done == [
        (1, ("embedding",)),
        (2, ("embedding",)),
        (2, ("vectors",)),
        (2, ("token_weights",)),
    ]


def test_masks_of_several_callers(tmp_path: Path, device: str, runs: Runs) -> None:
    model = load_text_model(tmp_path, "bert-predictions", device, max_predictions=4)
    texts = ["the [MASK]", "[MASK] sat [MASK]", "a [MASK] mat", "in [MASK]", "[MASK] " * 4]
    alone = [model.fill_mask(text) for text in texts]
    assert model.fill_mask(texts) == alone
    first = runs.hold(lambda: model.fill_mask(texts[0]))
    others = gather(model, [lambda text=text: model.fill_mask(text) for text in texts], 1)
    runs.release()
    assert [found.result(SECONDS) for found in others] == alone
    assert first.result() == alone[0]
    assert runs.sequences == [1, 3, 1, 1]  # at most four masks in one


METHODS: dict[str, Callable[[TextModel, Any], Any]] = {
    "bert-gelu": lambda model, texts: model.embed(texts),
    "bert-reranker": lambda model, texts: model.score("who sat", texts),
    "bert-sequence": lambda model, texts: model.classify(texts, top_k=None),
    "bert-tokens": lambda model, texts: model.classify_tokens(
        texts, aggregation_strategy="average", stride=2, max_length=10, ignore_labels=()
    ),
    "bert-answers": lambda model, texts: model.answer(["who sat"] * len(texts), texts, top_k=2),
    "bert-splade": lambda model, texts: model.embed_sparse(texts),
    "bert-colbert": lambda model, texts: model.embed_tokens(texts),
}


def as_bits(result: Any) -> Any:
    if isinstance(result, np.ndarray):
        return result.tobytes()
    return [as_bits(part) for part in result] if isinstance(result, list | tuple) else result


@pytest.mark.parametrize("name", METHODS)
def test_the_same_bits_in_many_threads(tmp_path: Path, device: str, name: str) -> None:
    """Requests of any size, errors among them, in small batches and at an unruly pace."""
    model = load_text_model(tmp_path, name, device, max_tokens=96, max_sequences=6, max_length=40)
    call = METHODS[name]
    some = random.Random(0)
    requests = [[TEXTS[some.randrange(20)] for _ in range(n)] for n in (1, 0, 3, 7, 1, 20, 1)]
    expected = [as_bits(call(model, texts)) for texts in requests]
    interval = sys.getswitchinterval()

    def work(worker: int) -> None:
        choose = random.Random(worker)
        for _ in range(20):
            i = choose.randrange(len(requests))
            if choose.random() < 0.15:
                with pytest.raises(ValueError, match=r"texts\[7\] (is|has a lone surrogate)"):
                    call(model, [*TEXTS[:7], choose.choice([5, "\ud83d"])])
            assert as_bits(call(model, requests[i])) == expected[i]

    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(6) as pool:
            for done in [pool.submit(work, worker) for worker in range(6)]:
                done.result(timeout=120)
    finally:
        sys.setswitchinterval(interval)


def test_copies_share_their_batches(model: TextModel, runs: Runs) -> None:
    import copy

    first = runs.hold(lambda: model.embed("a"))
    others = gather(model, [lambda: copy.copy(model).embed("b"), lambda: model.embed("c")], 1)
    runs.release()
    assert [found.result(SECONDS).shape for found in [first, *others]] == [(32,)] * 3
    assert runs.sequences == [1, 2]


# --- tokenizing


def test_texts_are_tokenized_at_the_same_time(
    model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads are inside of the tokenizer at once, with different lengths."""
    together = threading.Barrier(2)
    tokenizer = model.tokenizer._tokenizer

    class Meeting:
        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def encode_batch_fast(self, *arguments: Any, **options: Any) -> Any:
            together.wait(SECONDS)
            return tokenizer.encode_batch_fast(*arguments, **options)

    expected = [model.embed(TEXTS, max_length=length) for length in (5, 9)]
    monkeypatch.setattr(model.tokenizer, "_tokenizer", Meeting())
    found = [in_thread(lambda n=n: model.embed(TEXTS, max_length=n)) for n in (5, 9)]
    for one, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.result(SECONDS), right)


# --- errors


def test_what_is_wrong_with_a_text_does_not_wait(model: TextModel, runs: Runs) -> None:
    """Nor do empty requests."""
    first = runs.hold(lambda: model.embed("a"))
    with pytest.raises(ValueError, match=r"texts\[1\] is 5"):
        model.embed(["a", 5])  # type: ignore[list-item]
    assert model.embed([]).shape == (0, 32)
    assert not first.done()
    runs.release()
    assert first.result(SECONDS).shape == (32,)
    assert runs.sequences == [1]


def test_types_that_the_model_lacks(tmp_path: Path) -> None:
    from tokenizers import processors

    model = load_text_model(tmp_path, "bert-sequence")
    folder = tmp_path / "bert-sequence"
    tokenizer = make_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:2",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    other = TextModel.load(folder)
    assert other.classify(["a", "b"]) == model.classify(["a", "b"])
    with pytest.raises(ValueError, match=r"texts\[1\] has tokens of type 2; the model has types 0"):
        other.classify(["a", ("a", "b")])


def test_errors_of_a_run_reach_all_who_share_it(model: TextModel, runs: Runs) -> None:
    def fail(number: int) -> None:
        if number == 2:
            raise RuntimeError("the device is gone")

    expected = model.embed("a")
    first = runs.hold(lambda: model.embed("a"))
    runs.before = fail
    others = gather(model, embeds(model, TEXTS[:5]), 1)
    runs.release()
    np.testing.assert_array_equal(first.result(SECONDS), expected)
    for found in others:
        with pytest.raises(RuntimeError, match="the device is gone"):
            found.result(SECONDS)
    assert runs.sequences == [1, 5]
    np.testing.assert_array_equal(model.embed("a"), expected)


def test_close_while_others_wait(model: TextModel, runs: Runs) -> None:
    expected = model.embed("a")
    first = runs.hold(lambda: model.embed("a"))
    others = gather(model, embeds(model, TEXTS[:5]), 1)
    model.close()
    runs.release()
    np.testing.assert_array_equal(first.result(SECONDS), expected)
    for found in others:
        with pytest.raises(RuntimeError, match="this session was closed"):
            found.result(SECONDS)
    with pytest.raises(RuntimeError, match="this session was closed"):
        model.embed("a")
