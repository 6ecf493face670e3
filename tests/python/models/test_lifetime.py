"""The end of sessions and models, their copies, and how they get into other processes."""

from __future__ import annotations

import copy
import ctypes
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import GOLDEN
from models import random_sequences
from packhorse import EncoderSession, Session, TextModel
from packhorse.result import FloatArray
from precisions import ModelMaker
from tiny_tokenizer import with_tokenizer

BATCH = [[1, 2, 3], [4, 5]]
TEXTS = ["the cat sat", "on the mat"]
CLOSED = "this session was closed"


def make_text_model(folder: Path, device: str, golden: str = "bert-gelu") -> TextModel:
    pytest.importorskip("tokenizers")
    return TextModel.load(
        with_tokenizer(GOLDEN / golden, folder),
        device,
        max_length=20,
        max_tokens=64,
        max_predictions=8 if "predictions" in golden else 0,
    )


# --- close


def test_a_closed_session_says_so(tiny_model: Path, device: str) -> None:
    session = Session.load(tiny_model, device, max_tokens=64)
    expected = session.run(BATCH).hidden
    assert not session.closed
    session.close()
    session.close()
    assert session.closed
    for use in (
        lambda: session.run(BATCH),
        lambda: session.run([]),
        lambda: session.run(BATCH, on_device=True),
        lambda: session.run_many([]),
        lambda: session.run_many(BATCH),
        lambda: pickle.dumps(session),
        lambda: session.__enter__(),
    ):
        with pytest.raises(RuntimeError, match=CLOSED):
            use()
    assert session.hidden_size == 48
    assert session.memory_plan.total_bytes > 0
    assert "Session(random" in repr(session)
    np.testing.assert_array_equal(Session.load(tiny_model, device).run(BATCH).hidden, expected)


def test_with_closes(tiny_model: Path, device: str) -> None:
    with Session.load(tiny_model, device, max_tokens=64) as session:
        assert session.run(BATCH).hidden.shape == (5, 48)
    assert session.closed
    with pytest.raises(ZeroDivisionError), Session.load(tiny_model, device) as session:
        _ = 1 // 0
    assert session.closed


def resident_bytes() -> int:
    """Resident memory, after freed memory that the C library keeps has been given back: other tests
    may leave much of that."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_close_frees_memory(make_model: ModelMaker, device: str) -> None:
    if device != "cpu":
        pytest.skip("counts memory of the host")
    session = Session.load(make_model(), device, max_tokens=60_000, threads=1)
    session.run([[1] * 300] * 200)  # touches the pages
    before = resident_bytes()
    session.close()
    freed = before - resident_bytes()
    assert freed > session.memory_plan.arena.bytes / 4


def test_close_while_others_run(tiny_model: Path, device: str) -> None:
    """Runs end as they should, or never begin."""
    session = Session.load(tiny_model, device, max_tokens=1024, threads=2)
    sequences = random_sequences([200] * 5)
    expected = session.run(sequences).hidden
    found: list[object] = []
    started = threading.Barrier(4)

    def work() -> None:
        started.wait()
        try:
            for _ in range(100_000):
                np.testing.assert_array_equal(session.run(sequences).hidden, expected)
        except Exception as error:
            found.append(error)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    started.wait()
    session.run(sequences)
    session.close()
    for worker in workers:
        worker.join()
    assert [type(error) for error in found] == [RuntimeError] * 3
    assert all(CLOSED in str(error) for error in found)


USES: dict[str, list[Callable[[TextModel, Any], object]]] = {
    "bert-gelu": [lambda model, texts: model.embed(texts)],
    "bert-answers": [lambda model, texts: model.answer(texts, texts)],
    "bert-predictions": [lambda model, texts: model.fill_mask(texts)],
    "bert-splade": [lambda model, texts: model.embed_sparse(texts)],
    "bert-sequence": [lambda model, texts: model.classify(texts)],
    "bert-reranker": [lambda model, texts: model.score("a", texts)],
    "bert-tokens": [
        lambda model, texts: model.classify_tokens(texts),
        lambda model, texts: model.classify_tokens(texts, aggregation_strategy="max", stride=2),
    ],
}


@pytest.mark.parametrize("golden", USES)
def test_a_closed_text_model_says_so(tmp_path: Path, device: str, golden: str) -> None:
    with make_text_model(tmp_path / "model", device, golden) as model:
        assert not model.session.closed
    model.close()
    for use in USES[golden]:
        for texts in (["a [MASK]"], "a [MASK]", []):
            with pytest.raises(RuntimeError, match=CLOSED):
                use(model, texts)


# --- other processes

models: dict[str, Any] = {}


def keep(session: Session, model: TextModel) -> None:
    models.update(session=session, model=model)


def compute() -> tuple[int, FloatArray, FloatArray]:
    session, model = models["session"], models["model"]
    hidden = session.run(BATCH).hidden
    return os.getpid(), hidden, model.embed([*TEXTS, "the " * 50])


def test_spawned_workers_load_anew(
    tiny_model: Path, tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_model.parent)  # a relative path is the same place for every process
    session = Session.load(tiny_model.name, device, max_tokens=64, threads=2)
    model = make_text_model(tmp_path / "model", device)
    monkeypatch.chdir(tmp_path)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=keep, initargs=(session, model)) as pool:
        process, hidden, embeddings = pool.submit(compute).result(timeout=120)
    assert process != os.getpid()
    np.testing.assert_array_equal(hidden, session.run(BATCH).hidden)
    np.testing.assert_array_equal(embeddings, model.embed([*TEXTS, "the " * 50]))


def test_pickles_have_the_options(tiny_model: Path, tmp_path: Path, device: str) -> None:
    session = Session.load(
        tiny_model, device, max_tokens=77, max_sequences=5, threads=1, output_slots=1
    )
    again = pickle.loads(pickle.dumps(session))
    assert again is not session
    assert repr(again) == repr(session)
    assert again.memory_plan == session.memory_plan
    assert len(pickle.dumps(session)) < 2000  # no weights
    model = make_text_model(tmp_path / "model", device)
    other = pickle.loads(pickle.dumps(model))
    assert repr(other) == repr(model)
    assert (other.max_length, other.session.max_tokens) == (20, 64)
    result = pickle.loads(pickle.dumps(session.run(BATCH, outputs=["hidden", "embedding"])))
    np.testing.assert_array_equal(result.embedding, session.run(BATCH, ["embedding"]).embedding)
    batch = pickle.loads(pickle.dumps(packhorse.pack(BATCH)))
    np.testing.assert_array_equal(session.run(batch).hidden, result.hidden)


def test_pickles_of_relative_paths_are_read_anywhere(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "elsewhere").mkdir()
    folder = with_tokenizer(GOLDEN / "bert-gelu", tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    model = TextModel.load(folder.name, device, max_tokens=64)
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.embed(TEXTS), model.embed(TEXTS))


def test_a_session_made_otherwise_cannot_be_pickled(session: EncoderSession) -> None:
    made = EncoderSession(session._native, session.config, session._options)
    with pytest.raises(TypeError, match=r"cannot be pickled: it was not made by Session\.load"):
        pickle.dumps(made)


# --- copies


def test_copies_share_the_session(session: Session, tmp_path: Path) -> None:
    assert copy.copy(session) is session
    assert copy.deepcopy([session])[0] is session
    model = make_text_model(tmp_path / "model", session.device)
    for made in (copy.copy(model), copy.deepcopy(model)):
        assert type(made) is TextModel
        assert made is not model
        assert made.session is model.session
        assert made.tokenizer is model.tokenizer
        np.testing.assert_array_equal(made.embed(TEXTS), model.embed(TEXTS))
