"""Refusals of wrong arguments, in words that help, with the session usable afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from models import random_tensors, tiny_spec, write_model
from packhorse import PackedTokens, Session
from precisions import ModelMaker

NORM = {"kind": "layer", "placement": "post", "eps": 1e-12}
MASK = {"mask": "bidirectional"}
RELATIVE = {
    "kind": "disentangled",
    "buckets": 4,
    "max_distance": 8,
    "content_to_position": True,
    "position_to_content": False,
    "shared_projections": True,
    "norm": False,
}
POSITIONS = {"kind": "learned", "count": 300, "offset": 0}


@pytest.fixture(scope="module")
def bits_before(session: Session) -> list[bytes]:
    return bits(session)


@pytest.fixture(autouse=True)
def session_works_as_before(session: Session, bits_before: list[bytes]) -> Iterator[None]:
    yield
    assert bits(session) == bits_before


def bits(session: Session) -> list[bytes]:
    result = session.run([[1, 2, 3], [], [4]], outputs=["hidden", "embedding", "pooled"])
    return [array.tobytes() for array in (result.hidden, result.embedding, result.pooled)]


# --- batches

# (a batch, the error). A tuple has the arguments of PackedTokens.
BATCHES: list[tuple[Any, str]] = [
    (([1, 2, 50], [0, 3]), r"ids\[2\] = 50 is out of range; expected 0 <= value < vocab_size = 50"),
    (([1, -1], [0, 2]), r"ids\[1\] = -1 is out of range"),
    (([2**31 - 1], [0, 1]), r"ids\[0\] = 2147483647"),
    (([-(2**31)], [0, 1]), r"ids\[0\] = -2147483648"),
    (([2**31], [0, 1]), r"ids ranges from 2147483648 to 2147483648, expected int32"),
    (([1, 2], [0, 2, 1, 2]), r"cu_seqlens decreases: cu_seqlens\[2\] = 1 after 2"),
    (([1, 2], [0, -1, 2]), r"cu_seqlens decreases: cu_seqlens\[1\] = -1 after 0"),
    (([1, 2], [1, 2]), r"cu_seqlens\[0\] = 1; expected 0"),
    (([1, 2], [-1, 2]), r"cu_seqlens\[0\] = -1; expected 0"),
    (([1, 2], [0, 1]), r"cu_seqlens\[1\] = 1, but there are 2 tokens"),
    (([1, 2], [0, 3]), r"cu_seqlens\[1\] = 3, but there are 2 tokens"),
    (([1, 2], [0]), r"cu_seqlens\[0\] = 0, but there are 2 tokens"),
    (([], [0, 1]), r"cu_seqlens\[1\] = 1, but there are 0 tokens"),
    (([1, 2], []), "cu_seqlens is empty"),
    (([1, 2], [0, 2**31]), "cu_seqlens ranges from 0 to 2147483648, expected int32"),
    (([1.0, 2.0], [0, 2]), "ids has dtype float64, expected integers"),
    (([1, 2], [0.0, 2.0]), "cu_seqlens has dtype float64"),
    ((["a", "b"], [0, 2]), "ids has dtype <U1"),
    (([True, False], [0, 2]), "ids has dtype bool"),
    (([2**70], [0, 1]), "ids has dtype object"),
    ([[[1, 2], [3, 4]]], r"sequences\[0\] has shape \(2, 2\)"),
    ([[1, 2], [[3]]], r"sequences\[1\] has shape \(1, 1\), expected one dimension"),
    ([1, 2, 3], r"sequences\[0\] has shape \(\), expected one dimension"),
    ([[1], [50]], r"ids\[1\] = 50"),
    ([[1.5]], r"sequences\[0\] has dtype float64"),
    (["text"], r"sequences\[0\] has"),
    ([[1] * 301], "sequence 0 has 301 tokens; the model takes max_seqlen = 300 at most"),
    ([[1] * 300] * 4, "1200 tokens; the session is planned for max_tokens = 1024"),
    ([[]] * 33, "33 sequences; the session is planned for max_sequences = 32"),
]


@pytest.mark.parametrize(("batch", "message"), BATCHES)
def test_batches(session: Session, batch: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        session.run(PackedTokens(*batch) if isinstance(batch, tuple) else batch)


@pytest.mark.parametrize("name", ["type_ids", "position_ids"])
def test_types_and_positions(session: Session, name: str) -> None:
    bound = {"type_ids": 2, "position_ids": 300}[name]
    for value in (-1, bound, 2**31 - 1):
        with pytest.raises(ValueError, match=rf"{name}\[1\] = {value} is out of range"):
            session.run(PackedTokens([1, 2], [0, 2], **{name: [0, value]}))
    for wrong, message in (
        ([0], f"{name} has 1 elements, ids has 2"),
        ([[0, 0]], rf"{name} has shape \(1, 2\)"),
        ([0.0, 0.0], f"{name} has dtype float64"),
    ):
        with pytest.raises(ValueError, match=message):
            PackedTokens([1, 2], [0, 2], **{name: wrong})


def test_fields_replaced_after_the_check_of_the_constructor(session: Session) -> None:
    for name, value in (
        ("cu_seqlens", np.array([0, 9], np.int32)),
        ("type_ids", np.zeros(1, np.int32)),
        ("position_ids", np.zeros(3, np.int32)),
    ):
        batch = packhorse.pack([[1, 2]])
        setattr(batch, name, value)
        with pytest.raises(ValueError, match=name):
            session.run(batch)
    for wrong in (None, [1, 2], np.zeros(2, np.int64), np.zeros((1, 2), np.int32)):
        batch = packhorse.pack([[1, 2]])
        batch.ids = wrong  # type: ignore[assignment]
        with pytest.raises((TypeError, ValueError, AttributeError)):
            session.run(batch)


def test_strange_arrays_are_copied(session: Session) -> None:
    """Strided, reversed, big-endian, unaligned and read-only arrays mean what they hold."""
    ids, cu_seqlens = np.array([5, 6, 7, 8], np.int32), np.array([0, 1, 4], np.int32)
    expected = session.run((ids, cu_seqlens)).hidden.tobytes()
    read_only = ids.copy()
    read_only.flags.writeable = False
    unaligned = np.frombuffer(b"x" + ids.tobytes(), np.int32, offset=1)
    for form in (
        np.repeat(ids, 2)[::2],
        ids[::-1].copy()[::-1],
        np.stack([ids, ids], axis=1)[:, 0],
        ids.astype(">i4"),
        ids.astype(np.uint64),
        read_only,
        unaligned,
    ):
        assert session.run((form, cu_seqlens)).hidden.tobytes() == expected
    assert session.run((ids, np.repeat(cu_seqlens, 3)[::3])).hidden.tobytes() == expected


# --- weights


def load_changed(folder: Path, name: str, value: np.ndarray | None, device: str) -> Session:
    tensors = random_tensors(tiny_spec())
    assert name in tensors
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    return Session.load(write_model(folder, tiny_spec(), tensors), device, max_tokens=64)


@pytest.mark.parametrize("name", sorted(random_tensors(tiny_spec(num_layers=1))))
def test_every_tensor_is_checked(name: str, device: str, tmp_path: Path) -> None:
    values = random_tensors(tiny_spec())[name]
    with pytest.raises(ValueError, match=f"tensor '{name}' .* is missing"):
        load_changed(tmp_path, name, None, device)
    for wrong in (values[:-1], values[None], values.astype(np.int32)):
        with pytest.raises(ValueError, match=f"tensor '{name}' is .*expected"):
            load_changed(tmp_path, name, wrong, device)
    for poison, text in ((np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")):
        bad = values.copy()
        bad.flat[bad.size - 2] = poison
        message = f"tensor '{name}' holds -?{text} at element {bad.size - 2}, expected finite"
        with pytest.raises(ValueError, match=message):
            load_changed(tmp_path, name, bad, device)


def test_tensors_that_nothing_uses_are_ignored(device: str, tmp_path: Path) -> None:
    tensors = random_tensors(tiny_spec())
    tensors["something.else"] = np.full(3, np.nan, np.float32)
    session = Session.load(write_model(tmp_path, tiny_spec(), tensors), device, max_tokens=8)
    assert np.isfinite(session.run([[1]]).hidden).all()


# --- specs

TOKENS = {"input": "tokens", "labels": ["a", "b"]}
SPECS: list[tuple[dict[str, Any], str]] = [
    ({"format": 3}, "'format' is 3, this runtime reads formats 1 and 2"),
    ({"format": 2}, "'stacks' is missing"),
    ({"format": None}, "'format' is missing"),
    ({"vocab_size": 0}, "'vocab_size' is 0, expected an integer from 1"),
    ({"vocab_size": "50"}, "'vocab_size' is \"50\", expected an integer"),
    ({"hidden_size": 48.5}, r"'hidden_size' is 48\.5, expected an integer"),
    ({"hidden_size": -48}, "'hidden_size' is -48"),
    ({"hidden_size": 50}, "'hidden_size' 50 is not a multiple of 'num_heads' 4"),
    ({"num_layers": -1}, "'num_layers' is -1, expected an integer from 0"),
    ({"num_layers": True}, "'num_layers' is true"),
    ({"num_heads": 0}, "'num_heads' is 0"),
    ({"num_kv_heads": 3}, "'num_heads' 4 is not a multiple of 'num_kv_heads' 3"),
    ({"head_dim": 0}, "'head_dim' is 0"),
    ({"intermediate_size": 0}, "'intermediate_size' is 0"),
    ({"type_vocab_size": -1}, "'type_vocab_size' is -1"),
    ({"max_seqlen": 301}, "'max_seqlen' is 301, the position table serves at most 300"),
    ({"max_seqlen": 0}, "'max_seqlen' is 0"),
    ({"positions": {**POSITIONS, "kind": "rotary"}}, "'positions.kind' is \"rotary\""),
    ({"positions": {**POSITIONS, "count": 0}}, "'positions.count' is 0"),
    ({"positions": {**POSITIONS, "offset": 300}}, "'positions.offset' 300 leaves none"),
    ({"positions": 300}, "'positions.*' is 300, expected an object"),
    ({"positions": {**POSITIONS, "base": 1}}, "'positions.base' is not known"),
    ({"norm": {**NORM, "kind": "group"}}, "'norm.kind' is \"group\", expected one of \"layer\""),
    ({"norm": {**NORM, "placement": "inside"}}, "'norm.placement' is \"inside\""),
    ({"norm": {**NORM, "eps": 0}}, "'norm.eps' is 0, expected a positive number"),
    ({"norm": {**NORM, "eps": -1e-12}}, "'norm.eps' is -"),
    ({"norm": {"kind": "layer", "placement": "post"}}, "'norm.eps' is missing"),
    ({"attention": {"mask": "prefix"}}, "'attention.mask' is \"prefix\", expected one of"),
    ({"attention": {**MASK, "rope": {"theta": -1}}}, "'attention.rope.theta' is -1"),
    ({"attention": {**MASK, "rope": {"theta": 1, "dims": 14}}}, "'attention.rope.dims' is 14"),
    ({"attention": {**MASK, "local": {"window": -1, "layers": []}}}, "local.window' is -1"),
    ({"attention": {**MASK, "local": {"window": 1, "layers": [2]}}}, "local.layers' is 2"),
    ({"attention": {**MASK, "score_term": {"kind": "alibi", "slope": 1}}}, "term.slope' is not"),
    ({"attention": {**MASK, "score_term": {**RELATIVE, "buckets": 5}}}, "term.buckets' is 5"),
    ({"attention": {**MASK, "score_term": {**RELATIVE, "max_distance": 3}}}, "distance' is 3"),
    (
        {"attention": {**MASK, "score_term": {**RELATIVE, "content_to_position": False}}},
        "disentangled, but has neither term",
    ),
    ({"num_kv_heads": 2, "attention": {**MASK, "score_term": RELATIVE}}, "equal to 'num_heads'"),
    ({"layer_weights": [0]}, "'layer_weights' is .0., expected one number for each"),
    ({"layer_weights": "all"}, "'layer_weights' is \"all\", expected a list"),
    ({"embedding_size": 0}, "'embedding_size' is 0"),
    ({"attention": {"mask": "bidirectional", "window": 4}}, "'attention.window' is not known"),
    ({"ffn": {"kind": "moe", "activation": "gelu"}}, "'ffn.kind' is \"moe\""),
    ({"ffn": {"kind": "plain", "activation": "mish"}}, "'ffn.activation' is \"mish\""),
    ({"heads": {"pooler": {"activation": "relu"}}}, "'heads.pooler.activation' is \"relu\""),
    ({"heads": {"language": {}}}, "'heads.language' is not known"),
    ({"heads": {"classifier": {**TOKENS, "input": "pooler"}}}, "is \"pooler\", but there is no"),
    ({"heads": {"classifier": {**TOKENS, "input": "first"}}}, "classifier.input' is \"first\""),
    ({"heads": {"classifier": {**TOKENS, "labels": []}}}, "labels' is .., expected a list of 1 to"),
    ({"heads": {"classifier": {**TOKENS, "labels": [1]}}}, "labels' is .1., expected a list of"),
    ({"heads": {"classifier": {**TOKENS, "labels": 3}}}, "labels' is 3, expected a list of"),
    ({"heads": {"classifier": {**TOKENS, "biased": 1}}}, "'heads.classifier.biased' is not known"),
    ({"heads": {"classifier": {**TOKENS, "dense": {"activation": "elu"}}}}, "activation' is"),
    ({"embedding": {"pooling": "median", "normalize": True}}, "'embedding.pooling' is \"median\""),
    ({"embedding": {"pooling": "mean", "normalize": 1}}, "'embedding.normalize' is 1, expected"),
    ({"embedding": {"pooling": "mean"}}, "'embedding.normalize' is missing"),
    ({"rope_theta": 1e4}, "'rope_theta' is not known to this runtime"),
    *(
        ({name: None}, f"'{name}' is missing")
        for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size",
                     "positions", "norm", "attention", "ffn", "embedding")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), SPECS)
def test_specs(
    changes: dict[str, Any], message: str, device: str, tiny_model: Path, tmp_path: Path
) -> None:
    spec = tiny_spec(**changes)
    with pytest.raises(ValueError, match=message):
        packhorse.plan_memory(spec, device)
    (tmp_path / "packhorse.json").write_text(json.dumps(spec))
    (tmp_path / "model.safetensors").hardlink_to(tiny_model / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        Session.load(tmp_path, device)


@pytest.mark.parametrize(
    "name",
    ["vocab_size", "hidden_size", "num_layers", "num_heads", "head_dim", "intermediate_size"],
)
@pytest.mark.parametrize("value", [2**31, 2**40, 2**64, 1e300])
def test_absurd_sizes(name: str, value: float, device: str) -> None:
    """Refused, or over the limit; never an overflow into something small, never a hang."""
    changes = {"num_heads": 1, name: value, "head_dim": value if name == "head_dim" else 64}
    with pytest.raises((ValueError, MemoryError)):
        packhorse.plan_memory(tiny_spec(**changes), device, memory_limit=1 << 36)


def test_text_that_is_no_spec(device: str, make_model: ModelMaker) -> None:
    folder = make_model()
    for text in ("", "{", "[]", "null", '{"format": 1, "format": 1}', '{"a": NaN}', "\xff" * 20):
        (folder / "packhorse.json").write_text(text)
        with pytest.raises(ValueError, match=r"packhorse\.json|spec"):
            Session.load(folder, device)
