"""Models with mixtures of experts and scaled residuals, against the float64 reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
import reference_encoder
from cases import BATCHES, offsets
from models import Tensors, random_sequences, random_tensors, tiny_spec, write_model
from packhorse import Session

pytestmark = pytest.mark.arm

Spec = dict[str, Any]

_PRE = {"kind": "rms", "placement": "pre", "eps": 1e-6}
_MIXTURE = {"kind": "mixture", "activation": "silu", "experts": 5, "router_size": 12}
_COMPRESSED = {"kind": "compressed", "depthwise_width": 2, "grouped_width": 2}
SPECS: dict[str, Spec] = {
    "mixture": {"norm": _PRE, "ffn": _MIXTURE, "num_layers": 3},
    "one-expert": {
        "norm": {**_PRE, "kind": "layer"},
        "intermediate_size": 19,
        "ffn": {**_MIXTURE, "experts": 1, "activation": "gelu"},
    },
    "many-experts": {
        "hidden_size": 30,
        "num_heads": 3,
        "norm": _PRE,
        "ffn": {**_MIXTURE, "experts": 40, "router_size": 7},
    },
    "scaled-residuals": {"norm": _PRE, "residual_scales": True},
    "all": {
        "norm": {**_PRE, "embeddings": False},
        "num_layers": 3,
        "residual_scales": True,
        "attention": {**_COMPRESSED, "mask": "causal", "rope": {"theta": 50.0, "dims": 6}},
        "ffn": _MIXTURE,
    },
}


@pytest.fixture
def on(device: str) -> dict[str, Any]:
    """Arguments of sessions: a device, and the dtype there that is nearest to float32."""
    return {"device": device, "dtype": "float32" if device == "cpu" else "float16"}


def load(folder: Path, spec: Spec, tensors: Tensors | None = None, **options: Any) -> Session:
    write_model(folder, spec, random_tensors(spec) if tensors is None else tensors)
    return Session.load(folder, **{"max_tokens": 512, "max_sequences": 16, **options})


def check(session: Session, spec: Spec, tensors: Tensors, sequences: list[Any]) -> None:
    cu_seqlens = offsets([len(one) for one in sequences])
    ids = np.concatenate([np.zeros(0, np.int32), *sequences])
    found = session.run((ids, cu_seqlens)).hidden
    expected = reference_encoder.encoder(spec, tensors, ids, cu_seqlens)
    if session.dtype == "float32":
        np.testing.assert_allclose(found, expected, rtol=3e-5, atol=3e-5)
        return
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    if len(found) > 0:  # rounding makes few rows choose another expert
        errors = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
        assert (errors < 0.02).mean() >= 0.9


@pytest.mark.parametrize("changes", SPECS.values(), ids=SPECS)
def test_specs(changes: Spec, on: dict[str, Any], tmp_path: Path) -> None:
    spec = tiny_spec(**changes)
    session = load(tmp_path, spec, **on)
    check(session, spec, random_tensors(spec), random_sequences([2, 130, 0, 1, 40]))


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_batches(lengths: list[int], on: dict[str, Any], tmp_path: Path) -> None:
    spec = tiny_spec(**SPECS["mixture"])
    check(load(tmp_path, spec, **on), spec, random_tensors(spec), random_sequences(lengths))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_the_same_bits_whoever_shares_an_expert(dtype: Any, device: str, tmp_path: Path) -> None:
    spec = tiny_spec(**SPECS["all"])
    sequences = random_sequences([3, 150, 1, 0, 70, 2])
    try:
        session = load(tmp_path, spec, device=device, dtype=dtype, threads=2)
    except RuntimeError as error:
        pytest.skip(str(error))
    together = session.run(sequences).hidden
    ends = np.cumsum([len(one) for one in sequences])[:-1]
    for sequence, expected in zip(sequences, np.split(together, ends), strict=True):
        np.testing.assert_array_equal(session.run([sequence]).hidden, expected)
    turned = session.run(sequences[::-1]).hidden
    np.testing.assert_array_equal(turned[: len(sequences[-1])], together[-2:])
    own = {"device": device, "dtype": dtype, "threads": 1}
    one = Session.load(tmp_path, **own, max_tokens=512, max_sequences=16)
    np.testing.assert_array_equal(one.run(sequences).hidden, together)


@pytest.mark.parametrize("best", [[0, 1, 2, 3, 4, 5], [2, 4], [5], [1, 5]])
def test_ties_go_to_the_lowest(best: list[int], on: dict[str, Any], tmp_path: Path) -> None:
    """Classes with the largest balance are equal where logits are zeros; 5 is no expert."""
    spec = tiny_spec(**{**SPECS["mixture"], "num_layers": 1})
    tensors = random_tensors(spec)
    name = "layers.0.ffn.router."
    tensors[name + "output.weight"][:] = 0
    balance = tensors[name + "balance"]
    balance[:] = -1
    balance[best] = 0.25
    session = load(tmp_path, spec, tensors, **on)
    sequences = random_sequences([9, 50])
    check(session, spec, tensors, sequences)
    # Only the lowest of equal classes runs: the bits are those of the largest balance for it alone.
    found = session.run(sequences).hidden
    balance[best] = -1
    balance[min(best)] = 0.25
    alone = load(tmp_path / "alone", spec, tensors, **on)
    np.testing.assert_array_equal(alone.run(sequences).hidden, found)


def test_neighbours_of_nan(on: dict[str, Any], tmp_path: Path) -> None:
    """A sequence of numbers beyond all bounds leaves the others as they are."""
    spec = tiny_spec(**SPECS["mixture"])
    tensors = random_tensors(spec)
    tensors["embeddings.word"][7] = 3e38
    kind = {"dtype": "float32" if on["device"] == "cpu" else "bfloat16"}
    session = load(tmp_path, spec, tensors, **on | kind)
    sequences = [one % 7 for one in random_sequences([20, 30, 4])]
    clean = session.run(sequences).hidden
    sequences[1][:] = 7
    found = session.run(sequences).hidden
    np.testing.assert_array_equal(found[:20], clean[:20])
    np.testing.assert_array_equal(found[50:], clean[50:])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ffn": _MIXTURE}, "needs 'norm.placement' \"pre\""),
        ({"residual_scales": True}, "'residual_scales' needs"),
        ({"norm": _PRE, "ffn": {**_MIXTURE, "experts": 0}}, "'ffn.experts' is 0"),
        ({"norm": _PRE, "ffn": {**_MIXTURE, "up_bias": False}}, "up_bias"),
        ({"attention": {**_COMPRESSED, "mask": "causal", "qk_norm": True}}, "attention.qk_norm"),
        (
            {"attention": {**_COMPRESSED, "mask": "causal", "grouped_width": 9}},
            "'attention.grouped_width' is 9",
        ),
        (
            {"num_heads": 6, "num_kv_heads": 3, "attention": {**_COMPRESSED, "mask": "causal"}},
            "'num_kv_heads' is 3, 'head_dim' 8: compressed attention needs",
        ),
        ({"attention": {"mask": "causal", "depthwise_width": 2}}, "depthwise_width"),
        ({"attention": {"mask": "causal", "kind": "linear"}}, "'attention.kind' is \"linear\""),
    ],
)
def test_specs_that_are_refused(changes: Spec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        packhorse.plan_memory(tiny_spec(**changes))


@pytest.mark.parametrize(
    "name", ["ffn.experts.down", "ffn.router.balance", "attention.grouped.weight"]
)
def test_tensors_of_another_shape(name: str, tmp_path: Path) -> None:
    spec = tiny_spec(**SPECS["all"])
    tensors = random_tensors(spec)
    tensors[f"layers.1.{name}"] = tensors[f"layers.1.{name}"][1:]
    with pytest.raises(ValueError, match=rf"layers\.1\.{name}.*expected"):
        load(tmp_path, spec, tensors)
