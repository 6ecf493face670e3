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
from models import random_tensors, tiny_spec, write_model
from packhorse_weights import CheckpointError, convert, inspect_checkpoint, resolve_model
from packhorse_weights.formats.gguf.file import read_gguf
from packhorse_weights.formats.gguf.tensor import QuantizedTensor, open_tensor
from packhorse_weights.formats.safetensors import write_safetensors
from packhorse_weights.quantization.grouped import Grouped, GroupFormat, pack_rows, unpack_rows
from packhorse_weights.quantization.stored import STORED
from packhorse_weights.tensor import Tensor, cast
from stored_runs import IDS, compare, hidden, near

pytestmark = pytest.mark.arm

GGUF = GOLDEN / "gguf"
LLAMA = GGUF / "llama.gguf"
# float16 keeps these scales and minima, which are products, to within half of 2^-10 of themselves.
ROUNDED = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


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
    assert found == 10


def test_scales_that_float16_cannot_hold() -> None:
    rows = Grouped(np.zeros((1, 32), np.uint8), np.full((1, 1), 7e4, np.float32), None)
    with pytest.raises(CheckpointError, match="'name' has a group with the scale .* 70000"):
        pack_rows(GroupFormat(4, 32, False), rows, "name")


def test_odd_numbers_of_columns() -> None:
    """The last group has fewer, and half a byte is left."""
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
    """Weights stay quantised by default on the CPU; all forms of this file, in one layer of several
    parts too."""
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
    assert planned.bytes < smollm2.stat().st_size
    # 4 bits, and a scale and a minimum for 32 values; 8 bits and a scale.
    assert sizes["layers.0.ffn.down.weight"] == 576 * (1536 // 2 + 1536 // 32 * 4)
    assert sizes["layers.29.attention.qkv.weight"] == 960 * (576 // 2 + 576 // 32 * 4)
    assert sizes["embeddings.word.weight"] == 49152 * (576 + 576 // 32 * 2)
    assert "lm.decoder.weight" not in sizes  # the decoder is the table


@pytest.mark.parametrize("form", [(4, 32, True), (4, 64, False), (8, 16, False), (8, 128, True)])
def test_rows_of_tables_are_decoded_as_they_are_read(
    form: tuple[int, int, bool], tmp_path: Path
) -> None:
    """Bits are those of a table of the same values as floats, and of a tied decoder beside one with
    a tensor of its own."""
    rng = np.random.default_rng(0)
    groups = GroupFormat(*form)
    spec = tiny_spec(
        vocab_size=130,
        hidden_size=80,
        embedding_scale=2.5,
        attention={"mask": "causal"},
        heads={"lm": {"tied": True}},
        embedding={"pooling": "last", "normalize": False},
    )
    tensors = dict(random_tensors(spec))
    count = groups.groups(80)
    rows = Grouped(
        rng.integers(0, 2**groups.bits, (130, 80)).astype(np.uint8),
        rng.uniform(0.001, 0.01, (130, count)).astype(np.float16),
        rng.normal(size=(130, count)).astype(np.float16) if groups.minima else None,
    )
    packed = pack_rows(groups, rows, "table")

    def run(name: str, layer: str, **changed: Any) -> Any:
        fields = {"bits": groups.bits, "group": groups.size, "minima": groups.minima}
        quantized = [{**fields, "layers": [layer]}]
        folder = write_model(tmp_path / name, spec | {"quantized": quantized}, tensors | changed)
        given: dict[str, Any] = {"kv_tokens": 0, "max_predictions": 4, "max_tokens": 64}
        with packhorse.Session.load(folder, **given) as session:
            assert session.memory_plan == packhorse.plan_memory(folder, **given)
            outputs = ["hidden", "predictions"]
            found = session.run([[0, 63, 64, 129]], outputs=outputs, rows=[0, 1, 2, 3])
            return found.hidden, found.predictions, session.memory_plan.weights.bytes

    hidden, logits, taken = run("packed", "embeddings.word", **{"embeddings.word": packed})
    values = {"embeddings.word": unpack_rows(groups, packed, 80)}
    *expected, more = run("floats", "lm.decoder", **values, **{"lm.decoder.weight": packed})
    np.testing.assert_array_equal(hidden, expected[0])
    np.testing.assert_array_equal(logits, expected[1])
    assert more - taken >= 130 * 80 * 4


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_tables_of_16_bits_stay_so_in_float32(stored: str, tmp_path: Path) -> None:
    """Outputs have the bits that float32 values give them, in half of the table's bytes."""
    spec = tiny_spec(vocab_size=130, hidden_size=80, embedding_scale=2.5)
    tensors = {name: Tensor(one, str(one.dtype)) for name, one in random_tensors(spec).items()}
    half = tensors | {"embeddings.word": cast(tensors["embeddings.word"], stored, "table")}
    wide = half | {"embeddings.word": cast(half["embeddings.word"], "float32", "table")}
    found = []
    for name, these in (("half", half), ("wide", wide)):
        folder = write_model(tmp_path / name, spec)
        write_safetensors(folder / "model.safetensors", these)
        with packhorse.Session.load(folder, dtype="float32", max_tokens=64) as session:
            assert session.memory_plan == packhorse.plan_memory(folder, max_tokens=64)
            hidden = session.run([[0, 63, 64, 129]], outputs=["hidden"]).hidden
            sizes = {buffer.name: buffer.bytes for buffer in session.memory_plan.weights.buffers}
            found.append((hidden, sizes["embeddings.word"]))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert [size for _, size in found] == [130 * 80 * 2, 130 * 80 * 4]


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
    from packhorse_weights.quantization.groupwise import RoundedTensor
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
    """Hidden states have the same bits as those of the file, both quantised and in float32."""
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
