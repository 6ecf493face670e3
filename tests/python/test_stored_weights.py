"""Weights that stay quantised in groups (dtype "stored"): GGUF files, GPTQ and AWQ folders, and
folders that `convert` quantised. References: the floats that the values stand for, by readers that
are compared with others elsewhere (test_gguf.py) or by the packers of quantized_folders.py; and
sessions of float32 on these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
import quantized_folders as folders
from checkpoints import GOLDEN
from numpy.typing import NDArray
from packhorse import Sampling
from packhorse_weights import CheckpointError, convert, inspect_checkpoint, resolve_model
from packhorse_weights.gguf_file import read_gguf
from packhorse_weights.gguf_tensor import QuantizedTensor, open_tensor
from packhorse_weights.grouped import GroupFormat, unpack_rows
from packhorse_weights.safetensors_file import read_safetensors, write_safetensors
from packhorse_weights.stored import STORED
from packhorse_weights.tensor import Tensor

pytestmark = pytest.mark.arm

GGUF = GOLDEN / "gguf"
LLAMA = GGUF / "llama.gguf"
IDS = [[5, 9, 2, 33, 17, 40, 8], [12], [61, 3, 3, 7, 50]]
# float16 keeps these scales and minima, which are products, to within half of 2^-10 of themselves.
ROUNDED = ("Q4_K", "Q5_K", "Q6_K")


def hidden(path: Path, dtype: Any, **options: Any) -> NDArray[np.float32]:
    with packhorse.Session.load(
        path, dtype=dtype, kv_tokens=0, max_tokens=64, **options
    ) as session:
        assert session.dtype == (dtype or STORED)
        return session.run(IDS, outputs=["hidden"]).hidden


def near(found: NDArray[Any], expected: NDArray[Any], share: float) -> None:
    """Whether differences are small beside the values, in the mean of squares."""
    assert np.isfinite(found).all()
    error = np.sqrt(np.mean(np.square(found - expected)) / np.mean(np.square(expected)))
    assert 0 < error < share


def test_rows_of_every_gguf_type() -> None:
    found = 0
    for name, stored in read_gguf(GGUF / "types.gguf").tensors.items():
        tensor = open_tensor(stored)
        if not isinstance(tensor, QuantizedTensor):
            continue
        found += 1
        packed = tensor.packed(name)
        assert packed.shape == (3, tensor.form.row_bytes(512))
        values = unpack_rows(tensor.form, packed, 512)
        if name in ROUNDED:
            bound = np.abs(tensor.data).max() * 2.0**-10
            np.testing.assert_allclose(values, tensor.data, rtol=0, atol=bound)
        else:
            np.testing.assert_array_equal(values, tensor.data, name)
    assert found == 8


def test_scales_that_float16_cannot_hold() -> None:
    from packhorse_weights.grouped import Grouped, pack_rows

    rows = Grouped(np.zeros((1, 32), np.uint8), np.full((1, 1), 7e4, np.float32), None)
    with pytest.raises(CheckpointError, match="'name' has a group with the scale .* 70000"):
        pack_rows(GroupFormat(4, 32, False), rows, "name")


def test_odd_numbers_of_columns() -> None:
    """The last group has fewer, and half a byte is left."""
    from packhorse_weights.grouped import Grouped, pack_rows

    rng = np.random.default_rng(0)
    form = GroupFormat(4, 32, True)
    rows = Grouped(
        rng.integers(0, 16, (5, 45)).astype(np.uint8),
        rng.uniform(0.01, 1, (5, 2)).astype(np.float16),
        rng.normal(size=(5, 2)).astype(np.float16),
    )
    packed = pack_rows(form, rows, "name")
    assert packed.shape == (5, 23 + 8)
    scales, minima = (np.repeat(one.astype(np.float64), 32, 1)[:, :45] for one in rows[1:])
    np.testing.assert_allclose(
        unpack_rows(form, packed, 45), rows.values * scales + minima, rtol=0, atol=1e-6
    )


def test_gguf_stays_as_it_is() -> None:
    """By default on the CPU; all forms of this file, in one layer of several parts too."""
    checkpoint = inspect_checkpoint(LLAMA)
    assert checkpoint.stored_dtype == STORED
    assert checkpoint.default_dtype("cpu") == STORED
    assert checkpoint.default_dtype("cuda") == "float16"
    assert "quantized" not in checkpoint.spec
    spec = checkpoint.spec_in(STORED)
    kept = [layer for entry in spec["quantized"] for layer in entry["layers"]]
    # The heads of 8 features are padded to 16, which groups of the output layer's input cannot be.
    assert not [layer for layer in kept if layer.endswith("attention.output")]
    assert {"layers.0.attention.query", "layers.1.ffn.down", "lm.decoder"} <= set(kept)
    near(hidden(LLAMA, None), hidden(LLAMA, "float32"), 0.02)
    np.testing.assert_array_equal(hidden(LLAMA, STORED), hidden(LLAMA, None))


def test_bits_do_not_depend_on_the_batch() -> None:
    with packhorse.Session.load(LLAMA, kv_tokens=0, max_tokens=64) as session:
        together = session.run(IDS, outputs=["hidden"]).hidden
        alone = [session.run([ids], outputs=["hidden"]).hidden for ids in IDS]
    np.testing.assert_array_equal(together, np.concatenate(alone))
    np.testing.assert_array_equal(together, hidden(LLAMA, STORED, threads=1))


@pytest.mark.parametrize("path", [LLAMA, GOLDEN / "generation" / "llama"])
def test_plan(path: Path, tmp_path: Path) -> None:
    """The plan is what a load takes, and a spec that says what is quantised has the same."""
    if path.is_dir():
        path = convert(path, tmp_path / "int4", quantize="int4")
    planned = packhorse.plan_memory(path, kv_tokens=64)
    with packhorse.Session.load(path, kv_tokens=64) as session:
        assert session.memory_plan.weights == planned.weights
    spec = resolve_model(path).in_dtype(STORED).spec
    assert packhorse.plan_memory(spec, kv_tokens=64).weights == planned.weights
    assert packhorse.plan_memory(path, dtype="float32", kv_tokens=64).weights.bytes > (
        planned.weights.bytes
    )
    assert packhorse.plan_memory(spec, dtype="float32", kv_tokens=64).weights == (
        packhorse.plan_memory(path, dtype="float32", kv_tokens=64).weights
    )


def test_real_model_takes_the_bytes_of_its_file(smollm2: Path) -> None:
    planned = packhorse.plan_memory(smollm2, kv_tokens=64).weights
    sizes = {buffer.name: buffer.bytes for buffer in planned.buffers}
    # 4 bits, and a scale and a minimum for 32 values; 8 bits and a scale.
    assert sizes["layers.0.ffn.down.weight"] == 576 * (1536 // 2 + 1536 // 32 * 4)
    assert sizes["layers.29.attention.qkv.weight"] == 960 * (576 // 2 + 576 // 32 * 4)
    assert sizes["lm.decoder.weight"] == 49152 * (576 + 576 // 32 * 2)


@pytest.mark.parametrize(
    ("bits", "group", "symmetric", "minus"),
    [(4, 32, False, 1), (4, 64, True, 1), (4, -1, False, 0), (8, 32, True, 1), (8, 64, False, 1)],
)
def test_gptq(bits: int, group: int, symmetric: bool, minus: int, tmp_path: Path) -> None:
    layers = folders.all_layers(bits, group, symmetric)
    quantization = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "sym": symmetric,
        "desc_act": False,
        "checkpoint_format": "gptq" if minus else "gptq_v2",
    }
    packed = {name: folders.gptq(one, bits, minus) for name, one in layers.items()}
    compare(folders.write_folder(tmp_path / "gptq", packed, quantization), layers, tmp_path)


def test_awq(tmp_path: Path) -> None:
    layers = folders.all_layers(4, 32)
    packed = {name: folders.awq(one) for name, one in layers.items()}
    quantization = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 32,
        "zero_point": True,
        "version": "gemm",
    }
    compare(folders.write_folder(tmp_path / "awq", packed, quantization), layers, tmp_path)


def compare(folder: Path, layers: dict[str, folders.Layer], tmp_path: Path) -> None:
    """As floats the folder is the same model, bit for bit; quantised, all of its layers stay so."""
    floats = folders.float_folder(tmp_path / "floats", layers)
    expected = hidden(floats, "float32")
    np.testing.assert_array_equal(hidden(folder, "float32"), expected)
    near(hidden(folder, None), expected, 0.03)
    spec = resolve_model(folder).in_dtype(STORED).spec
    assert sum(len(entry["layers"]) for entry in spec["quantized"]) == len(layers)
    files = resolve_model(folder)
    assert files.tensors is not None
    theirs = {"layers.0.attention.key": "self_attn.k_proj", "layers.0.ffn.down": "mlp.down_proj"}
    for ours, name in theirs.items():
        tensor: Any = files.tensors[f"{ours}.weight"]
        values = unpack_rows(tensor.form, tensor.packed(ours), tensor.shape[1])
        original = folders.values(layers[f"model.layers.0.{name}"])
        np.testing.assert_array_equal(tensor.data, original)
        if tensor.input_order is not None:
            original = original[:, tensor.input_order]
        # A minimum is a scale times a zero point, rounded to float16.
        np.testing.assert_allclose(values, original, rtol=0, atol=2.0**-12)


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
    entries = resolve_model(folder).in_dtype(STORED).spec["quantized"]
    ordered = {layer for one in entries if one.get("input_order") for layer in one["layers"]}
    # Where all features are of one group, there is nothing to order.
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
    """Where blocks have weights of different forms, whichever comes first."""
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes'.*gptq, awq"),
        ({"bits": 3}, "bits = 3 with quant_method 'gptq'"),
        ({"group_size": 48}, "group_size = 48 is not supported"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({"group_size": 64}, r"q_proj.qzeros' is int32\[2, 8\]; expected int32\[1, 8\]"),
        ({"sym": True}, "zero point .* sym = true; expected 8"),
    ],
)
def test_refused_folders(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    packed = {name: folders.gptq(one, 4) for name, one in folders.all_layers(4, 32).items()}
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False} | changes
    folder = folders.write_folder(tmp_path / "gptq", packed, quantization)
    with pytest.raises(ValueError, match=message):
        hidden(folder, None)


@pytest.mark.parametrize(("quantize", "size"), [("int4", None), ("int4", 64), ("int8", 128)])
@pytest.mark.parametrize("model", ["llama", "gpt2", "qwen2"])
def test_convert(model: str, quantize: str, size: int | None, tmp_path: Path) -> None:
    source = GOLDEN / "generation" / model
    folder = convert(source, tmp_path / "out", quantize=quantize, group_size=size)
    spec = json.loads((folder / "packhorse.json").read_text())
    forms = {(e["bits"], e["group"], e["minima"]) for e in spec["quantized"]}
    bits = int(quantize.removeprefix("int"))
    assert forms == {(bits, size or 32, bits == 4), (8, size or 32, False)}
    assert inspect_checkpoint(folder).stored_dtype == STORED
    near(hidden(folder, None), hidden(source, "float32"), 0.4 if bits == 4 else 0.05)
    near(hidden(folder, None), hidden(folder, "float32"), 0.05)


def test_rounding_is_near_the_best() -> None:
    """The squared errors are no larger than those of rounding between the extremes."""
    from packhorse_weights.quantize_groups import RoundedTensor
    from packhorse_weights.tensor import Tensor

    floats = np.random.default_rng(0).normal(size=(8, 75)).astype(np.float32)
    floats[3] = 0
    for form in (GroupFormat(4, 32, True), GroupFormat(4, 32, False), GroupFormat(8, 64, False)):
        tensor = RoundedTensor(form, Tensor(floats, "float32"), "name")
        found = unpack_rows(form, tensor.packed("name"), 75)
        np.testing.assert_array_equal(found[3], 0)
        steps = (1 << form.bits) - 1
        for begin in range(0, 75, form.size):
            group, of_found = (one[:, begin : begin + form.size] for one in (floats, found))
            low = group.min(1, keepdims=True) if form.minima else 0
            step = (group.max(1, keepdims=True) - low) / steps
            if not form.minima:
                step = np.abs(group).max(1, keepdims=True) / (steps // 2)
            plain = np.rint((group - low) / np.maximum(step, 1e-9)) * step + low
            errors = [np.square(one - group).sum(1) for one in (of_found, plain)]
            assert (errors[0] <= errors[1] * 1.05 + 1e-6).all()


def test_gguf_converted_as_it_is(tmp_path: Path) -> None:
    """The same bits; as floats, the floats of the file."""
    folder = convert(LLAMA, tmp_path / "stored", dtype=STORED)
    np.testing.assert_array_equal(hidden(folder, None), hidden(LLAMA, None))
    np.testing.assert_array_equal(hidden(folder, "float32"), hidden(LLAMA, "float32"))
    size = (folder / "model.safetensors").stat().st_size
    floats = convert(LLAMA, tmp_path / "floats")
    assert size < 0.7 * (floats / "model.safetensors").stat().st_size
    assert inspect_checkpoint(floats).stored_dtype == "float32"


def test_refusals(tmp_path: Path) -> None:
    llama = GOLDEN / "generation" / "llama"
    with pytest.raises(ValueError, match="'stored', but this model has no weights that are quant"):
        packhorse.Session.load(llama, dtype=STORED)
    with pytest.raises(CheckpointError, match="nothing quantised to keep"):
        convert(llama, tmp_path / "a", dtype=STORED)
    with pytest.raises(CheckpointError, match="group_size is 48.*one of 32, 64, 128"):
        convert(llama, tmp_path / "a", quantize="int4", group_size=48)
    with pytest.raises(CheckpointError, match="group_size is 32, quantize None"):
        convert(llama, tmp_path / "a", group_size=32)
    with pytest.raises(CheckpointError, match="quantize 'int4', but dtype 'stored'"):
        convert(LLAMA, tmp_path / "a", dtype=STORED, quantize="int4")
    folder = convert(llama, tmp_path / "int4", quantize="int4")
    spec = json.loads((folder / "packhorse.json").read_text())
    spec["quantized"][0]["group"] = 16
    (folder / "packhorse.json").write_text(json.dumps(spec))
    with pytest.raises(ValueError, match=r"'layers.0.attention.query.weight' is uint8\[32, 20\]"):
        packhorse.Session.load(folder)
