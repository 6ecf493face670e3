"""GPTQ folders with `desc_act`, whose groups are of any input features: layers that take the
columns of their input in an order of their own (dtype "stored"). References: the model in float64,
and sessions of float32, on the floats that the values stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
import quantized_folders as folders
from numpy.typing import NDArray
from packhorse import Sampling
from packhorse_weights import convert, inspect_checkpoint, resolve_model
from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors
from packhorse_weights.quantization.stored import STORED
from packhorse_weights.tensor import Tensor
from reference_encoder import encoder
from stored_runs import IDS, compare, hidden, near

pytestmark = pytest.mark.arm


@pytest.mark.parametrize(
    ("bits", "group", "symmetric"), [(4, 32, False), (4, 64, True), (8, 16, True)]
)
def test_gptq_with_groups_by_activation(
    bits: int, group: int, symmetric: bool, tmp_path: Path
) -> None:
    """All layers stay quantised, with their input features in an order. Of 96 features the last
    group of 64 has 32."""
    layers = folders.all_layers(bits, group, symmetric)
    folders.order_by_activation(layers)
    folder = folders.gptq_folder(tmp_path / "gptq", layers, bits, group_size=group, sym=symmetric)
    compare(folder, layers, tmp_path)
    floats = inspect_checkpoint(tmp_path / "floats")
    tensors = {ours: floats.tensors[theirs].data for ours, theirs in floats.names.items()}
    cu_seqlens = np.cumsum([0, *map(len, IDS)])
    expected = encoder(floats.spec, tensors, np.concatenate(IDS), cu_seqlens)
    near(hidden(folder, STORED), expected, 0.03)
    entries = resolve_model(folder).in_dtype(STORED).spec["quantized"]
    ordered = {layer for one in entries if one.get("input_order") for layer in one["layers"]}
    # Features of one group have no order.
    assert len(ordered) == (2 if group == 64 else len(layers))
    assert "layers.1.ffn.down" in ordered


def by_activation(tmp_path: Path) -> Path:
    layers = folders.all_layers(4, 32, symmetric=True)
    folders.order_by_activation(layers)
    return folders.gptq_folder(tmp_path / "gptq", layers, 4, sym=True)


def test_orders_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    folder = by_activation(tmp_path)
    with packhorse.Session.load(folder, kv_tokens=0, max_tokens=64) as session:
        together = session.run(IDS, outputs=["hidden"]).hidden
        alone = [session.run([ids], outputs=["hidden"]).hidden for ids in IDS]
        assert session.run([], outputs=["hidden"]).hidden.shape == (0, 64)
        assert len(session.run([[], [1], []], outputs=["hidden"]).hidden) == 1
    np.testing.assert_array_equal(together, np.concatenate(alone))
    np.testing.assert_array_equal(together, hidden(folder, STORED, threads=1))


def test_converted_orders(tmp_path: Path) -> None:
    """A converted folder has the bits of its source, as floats too, and can be converted again."""
    source = by_activation(tmp_path)
    once = convert(source, tmp_path / "once", dtype=STORED)
    twice = convert(once, tmp_path / "twice", dtype=STORED)
    assert (once / "model.safetensors").read_bytes() == (twice / "model.safetensors").read_bytes()
    for dtype in (STORED, "float32"):
        np.testing.assert_array_equal(hidden(once, dtype), hidden(source, dtype))
    planned = packhorse.plan_memory(once, kv_tokens=64)
    sizes = {buffer.name: buffer.bytes for buffer in planned.weights.buffers}
    assert sizes["layers.1.ffn.down.input_order"] == 96 * 4
    assert sizes["layers.1.attention.qkv.input_order"] == 64 * 4
    with packhorse.Session.load(once, kv_tokens=64) as session:
        assert session.memory_plan.weights == planned.weights


def test_orders_of_layers_in_one_tensor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Phi-3 has queries, keys and values in one tensor, and gate and up: one order each."""
    config = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0}
    config["original_max_position_embeddings"] = 128
    monkeypatch.setattr(folders, "CONFIG", folders.CONFIG | config)
    stacks = {"self_attn.qkv_proj": (128, 64), "mlp.gate_up_proj": (192, 64)}
    rest = {name: folders.LAYERS[name] for name in ("self_attn.o_proj", "mlp.down_proj")}
    monkeypatch.setattr(folders, "LAYERS", stacks | rest)
    folder = by_activation(tmp_path)
    layers = folders.all_layers(4, 32, symmetric=True)
    folders.order_by_activation(layers)
    expected = hidden(folders.float_folder(tmp_path / "floats", layers), "float32")
    np.testing.assert_array_equal(hidden(folder, "float32"), expected)
    near(hidden(folder, STORED), expected, 0.03)
    (entry,) = resolve_model(folder).in_dtype(STORED).spec["quantized"]
    assert entry["input_order"]
    assert len(entry["layers"]) == 14
    converted = convert(folder, tmp_path / "converted", dtype=STORED)
    np.testing.assert_array_equal(hidden(converted, STORED), hidden(folder, STORED))
    names = read_safetensors(converted / "model.safetensors").keys()
    assert "layers.1.attention.qkv.input_order" in names


def test_orders_that_one_product_cannot_have(tmp_path: Path) -> None:
    """Layers of one product whose orders differ are read as floats, and with gate and up the down
    projection; so are layers whose groups are of different sizes. The others stay quantised, also
    where the first block has none."""
    layers = folders.all_layers(4, 32)
    folders.order_by_activation(layers)
    turned = layers["model.layers.0.self_attn.k_proj"]
    turned["group"] = turned["group"][::-1].copy()
    layers["model.layers.0.mlp.up_proj"]["group"] = np.arange(64) // 32
    uneven = layers["model.layers.0.self_attn.o_proj"]
    uneven["group"] = np.where(np.arange(64) < 33, 0, 1)
    folder = folders.gptq_folder(tmp_path / "gptq", layers, 4)
    expected = hidden(folders.float_folder(tmp_path / "floats", layers), "float32")
    np.testing.assert_array_equal(hidden(folder, "float32"), expected)
    near(hidden(folder, STORED), expected, 0.03)
    (entry,) = resolve_model(folder).in_dtype(STORED).spec["quantized"]
    assert len(entry["layers"]) == 7
    assert all(layer.startswith("layers.1.") for layer in entry["layers"])


def test_scratch_is_that_of_the_largest_layer(tmp_path: Path) -> None:
    """Blocks have weights of different forms, whichever comes first."""
    whole = folders.all_layers(4, 32)
    bytes_of: dict[str, dict[str, int]] = {}
    for which in ("none", "first", "last", "both"):
        layers = {name: dict(one) for name, one in whole.items()}
        for i in range(2):
            if which not in (("first", "last")[i], "both"):
                for name, one in layers.items():  # groups of different sizes become floats
                    if f"layers.{i}" in name:
                        one["group"] = np.minimum(one["group"], 1)
                        one["group"][:40] = 0
        folder = folders.gptq_folder(tmp_path / which, layers, 4)
        arena = packhorse.plan_memory(
            folder, dtype="float32" if which == "none" else STORED, kv_tokens=0, max_tokens=64
        ).arena
        bytes_of[which] = {one.name: one.bytes for one in arena.buffers if "work" in one.name}
    assert bytes_of["first"] == bytes_of["last"]
    for name in ("linear_workspace", "feed_forward_workspace"):
        assert bytes_of["first"][name] == max(bytes_of["none"][name], bytes_of["both"][name])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers.0.ffn.down": None}, r"down.input_order' is missing; expected int32\[96\]"),
        ({"layers.0.ffn.down": np.zeros(95)}, r"is int32\[95\]; expected int32\[96\]"),
        ({"layers.0.ffn.down": np.zeros(96)}, "down.input_order' does not name each of 96"),
        ({"layers.1.attention.output": np.arange(1, 65)}, "does not name each of 64 features"),
    ],
)
def test_refused_orders(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = convert(by_activation(tmp_path), tmp_path / "stored", dtype=STORED)
    file = folder / "model.safetensors"
    tensors = {
        name: Tensor(one.data.copy(), one.dtype) for name, one in read_safetensors(file).items()
    }
    for layer, order in changes.items():
        del tensors[f"{layer}.input_order"]
        if order is not None:
            tensors[f"{layer}.input_order"] = Tensor(order.astype(np.int32), "int32")
    write_safetensors(file, tensors)
    with pytest.raises(ValueError, match=message):
        packhorse.Session.load(folder)


def test_adapters_of_ordered_layers(tmp_path: Path) -> None:
    """An adapter adds the same to layers whose inputs are in an order as to layers of floats, and
    tokens without an adapter have the bits of a session without adapters."""
    layers = folders.all_layers(4, 32)
    folders.order_by_activation(layers)
    rng = np.random.default_rng(7)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    tensors = {}
    for name, layer in layers.items():
        rows, columns = layer["q"].shape
        for kind, shape in (("A", (2, columns)), ("B", (rows, 2))):
            values = rng.normal(0, 0.3, shape).astype(np.float32)
            tensors[f"base_model.model.{name}.lora_{kind}.weight"] = Tensor(values, "float32")
    write_safetensors(adapter / "adapter_model.safetensors", tensors)
    names = [name.rpartition(".")[2] for name in folders.LAYERS]
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": names}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    folder = folders.gptq_folder(tmp_path / "gptq", layers, 4)

    def logprobs(dtype: Any, named: str | None, **options: Any) -> NDArray[np.float64]:
        asked = Sampling(max_new_tokens=1, prompt_logprobs=72, logprobs=72, adapter=named)
        with packhorse.Session.load(folder, dtype=dtype, kv_tokens=128, **options) as session:
            assert isinstance(session, packhorse.GenerationSession)
            if options:
                session.add_adapter("one", adapter)
            (found,) = session.generate([IDS[0]], asked)
        tops = [*found.prompt_logprobs.top, *found.top_logprobs]
        return np.array([[dict(top)[token] for token in range(72)] for top in tops])

    slots = {"max_adapters": 1, "max_adapter_rank": 2}
    expected = logprobs("float32", "one", **slots)
    plain = logprobs(STORED, None)
    assert np.abs(expected - plain).mean() > 0.5
    near(logprobs(STORED, "one", **slots), expected, 0.03)
    np.testing.assert_array_equal(logprobs(STORED, None, **slots), plain)
