"""The Python API: loading, the forms of a batch, outputs, plans."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import packhorse
import pytest
from cases import offsets
from models import random_sequences, random_tensors, tiny_spec, write_model
from packhorse import PackedTokens, Session
from packhorse._native.session import NativeSession
from precisions import ModelMaker

pytestmark = pytest.mark.arm

ALL = ["hidden", "embedding", "pooled"]
SEQUENCES = [[1, 2, 3, 4], [5], [], [6, 7, 8]]


def bits(array: np.ndarray) -> bytes:
    return array.tobytes()


# --- the forms of a batch


def test_every_form_of_a_batch_gives_the_same_bits(session: Session) -> None:
    expected = session.run(packhorse.pack(SEQUENCES)).hidden
    assert expected.shape == (8, 48)
    assert expected.dtype == np.float32
    ids, cu_seqlens = [1, 2, 3, 4, 5, 6, 7, 8], [0, 4, 5, 5, 8]
    padded = np.array([[1, 2, 3, 4], [5, 9, 9, 9], [9, 9, 9, 9], [9, 6, 7, 8]])
    mask = np.array([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1]])
    for batch in (
        PackedTokens(ids, cu_seqlens),
        PackedTokens(np.array(ids, np.int64), np.array(cu_seqlens, np.uint8)),
        PackedTokens(ids, cu_seqlens, type_ids=[0] * 8, position_ids=[0, 1, 2, 3, 0, 0, 1, 2]),
        SEQUENCES,
        [np.array(s, np.int16) for s in SEQUENCES],
        tuple(SEQUENCES),
        (np.array(ids), np.array(cu_seqlens)),
        (np.array(ids, np.uint16), np.array(cu_seqlens, np.int32)),
        packhorse.pack(padded, mask),
        packhorse.pack(padded.tolist(), mask == 1),
    ):
        assert bits(session.run(batch).hidden) == bits(expected)


def test_only_a_tuple_of_two_arrays_is_ids_and_offsets(session: Session) -> None:
    """Numbers that may be read as sequences or as (ids, cu_seqlens): the types decide."""
    two, one = np.array([0, 2]), np.array([0, 2], np.int32)
    as_sequences = session.run(PackedTokens([0, 2, 0, 2], [0, 2, 4])).hidden
    as_offsets = session.run(PackedTokens([0, 2], [0, 2])).hidden
    for sequences in (([0, 2], [0, 2]), ((0, 2), (0, 2)), [[0, 2], [0, 2]], [two, one]):
        assert bits(session.run(sequences).hidden) == bits(as_sequences)
    assert bits(session.run((two, one)).hidden) == bits(as_offsets)
    assert bits(session.run_many((two, one)).hidden) == bits(as_sequences)  # takes nothing else
    for mixed, found in (((two, [0, 2]), "ndarray and list"), (([0, 2], two), "list and ndarray")):
        with pytest.raises(
            ValueError, match=rf"{found}.* \(ids, cu_seqlens\) .* sequences are a list"
        ):
            session.run(mixed)
    with pytest.raises(ValueError, match=r"ids has shape \(2, 3\), expected one dimension"):
        session.run((np.ones((2, 3), int), np.ones((2, 3), int)))  # padded ids and their mask
    with pytest.raises(ValueError, match="ids has dtype float64, expected integers"):
        session.run((np.array([1.0, 2.0]), two))


def test_pack() -> None:
    batch = packhorse.pack([[101, 7592, 102], [101, 102]])
    assert batch.ids.dtype == np.int32
    assert batch.cu_seqlens.dtype == np.int32
    assert batch.ids.tolist() == [101, 7592, 102, 101, 102]
    assert batch.cu_seqlens.tolist() == [0, 3, 5]
    assert batch.lengths.tolist() == [3, 2]
    assert batch.max_seqlen == 3
    assert (batch.num_tokens, batch.num_sequences) == (5, 2)
    assert batch.type_ids is None
    assert batch.position_ids is None
    assert packhorse.pack([]).cu_seqlens.tolist() == [0]
    assert packhorse.pack([]).max_seqlen == 0
    assert packhorse.pack([[], []]).cu_seqlens.tolist() == [0, 0, 0]
    assert packhorse.pack([[1], [2, 3]], type_ids=[[0], [1, 0]]).type_ids.tolist() == [0, 1, 0]  # type: ignore[union-attr]


def test_pack_of_padded_ids() -> None:
    ids = np.array([[1, 2, 9], [9, 9, 3], [9, 9, 9], [4, 9, 5]])
    mask = np.array([[1, 1, 0], [0, 0, 1], [0, 0, 0], [2, 0, 1]])
    batch = packhorse.pack(ids, mask, type_ids=ids + 10)
    assert batch.ids.tolist() == [1, 2, 3, 4, 5]
    assert batch.cu_seqlens.tolist() == [0, 2, 3, 3, 5]
    assert batch.type_ids is not None
    assert batch.type_ids.tolist() == [11, 12, 13, 14, 15]
    assert packhorse.pack(np.empty((0, 4), int), np.empty((0, 4))).num_sequences == 0
    with pytest.raises(ValueError, match=r"shape \(4, 3\) and attention_mask \(4, 2\)"):
        packhorse.pack(ids, mask[:, :2])
    with pytest.raises(ValueError, match=r"type_ids have shape \(3, 3\)"):
        packhorse.pack(ids, mask, type_ids=ids[1:])


def test_types_and_positions_count(session: Session) -> None:
    ids, cu_seqlens = [1, 2, 3, 4], [0, 4]
    plain = session.run(PackedTokens(ids, cu_seqlens)).hidden
    for changed in (
        PackedTokens(ids, cu_seqlens, type_ids=[0, 0, 1, 1]),
        PackedTokens(ids, cu_seqlens, position_ids=[4, 5, 6, 7]),
    ):
        assert np.abs(session.run(changed).hidden - plain).max() > 0.01
    with pytest.raises(ValueError, match="type_ids has 3 elements, ids has 4"):
        PackedTokens(ids, cu_seqlens, type_ids=[0, 0, 1])


# --- results


def test_outputs(session: Session) -> None:
    everything = session.run(SEQUENCES, outputs=ALL)
    assert everything.hidden.shape == (8, 48)
    assert everything.embedding.shape == everything.pooled.shape == (4, 48)
    assert everything.cu_seqlens.tolist() == [0, 4, 5, 5, 8]
    for name in ALL:
        alone = session.run(SEQUENCES, outputs=[name])
        assert bits(getattr(alone, name)) == bits(everything[name])
        other = "embedding" if name == "hidden" else "hidden"
        with pytest.raises(AttributeError, match=f"'{other}' was not computed; ask for it"):
            getattr(alone, other)
        with pytest.raises(KeyError, match=other):
            alone[other]
    assert bits(session.run(SEQUENCES, outputs="pooled").pooled) == bits(everything.pooled)
    assert repr(session.run([[1]])) == "RunResult(hidden (1, 48))"


def test_unpack_gives_views(session: Session) -> None:
    result = session.run(SEQUENCES)
    parts = result.unpack()
    assert [part.shape for part in parts] == [(4, 48), (1, 48), (0, 48), (3, 48)]
    assert all(np.shares_memory(part, result.hidden) for part in parts if part.size)
    assert bits(np.concatenate(parts)) == bits(result.hidden)


def test_results_are_the_callers_own(session: Session) -> None:
    first = session.run([[1, 2]]).hidden
    copy = first.copy()
    session.run([[3, 4]])
    assert bits(first) == bits(copy)
    assert first.flags.owndata
    assert first.flags.writeable


def test_out_writes_into_given_arrays(session: Session) -> None:
    expected = session.run(SEQUENCES, outputs=ALL)
    hidden = np.full((8, 48), np.nan, np.float32)
    embedding = np.full((4, 48), np.nan, np.float32)
    result = session.run(SEQUENCES, out={"hidden": hidden, "embedding": embedding})
    assert result.hidden is hidden
    assert result.embedding is embedding
    assert bits(hidden) == bits(expected.hidden)
    assert bits(embedding) == bits(expected.embedding)
    read_only = np.empty((8, 48), np.float32)
    read_only.flags.writeable = False
    for wrong, found in (
        (np.empty((8, 48)), r"float64\[8, 48\]"),
        (np.empty((7, 48), np.float32), r"float32\[7, 48\]"),
        (np.empty((48, 8), np.float32).T, "contiguous: False"),
        (read_only, "writeable: False"),
        ([0.0] * 384, "list"),
    ):
        with pytest.raises(ValueError, match=rf"out\['hidden'\] is {found}.*|.*{found}.*"):
            session.run(SEQUENCES, out={"hidden": wrong})  # type: ignore[dict-item]


def test_unknown_outputs_and_a_missing_pooler(session: Session, make_model: ModelMaker) -> None:
    with pytest.raises(ValueError, match="'logits' was asked for.*: hidden, embedding, pooled"):
        session.run([[1]], outputs=["logits"])
    with pytest.raises(ValueError, match="output 'x' was asked for"):
        session.run([[1]], out={"x": np.empty(1, np.float32)})
    bare = Session.load(make_model(heads=None), session.device, max_tokens=8)
    with pytest.raises(ValueError, match="'pooled' was asked for, but.* has: hidden, embedding"):
        bare.run([[1]], outputs=["pooled"])
    assert bare.run([[1]], outputs=["embedding"]).embedding.shape == (1, 48)


def test_nothing_to_do(session: Session) -> None:
    for empty in ([], (), (np.empty(0, np.int32), np.array([0])), PackedTokens([], [0])):
        result = session.run(empty, outputs=ALL)
        assert result.hidden.shape == result.embedding.shape == result.pooled.shape == (0, 48)
        assert result.unpack() == []
    result = session.run([[], [], []], outputs=ALL)
    assert result.hidden.shape == (0, 48)
    assert not result.embedding.any()
    assert not result.pooled.any()
    # Left-overs of a larger batch do not shine through.
    session.run([[1, 2, 3]] * 4, outputs=ALL)
    result = session.run([[], [1], []], outputs=ALL)
    assert not result.embedding[[0, 2]].any()
    assert not result.pooled[[0, 2]].any()
    assert result.embedding[1].any()


# --- more than a batch


def test_run_many_is_one_large_batch(tiny_model: Path, device: str) -> None:
    sequences = random_sequences([3, 0, 40, 1, 17, 64, 64, 2, 0, 33, 5, 5, 5, 5, 5])
    large = Session.load(tiny_model, device, max_tokens=512, max_sequences=16)
    small = Session.load(tiny_model, device, max_tokens=64, max_sequences=3)
    expected = large.run(sequences, outputs=ALL)
    for given in (sequences, iter(sequences), tuple(sequences)):
        result = small.run_many(given, outputs=ALL)
        assert result.cu_seqlens.tolist() == offsets([len(s) for s in sequences]).tolist()
        for name in ALL:
            assert bits(getattr(result, name)) == bits(getattr(expected, name))
    assert small.run_many([], outputs=ALL).embedding.shape == (0, 48)
    assert small.run_many([[]]).hidden.shape == (0, 48)
    with pytest.raises(ValueError, match=r"sequences\[1\] has 65 tokens, max_tokens is 64"):
        small.run_many([[1], [1] * 65])


def test_a_batch_larger_than_the_plan_names_both_numbers(session: Session) -> None:
    with pytest.raises(ValueError, match="1025 tokens.*max_tokens = 1024"):
        session.run([[1] * 205] * 5)
    with pytest.raises(ValueError, match="33 sequences.*max_sequences = 32"):
        session.run([[1]] * 33)
    with pytest.raises(ValueError, match="sequence 1 has 301 tokens.*max_seqlen = 300"):
        session.run([[1], [1] * 301])
    assert session.run([[1] * 256] * 4).hidden.shape == (1024, 48)
    assert session.run([[1]] * 32).hidden.shape == (32, 48)


# --- plans, options, paths


def test_memory_plan(tiny_model: Path, device: str, session: Session) -> None:
    plan = session.memory_plan
    assert plan.total_bytes == plan.weights.bytes + plan.arena.bytes
    for part in (plan.weights, plan.arena):
        assert part.bytes == max(buffer.offset + buffer.bytes for buffer in part.buffers)
    names = [buffer.name for buffer in plan.arena.buffers]
    assert {"hidden", "qkv"} <= set(names)
    assert plan == packhorse.plan_memory(
        tiny_model, device, max_tokens=1024, max_sequences=32, threads=2
    )
    assert plan == packhorse.plan_memory(
        tiny_spec(), device, max_tokens=1024, max_sequences=32, threads=2
    )
    assert "qkv" in str(plan)
    assert "total" in str(plan)
    # Several threads share up to 512 rows, in room that does not grow with the tokens.
    small, larger = (
        packhorse.plan_memory(tiny_model, device, max_tokens=tokens, max_sequences=32, threads=1)
        for tokens in (1024, 16384)
    )
    assert larger.weights == plan.weights
    assert larger.arena.bytes > 10 * small.arena.bytes


def test_memory_limit(tiny_model: Path, device: str) -> None:
    options = {"max_tokens": 256, "max_sequences": 4}
    plan = packhorse.plan_memory(tiny_model, device, **options)
    exact = Session.load(tiny_model, device, memory_limit=plan.total_bytes, **options)
    assert exact.run([[1, 2]]).hidden.shape == (2, 48)
    limit = plan.total_bytes - 1
    largest = max(plan.arena.buffers, key=lambda buffer: buffer.offset + buffer.bytes)
    for refused in (Session.load, packhorse.plan_memory):
        with pytest.raises(MemoryError, match=rf"'{largest.name}'.*memory_limit is {limit} bytes"):
            refused(tiny_model, device, memory_limit=limit, **options)  # type: ignore[operator]
    takes = (
        f"the weights take {plan.weights.bytes} bytes as {exact.dtype}, memory_limit is 1000: "
        "raise it"
    )
    with pytest.raises(MemoryError, match=takes):
        Session.load(tiny_model, device, memory_limit=1000, **options)


def test_config_and_properties(tiny_model: Path, session: Session) -> None:
    assert session.config == json.loads((tiny_model / "packhorse.json").read_text())
    assert session.hidden_size == 48
    assert session.dtype == ("float32" if session.device == "cpu" else "float16")
    assert (session.max_tokens, session.max_sequences) == (1024, 32)
    assert session.device in packhorse.available_devices()
    assert "cpu" in packhorse.available_devices() or "cuda:0" in packhorse.available_devices()
    assert "hidden_size=48" in repr(session)
    assert packhorse.__version__.count(".") == 2


def test_options_are_checked(tiny_model: Path, device: str) -> None:
    for options, message in (
        ({"max_tokens": 0}, "max_tokens is 0, expected 1"),
        ({"max_tokens": 2**31}, "max_tokens is 2147483648"),
        ({"max_sequences": -1}, "max_sequences is -1"),
        ({"threads": -1}, "threads is -1"),
        ({"threads": 5000}, "threads is 5000"),
        ({"dtype": "float4"}, "unknown dtype 'float4'; known:"),
        ({"dtype": "int32"}, "int32"),
        ({"device": "gpu"}, "unknown device 'gpu'; expected 'cpu', 'cuda'"),
        ({"device": Path("cpu")}, "of type PosixPath, expected 'cpu', 'cuda' or 'cuda:N'; a torch"),
        ({"device": None}, "device is None of type NoneType, expected 'cpu'"),
        ({"device": "cuda:-1"}, "unknown device 'cuda:-1'"),
        ({"device": "cuda:999"}, "cuda:999"),
        ({"memory_limit": -1}, "memory_limit is -1"),
    ):
        arguments = {"device": device, **options}
        with pytest.raises((ValueError, RuntimeError), match=message):
            Session.load(tiny_model, **arguments)  # type: ignore[arg-type]


def test_paths(tmp_path: Path, tiny_model: Path, device: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match="nowhere"):
        Session.load(tmp_path / "nowhere", device)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty.*config\.json"):
        Session.load(tmp_path / "empty", device)
    folder = write_model(tmp_path / "mödel with spaces", tiny_spec(), random_tensors(tiny_spec()))
    assert bits(Session.load(str(folder), device).run([[1, 2]]).hidden) == bits(
        Session.load(tiny_model, device).run([[1, 2]]).hidden
    )


def test_a_native_session_that_was_not_loaded() -> None:
    session = NativeSession()
    one = np.array([0, 1], np.int32)
    for call in (
        lambda: session.run(one[:1], one, None, None, None, {}),
        lambda: session.run_from_device((0, 0, 0, 0, 0, 0), None, 0, {}),
        lambda: session.run_to_device(one[:1], one, None, None, None, [], 0),
        lambda: session.run_on_device((0, 0, 0, 0, 0, 0), None, None, [], 0),
        lambda: session.stream,
        lambda: session.wait_for(1),
        lambda: session.time_encoder(one[:1], one, 1),
        lambda: session.explain(one[:1], one, None, None),
        session.memory_plan,
    ):
        with pytest.raises(RuntimeError, match="closed, or never loaded"):
            call()
