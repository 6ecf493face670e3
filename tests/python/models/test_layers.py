"""Stacks whose layers differ, and specs of both formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
import reference_encoder
from cases import offsets
from checkpoints import GOLDEN
from models import (
    HEAD_OPTIONS,
    SPEC_OPTIONS,
    random_sequences,
    random_tensors,
    tiny_spec,
    write_model,
)
from packhorse import Sampling, Session
from packhorse_weights import Tensor, convert, resolve_model
from packhorse_weights.formats.safetensors import write_safetensors
from packhorse_weights.spec import Spec, from_layer, stack_of, stem_of, upgraded, weight_sets

ATTENTION: Spec = {
    "kind": "self_attention",
    "mask": "causal",
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 12,
}
GATED: Spec = {"kind": "feed_forward", "size": 80, "gated": True, "activation": "silu"}
MOE: Spec = {"kind": "moe", "experts": 3, "size": 40, "activation": "silu"}
CCA = {**ATTENTION, "kind": "cca", "depthwise_width": 2, "grouped_width": 3}


def moe(takes_state: bool, **fields: Any) -> Spec:
    return {**MOE, **fields, "router": {"kind": "state", "size": 16, "takes_state": takes_state}}


def stack_spec(layers: list[Spec], **stack: Any) -> Spec:
    """A decoder of these layers."""
    return {
        "format": 2,
        "family": "random",
        "max_seqlen": 300,
        "stacks": {
            "decoder": {
                "hidden_size": 48,
                "stem": {"kind": "tokens", "vocab_size": 50, "positions": {"kind": "none"}},
                "norm": {"kind": "rms", "placement": "pre", "eps": 1e-6},
                "ropes": {
                    "fast": {"theta": 100.0},
                    "given": {"frequencies": [1, 0.5, 0.3, 0.1, 0.01, 1e-3]},
                    "slow": {"theta": 1e4, "factor": 2.0, "attention_factor": 1.2},
                },
                "layers": layers,
                **stack,
            }
        },
        "heads": {"lm": {"tied": True}},
        "embedding": {"pooling": "last", "normalize": True},
    }


def layer(attention: Spec, feed_forward: Spec, **fields: Any) -> Spec:
    return {**fields, "blocks": [attention, feed_forward]}


# Stacks that no list beside common blocks describes.
MIXED: dict[str, Spec] = {
    "dense-layers-then-mixtures": stack_spec(
        [
            layer({**ATTENTION, "rope": "fast"}, GATED),
            layer({**ATTENTION, "rope": "fast"}, moe(False)),
            layer({**ATTENTION, "rope": "fast"}, {**GATED, "size": 17}),
            layer({**ATTENTION, "rope": "fast"}, moe(True, size=64)),
        ]
    ),
    "blocks-of-many-sizes": stack_spec(
        [
            layer(ATTENTION, {**GATED, "size": size, "gated": gated, "activation": activation})
            for size, gated, activation in (
                (9, True, "gelu"),
                (200, False, "relu"),
                (64, True, "silu"),
                (33, False, "tanh"),
            )
        ]
    ),
    "three-rotations": stack_spec(
        [
            layer({**ATTENTION, "rope": "fast", "window": 5}, GATED),
            layer({**ATTENTION, "rope": "slow"}, GATED),
            layer(ATTENTION, GATED),
            layer({**ATTENTION, "rope": "given", "window": 40}, GATED),
        ]
    ),
    "attention-of-many-forms": stack_spec(
        [
            layer({**ATTENTION, "qkv_bias": False, "norm": False}, GATED),
            layer({**ATTENTION, "qk_norm": True, "rope": "fast"}, {**GATED, "up_bias": False}),
            layer({**ATTENTION, "output_bias": False, "scale": 0.1}, {**GATED, "down_bias": False}),
        ]
    ),
    "shared-weights-with-windows-of-their-own": stack_spec(
        [
            layer({**ATTENTION, "rope": "fast"}, GATED),
            layer({**ATTENTION, "rope": "slow"}, {**GATED, "size": 30}),
            layer({**ATTENTION, "rope": "slow", "window": 3}, GATED, weights=0),
            layer(ATTENTION, {**GATED, "size": 30}, weights=1),
        ]
    ),
    "compressed-attention-and-dense-blocks": stack_spec(
        [
            layer({**CCA, "rope": "fast"}, GATED),
            layer({**CCA, "window": 9}, moe(False)),
            layer({**CCA, "rope": "slow"}, {**GATED, "size": 20, "gated": False}),
        ]
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_layers_that_differ(name: str, tmp_path: Path) -> None:
    spec = MIXED[name]
    tensors = random_tensors(spec)
    session = Session.load(write_model(tmp_path, spec, tensors), "cpu", max_tokens=256, kv_tokens=0)
    sequences = random_sequences([2, 130, 0, 1, 40])
    cu_seqlens = offsets([len(s) for s in sequences])
    ids = np.concatenate(sequences)
    expected = reference_encoder.encoder(spec, tensors, ids, cu_seqlens)
    np.testing.assert_allclose(
        session.run((ids, cu_seqlens)).hidden, expected, rtol=2e-5, atol=2e-5
    )


@pytest.mark.parametrize("name", MIXED)
def test_layers_that_differ_generate(name: str, tmp_path: Path) -> None:
    """Token by token over pages of a cache, as a whole text is scored."""
    spec = MIXED[name]
    tensors = random_tensors(spec)
    folder = write_model(tmp_path, spec, tensors)
    ids = random_sequences([40])[0]
    hidden = reference_encoder.encoder(spec, tensors, ids, [0, len(ids)])
    logits = hidden @ tensors["embeddings.word"].T
    logits -= logits.max(-1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = logprobs[np.arange(len(ids) - 1), ids[1:]]
    for max_tokens in (64, 7):
        with Session.load(folder, "cpu", kv_tokens=64, max_tokens=max_tokens) as session:
            scored = session.generate([ids.tolist()], Sampling(max_new_tokens=0, prompt_logprobs=0))
        found = np.array(scored[0].prompt_logprobs.logprobs)
        np.testing.assert_allclose(found[-len(expected) :], expected, rtol=1e-4, atol=1e-4)


def test_adapters_of_blocks_of_many_sizes(tmp_path: Path) -> None:
    """Every layer has buffers and tables of its own size: as the model with the adapter merged."""
    spec = {**MIXED["blocks-of-many-sizes"], "family": "llama"}
    tensors = random_tensors(spec)
    random = np.random.default_rng(3)
    merged, adapter = dict(tensors), {}
    for i, (_, feed_forward) in enumerate(weight_sets(spec)):
        for part in ("gate", "up", "down") if feed_forward["gated"] else ("up", "down"):
            weight = tensors[f"layers.{i}.ffn.{part}.weight"]
            a = random.normal(0, 0.1, (2, weight.shape[1])).astype(np.float32)
            b = random.normal(0, 0.5, (weight.shape[0], 2)).astype(np.float32)
            merged[f"layers.{i}.ffn.{part}.weight"] = weight + b @ a
            name = f"base_model.model.model.layers.{i}.mlp.{part}_proj"
            adapter[f"{name}.lora_A.weight"] = Tensor(a, "float32")
            adapter[f"{name}.lora_B.weight"] = Tensor(b, "float32")
    (tmp_path / "adapter").mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    write_safetensors(tmp_path / "adapter" / "adapter_model.safetensors", adapter)
    plain = write_model(tmp_path / "plain", spec, tensors)
    other = write_model(tmp_path / "merged", spec, merged)
    ids = random_sequences([30])[0].tolist()

    def logprobs(session: Session, adapter: str | None) -> Any:
        asked = Sampling(max_new_tokens=0, prompt_logprobs=0, adapter=adapter)
        return np.array(session.generate([ids], asked)[0].prompt_logprobs.logprobs)[-29:]

    with Session.load(other, "cpu", kv_tokens=64) as session:
        expected = logprobs(session, None)
    with Session.load(plain, "cpu", kv_tokens=64, max_adapters=2) as session:
        session.add_adapter("one", tmp_path / "adapter")
        assert np.abs(logprobs(session, None) - expected).max() > 0.01
        np.testing.assert_allclose(logprobs(session, "one"), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [*SPEC_OPTIONS, *HEAD_OPTIONS])
def test_both_formats_give_the_same_bits(name: str, tmp_path: Path) -> None:
    """The readers of format 1 in C++ and in Python agree."""
    spec = tiny_spec(**{**SPEC_OPTIONS, **HEAD_OPTIONS}[name])
    other = upgraded(spec)
    assert upgraded(other) == other
    tensors = random_tensors(spec)
    heads = spec.get("heads", {})
    options: dict[str, Any] = {"max_tokens": 256, "max_sequences": 4}
    if {"lm", "masked_lm"} & set(heads):
        options["max_predictions"] = 8
    sequences = random_sequences([2, 130, 1, 40], stem_of(spec)["vocab_size"])
    results, plans = [], []
    for i, one in enumerate((spec, other)):
        session = Session.load(write_model(tmp_path / str(i), one, tensors), "cpu", **options)
        outputs = list(session.outputs)
        rows = np.arange(8) if "predictions" in outputs else None
        result = session.run(sequences, outputs=outputs, rows=rows)
        results.append({output: getattr(result, output) for output in outputs})
        plans.append((session.memory_plan.weights, session.memory_plan.arena))
    assert results[0].keys() == results[1].keys()
    for output, values in results[0].items():
        np.testing.assert_array_equal(values, results[1][output], err_msg=output)
    assert plans[0] == plans[1]


FORMAT_1: dict[str, Spec] = json.loads((GOLDEN / "specs_of_format_1.json").read_text())


@pytest.mark.parametrize("name", FORMAT_1)
def test_folders_of_format_1(name: str, tmp_path: Path) -> None:
    """The specs that conversion wrote when there was no other format: the same model as today's."""
    old = FORMAT_1[name]
    assert old["format"] == 1
    folder = GOLDEN / name.replace("generation-", "generation/")
    spec = json.loads(json.dumps(resolve_model(folder).spec))
    assert spec["format"] == 2
    assert upgraded(old) == spec
    converted = convert(folder, tmp_path / "old")
    (converted / "packhorse.json").write_text(json.dumps(old))
    generates = "lm" in old.get("heads", {})
    options: dict[str, Any] = {"max_tokens": 64, "kv_tokens": 0 if generates else None}
    sequences = random_sequences([9, 0, 30], stem_of(spec)["vocab_size"])
    results = []
    for path in (folder, converted):
        with Session.load(path, "cpu", **options) as session:
            results.append(session.run(sequences).hidden)
    np.testing.assert_array_equal(*results)


def changed(change: Callable[[Spec], object]) -> Spec:
    """A valid spec of two layers, with its only stack changed."""
    spec: Spec = json.loads(json.dumps(MIXED["three-rotations"]))
    change(spec["stacks"]["decoder"])
    return spec


def block(number: int, **fields: Any) -> Callable[[Spec], object]:
    """Changes a block of the first layer."""
    return lambda stack: stack["layers"][0]["blocks"][number].update(fields)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (changed(lambda stack: stack.update(layers=7)), r"decoder\.layers' is 7, expected a list"),
        (changed(lambda stack: stack.update(layers=[7])), r"layers\[0\]\.' is 7, expected an obj"),
        (changed(lambda stack: stack.update(hidden_size=0)), "decoder.hidden_size' is 0"),
        (changed(lambda stack: stack.update(ropes={})), r"blocks\[0\]\.rope' is \"fast\""),
        (changed(lambda stack: stack.update(ropes=3)), "ropes.' is 3, expected an object"),
        (changed(lambda stack: stack.pop("stem")), "'stacks.decoder.stem' is missing"),
        (changed(lambda stack: stack.update(stem=[])), r"decoder.stem.' is \[\], expected an obj"),
        (changed(block(0, kind="cross_attention")), "cross_attention.*runs no other yet"),
        (changed(block(0, kind="attention")), 'blocks.0..kind\' is "attention", expected one of'),
        (changed(block(0, window=-1)), "blocks.0..window' is -1"),
        (changed(block(0, num_heads=3)), "num_heads' 3 is not a multiple"),
        (changed(block(0, num_heads=2)), "blocks.0.' has another kind, or other heads"),
        (changed(block(0, norm="shared")), 'norm\' is "shared", expected true or false'),
        (changed(block(1, size=0)), "blocks.1..size' is 0"),
        (changed(block(1, experts=4)), "blocks.1..experts' is not known"),
        (
            changed(lambda stack: stack["layers"][0]["blocks"].__setitem__(1, moe(True))),
            "takes_state' is true, but no layer before",
        ),
        ({**MIXED["three-rotations"], "stacks": []}, r"'stacks\.' is \[\], expected an object"),
        ({**MIXED["three-rotations"], "stacks": {}}, "'stacks' has 0 stacks, expected one"),
        ({**MIXED["three-rotations"], "stacks": dict.fromkeys("abc")}, "'stacks' has 3 stacks"),
        ({**MIXED["three-rotations"], "stacks": {"a": {}, "b": {}}}, "'stacks.a.hidden_size' is"),
        ({**MIXED["three-rotations"], "num_layers": 2}, "'num_layers' is not known"),
    ],
)
def test_refused(spec: Spec, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        packhorse.plan_memory(spec, "cpu")
    folder = write_model(tmp_path, spec, {})
    with pytest.raises(ValueError, match=message):
        Session.load(folder, "cpu", dtype="float32")


def test_what_readers_see() -> None:
    """Readers find one stack in a spec of either format."""
    first = tiny_spec(num_layers=3, layer_weights=[0, 1, 0], vocab_size=70)
    for spec in (first, upgraded(first)):
        assert stack_of(spec)["hidden_size"] == 48
        assert stem_of(spec)["vocab_size"] == 70
        assert len(weight_sets(spec)) == 2


def test_a_rotation_that_no_layer_has_is_left_out() -> None:
    described = {
        **{name: value for name, value in tiny_spec().items() if name != "format"},
        "attention": {"mask": "causal", "rope": {"theta": 10.0}},
        "ropes": {"local": {"theta": 20.0}, "same": {"theta": 10.0}},
        "layers": [{}, {"rope": "same"}],
    }
    stack = stack_of(from_layer(described))
    assert stack["ropes"] == {"global": {"theta": 10.0}}
    assert [layer["blocks"][0]["rope"] for layer in stack["layers"]] == ["global", "global"]
