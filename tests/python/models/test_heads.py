"""Masked language models, sparse vectors, vectors and weights of tokens, layers after pooling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
import reference
import reference_heads
from cases import offsets
from models import (
    HEAD_OPTIONS,
    Tensors,
    random_sequences,
    random_tensors,
    tiny_spec,
    write_model,
)
from packhorse import Session, ops, pack, plan_memory
from precisions import Precision
from test_model import as_seen

LENGTHS = ([2, 130, 0, 1, 64, 40], [1] * 9, [64, 64], [200], [0, 0], [])
POISON = 49  # an id whose row overflows


def load(folder: Path, device: str, dtype: str = "float32", **options: Any) -> Session:
    sizes = {"max_tokens": 512, "max_sequences": 16}
    has_head = not {"masked_lm", "lm"}.isdisjoint(packhorse_spec(folder).get("heads", {}))
    return Session.load(
        folder, device, dtype, **{**sizes, "max_predictions": 40 * has_head, **options}
    )


def packhorse_spec(folder: Path) -> dict[str, Any]:
    from packhorse_weights import resolve_model

    return resolve_model(folder).spec


def rows_of(tokens: int) -> np.ndarray:
    return np.arange(1, tokens, 7, dtype=np.int32)


@pytest.mark.parametrize("changes", HEAD_OPTIONS.values(), ids=HEAD_OPTIONS)
def test_outputs(
    changes: dict[str, Any], precision: Precision, device: str, tmp_path: Path
) -> None:
    spec = tiny_spec(**changes)
    tensors = random_tensors(spec)
    session = load(write_model(tmp_path, spec, tensors), device, precision.name)
    seen: Tensors = as_seen(tensors, precision)
    for lengths in LENGTHS:
        cu_seqlens = offsets(lengths)
        ids = np.concatenate([np.zeros(0, np.int32), *random_sequences(lengths)])
        names = [name for name in session.outputs if name != "pooled"]
        rows = rows_of(ids.size) if "predictions" in names else None
        found = session.run((ids, cu_seqlens), outputs=names, rows=rows)
        expected = reference_heads.outputs(spec, seen, found.hidden, cu_seqlens, rows)
        assert {"hidden", *expected} == set(names)
        assert session.embedding_size == expected["embedding"].shape[1]
        for name, values in expected.items():
            assert getattr(found, name).shape == values.shape
            precision.check(getattr(found, name), values, steps=4)
            one = session.run(
                (ids, cu_seqlens), outputs=[name], rows=rows if name == "predictions" else None
            )
            np.testing.assert_array_equal(getattr(one, name), getattr(found, name))


def bits(session: Session, batch: list[np.ndarray]) -> list[dict[str, bytes]]:
    """Bits of each sequence: every output, predictions of its first token."""
    packed = pack(batch)
    starts = packed.cu_seqlens[:-1][packed.lengths > 0]
    predicts = "predictions" in session.outputs
    found = session.run(packed, outputs=list(session.outputs), rows=starts if predicts else None)
    first = np.searchsorted(starts, packed.cu_seqlens)
    result = []
    for i in range(len(batch)):
        parts = {}
        for name, (per_token, _) in session.outputs.items():
            part = slice(i, i + 1)
            if per_token:
                part = slice(*packed.cu_seqlens[i : i + 2])
            if name == "predictions":
                part = slice(*first[i : i + 2])
            parts[name] = getattr(found, name)[part].tobytes()
        result.append(parts)
    return result


@pytest.mark.parametrize("changes", HEAD_OPTIONS.values(), ids=HEAD_OPTIONS)
def test_bits_do_not_depend_on_the_batch(
    changes: dict[str, Any], precision: Precision, device: str, tmp_path: Path
) -> None:
    spec = tiny_spec(**changes)
    tensors = random_tensors(spec)
    tensors["embeddings.word"][POISON] = 3e38
    folder = write_model(tmp_path, spec, tensors)
    sequences = random_sequences([3, 65, 1, 130, 17, 64, 0, 33], vocab_size=POISON)
    poison = np.full(5, POISON, np.int32)
    session = load(folder, device, precision.name, threads=1)
    alone = [bits(session, [sequence])[0] for sequence in sequences]
    for threads in (1, 3):
        session = load(folder, device, precision.name, threads=threads)
        assert bits(session, sequences) == alone
        assert bits(session, sequences[::-1]) == alone[::-1]
        assert bits(session, [poison, *sequences])[1:] == alone


def test_predictions_are_of_rows_and_planned(tiny_model: Path, tmp_path: Path) -> None:
    spec = tiny_spec(**HEAD_OPTIONS["masked-lm"])
    folder = write_model(tmp_path, spec)
    batch = pack([[1, 2, 3], [4, 5]])
    session = Session.load(folder, max_tokens=64, max_predictions=3)

    def run(rows: Any, **options: Any) -> Any:
        return session.run(batch, outputs=["predictions"], rows=rows, **options)

    assert run([0, 4]).predictions.shape == (2, 50)
    assert run([]).predictions.shape == (0, 50)
    out = np.zeros((1, 50), np.float32)
    assert run([4], out={"predictions": out}).predictions is out
    assert out.any()
    for rows, message in (
        ([0, 1, 2, 3], "prediction_rows holds 4 rows; .* max_predictions = 3"),
        ([5], r"prediction_rows\[0\] = 5 is out of range; .* tokens of the batch = 5"),
        ([-1], r"prediction_rows\[0\] = -1 is out of range"),
        ([1, 1], r"prediction_rows\[1\] = 1 after 1; expected each row once, in ascending order"),
        ([1.5], "rows has dtype float64, expected integers"),
        (None, "give both"),
    ):
        with pytest.raises(ValueError, match=message):
            run(rows)
    with pytest.raises(ValueError, match="give both"):
        session.run(batch, rows=[1])
    with pytest.raises(ValueError, match="rows of one batch: use run"):
        session.run_many([[1]], outputs=["predictions"])
    without = Session.load(folder, max_tokens=64)
    with pytest.raises(ValueError, match="asked for.*: hidden, embedding; load it with max_pred"):
        without.run(batch, outputs=["predictions"], rows=[0])
    with pytest.raises(ValueError, match=r"max_predictions is 1, but this model has no"):
        Session.load(tiny_model, max_tokens=64, max_predictions=1)
    with pytest.raises(ValueError, match="max_predictions is 65, expected 0 to max_tokens 64"):
        plan_memory(spec, max_tokens=64, max_predictions=65)


def test_what_is_not_asked_for_is_not_planned() -> None:
    """A masked language model loaded for its hidden states has no weights over the vocabulary."""
    sizes = {"max_tokens": 64, "max_sequences": 4}
    spec = tiny_spec(**HEAD_OPTIONS["masked-lm"], vocab_size=3000)
    names = {b.name for b in plan_memory(spec, **sizes).weights.buffers}
    assert not any(name.startswith("masked_lm") for name in names)
    encoder = {**spec, "heads": {}}
    assert plan_memory(spec, **sizes).total_bytes == plan_memory(encoder, **sizes).total_bytes
    causal = tiny_spec(**HEAD_OPTIONS["lm"], vocab_size=3000)
    assert plan_memory(causal, **sizes).total_bytes == plan_memory(encoder, **sizes).total_bytes
    predicting = plan_memory(causal, **sizes, max_predictions=5)
    assert "lm.decoder.weight" in {b.name for b in predicting.weights.buffers}
    predicting = plan_memory(spec, **sizes, max_predictions=5)
    assert "masked_lm.decoder.weight" in {b.name for b in predicting.weights.buffers}
    planned = {b.name: b.bytes for b in predicting.arena.buffers}
    assert planned["predictions"] == 5 * 3000 * 4
    assert "sparse" not in planned


def test_no_logits_of_all_tokens_are_planned() -> None:
    """Sparse vectors of 30522 entries: nothing in the plan grows with tokens and entries alike."""
    spec = tiny_spec(**{**HEAD_OPTIONS["sparse"], "vocab_size": 30522})
    arenas = [
        plan_memory(spec, max_tokens=tokens, max_sequences=4, threads=2).arena.bytes
        for tokens in (1024, 4096)
    ]
    assert arenas[1] - arenas[0] < 3072 * 30522 // 4  # under a byte for four logits


def test_shared_weights_are_those_of_the_same_heads(tmp_path: Path) -> None:
    folder = write_model(tmp_path, tiny_spec(**HEAD_OPTIONS["masked-lm"]))
    first = Session.load(folder, max_tokens=64)
    second = Session.load(folder, max_tokens=64, max_predictions=2)
    assert second.run([[1, 2]], outputs=["predictions"], rows=[1]).predictions.any()
    assert first.run([[1, 2]]).hidden.any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": {"masked_lm": {}}}, "field 'heads.masked_lm.activation' is missing"),
        ({"heads": {"masked_lm": {"activation": "gelu", "sparse_logs": 2}}}, "lm.sparse_logs"),
        ({"heads": {"masked_lm": {"activation": "elu"}}}, "'heads.masked_lm.activation' is"),
        ({"heads": {"masked_lm": {"activation": "gelu", "x": 1}}}, "'heads.masked_lm.x'"),
        ({"heads": {"vectors": {"size": 0}}}, "'heads.vectors.size' is 0"),
        ({"heads": {"vectors": 3}}, "heads.vectors"),
        ({"heads": {"token_weights": 1}}, "'heads.token_weights' is 1, expected true or false"),
        (
            {"embedding": {"pooling": "cls", "normalize": False, "dense": {}}},
            "'embedding.dense' is {}, expected a list of objects",
        ),
        (
            {"embedding": {"pooling": "cls", "normalize": False, "dense": [{"size": -1}]}},
            r"'embedding.dense\[0\].size' is -1",
        ),
    ],
)
def test_refused_specs(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_memory(tiny_spec(**changes))


def test_batches_of_many_splits(tmp_path: Path) -> None:
    folder = write_model(tmp_path, tiny_spec(**HEAD_OPTIONS["three-outputs"]))
    rows = random_sequences([5, 0, 9, 1, 12, 30])
    names = ["embedding", "token_weights", "vectors"]
    small = Session.load(folder, max_tokens=32, max_sequences=2).run_many(rows, names)
    whole = Session.load(folder, max_tokens=64).run(pack(rows), names)
    for name in names:
        np.testing.assert_array_equal(getattr(small, name), getattr(whole, name))


def test_sparse_pool(precision: Precision, device: str) -> None:
    """Every way that sequences may lie across blocks of rows, and panels that are not full."""
    random = np.random.default_rng(0)
    options = {"device": device, "dtype": precision.name}
    for k, n in ((8, 8), (48, 200), (64, 193), (33, 1000)):
        weight, bias = random.normal(0, k**-0.5, (n, k)), random.normal(0, 0.3, n)
        for lengths in ([1], [63, 1, 1, 0, 64, 130], [0, 5, 0], [], [300]):
            cu_seqlens = offsets(lengths)
            x = random.normal(0, 1, (cu_seqlens[-1], k))
            for b, sum, twice in ((bias, False, False), (None, True, False), (bias, True, True)):
                how = {"bias": b, "sum": sum, "twice": twice}
                found = ops.sparse_pool(x, weight, cu_seqlens, **how, **options)
                logits = reference.linear(precision.activations(x), precision.round(weight), b)
                expected = reference_heads.sparse(logits, cu_seqlens, sum, twice)
                # Logits of many rows, each rounded to the precision, are in a sum.
                precision.check(found, expected, steps=4 if sum else 1)


def test_not_a_number_stays_in_its_sequence(device: str) -> None:
    x = np.ones((6, 8))
    x[4] = np.nan
    found = ops.sparse_pool(x, np.eye(8), [0, 3, 6], device=device)
    np.testing.assert_allclose(found[0], np.log(2), rtol=1e-6)
    assert np.isnan(found[1]).all()
    found = ops.sparse_pool(x, np.eye(8), [0, 3, 6], sum=True, device=device)
    np.testing.assert_allclose(found[0], 3 * np.log(2), rtol=1e-6)
    assert np.isnan(found[1]).all()


def test_sparse_entries() -> None:
    rows = np.array([[0, 0.5, 0, 2], [0, 0, 0, 0]], np.float32)
    (ids, weights), empty = packhorse.sparse_entries(rows)
    assert ids.tolist() == [1, 3]
    assert weights.tolist() == [0.5, 2]
    assert [part.size for part in empty] == [0, 0]


def test_lexical_weights() -> None:
    weights = np.array([[9.0], [0.5], [0.7], [0.0], [0.6]], np.float32)
    found = packhorse.lexical_weights([2, 7, 8, 9, 7], weights, special={2})
    assert found == pytest.approx({7: 0.6, 8: 0.7})
    with pytest.raises(ValueError, match="token_weights has 5 numbers, ids has 1"):
        packhorse.lexical_weights([1], weights)


def test_late_interaction() -> None:
    query = np.array([[1, 0], [0, 1]], np.float32)
    document = np.array([[0.5, 0.1], [0.2, 0.9], [0.6, 0]], np.float32)
    assert packhorse.late_interaction(query, document) == pytest.approx(1.5)
    assert packhorse.late_interaction(query, document[:0]) == 0
    with pytest.raises(ValueError, match=r"query is \(2, 2\) and document \(3,\)"):
        packhorse.late_interaction(query, document[:, 0])
