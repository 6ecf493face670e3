"""Weights that stay quantised in groups in models with an encoder and a decoder. Reference: the
model in float64 (reference_text_to_text.py) on the floats that the values stand for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
import quantized_folders as folders
import reference_text_to_text
from checkpoints import GOLDEN
from packhorse_weights import CheckpointError, convert, inspect_checkpoint, resolve_model
from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors
from packhorse_weights.quantization.grouped import GroupedTensor, unpack_rows
from packhorse_weights.quantization.stored import STORED, stored_tensors
from packhorse_weights.tensor import Tensor, cast, default_dtype
from stored_runs import near
from text_to_text_cases import FOLDER, log_softmax

pytestmark = pytest.mark.arm

# The last parts of the names of dense layers in blocks, as these families call them.
DENSE = (
    "q_proj",
    "k_proj",
    "v_proj",
    "out_proj",
    "fc1",
    "fc2",
    *"qkvo",
    "wi",
    "wi_0",
    "wi_1",
    "wo",
)
SOURCES = [np.array(ids, np.int32) for ids in ([4, 7, 9, 3, 2, 11, 17], [5], [61, 3, 3, 50])]
TARGETS = [np.array(ids, np.int32) for ids in ([0, 5, 6, 7, 8], [0, 9], [0, 71, 4, 4])]


def rounded(
    name: str, bits: int, to: Path, **changes: Any
) -> tuple[Path, dict[str, folders.Layer]]:
    """A golden model whose dense layers are random ones in GPTQ's form, and these. changes: of its
    config."""
    shutil.copytree(FOLDER / name, to, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors: dict[str, Tensor] = {}
    layers: dict[str, folders.Layer] = {}
    for name_of, tensor in read_safetensors(FOLDER / name / "model.safetensors").items():
        module = name_of.removesuffix(".weight")
        if not name_of.endswith(".weight") or module.rpartition(".")[2] not in DENSE:
            tensors[name_of] = tensor
            continue
        rows, columns = tensor.shape
        layers[module] = folders.random_layer(rows, columns, bits, 32, len(layers))
        for part, array in folders.gptq(layers[module], bits).items():
            tensors[f"{module}.{part}"] = Tensor(array, array.dtype.name)
    write_safetensors(to / "model.safetensors", tensors)
    config = json.loads((to / "config.json").read_text())
    form = {"quant_method": "gptq", "bits": bits, "group_size": 32, "sym": False, "desc_act": False}
    (to / "config.json").write_text(json.dumps(config | {"quantization_config": form} | changes))
    return to, layers


def reference(spec: Any, tensors: dict[str, Any]) -> Any:
    """Log-probabilities of what follows the first tokens of TARGETS."""
    return np.concatenate(
        [
            log_softmax(reference_text_to_text.logits(spec, tensors, source, target))[
                np.arange(len(target) - 1), target[1:]
            ]
            for source, target in zip(SOURCES, TARGETS, strict=True)
        ]
    )


def scored(path: Path, dtype: Any) -> Any:
    """A session's, of targets that run together; each alone has the same bits."""
    scoring = packhorse.Sampling(max_new_tokens=1, prompt_logprobs=0)
    with packhorse.Session.load(path, dtype=dtype, kv_tokens=2048) as session:
        assert session.dtype == (dtype or STORED)
        made = session.generate(TARGETS, scoring, sources=SOURCES)
        found = [one.prompt_logprobs.logprobs for one in made]
        for source, target, together in zip(SOURCES, TARGETS, found, strict=True):
            alone = session.generate([target], scoring, sources=[source])[0]
            np.testing.assert_array_equal(alone.prompt_logprobs.logprobs, together)
    return np.concatenate(found)


@pytest.mark.parametrize(
    ("name", "bits", "heads", "kept"),
    [
        ("bart", 4, 2, 2 * 6 + 2 * 10),
        # Heads of 8 or 12 are padded, so that output layers of attention become floats.
        ("marian", 4, 4, 3 * 5 + 2 * 8),
        ("t5-gated", 8, 3, 2 * 6 + 2 * 9),
    ],
)
def test_gptq(name: str, bits: int, heads: int, kept: int, tmp_path: Path) -> None:
    named = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), heads)
    folder, layers = rounded(name, bits, tmp_path / "model", **named)
    checkpoint = inspect_checkpoint(folder)
    tensors: dict[str, Any] = {}
    for ours, theirs in checkpoint.names.items():
        made = layers.get(theirs.removesuffix(".weight"))
        held = checkpoint.tensors[theirs]
        floats = cast(held, "float32", ours).data if made is None else folders.values(made)
        tensors[ours] = floats.astype(np.float64)
    expected = reference(checkpoint.spec, tensors)
    np.testing.assert_allclose(scored(folder, "float32"), expected, rtol=0, atol=5e-4)
    near(scored(folder, None), expected, 0.03)
    forms = checkpoint.spec_in(STORED)["quantized"]
    stay = [layer for form in forms for layer in form["layers"]]
    assert len(stay) == kept
    assert {"encoder.layers.1.ffn.up", "decoder.layers.1.cross_attention.value"} <= {*stay}


@pytest.mark.parametrize(("name", "quantize"), [("t5", "int4"), ("marian-two-tables", "int8")])
def test_converted(name: str, quantize: str, tmp_path: Path) -> None:
    folder = convert(FOLDER / name, tmp_path / "model", quantize=quantize, group_size=32)
    model = resolve_model(folder)
    assert model.tensors is not None
    grouped = {ours for ours, held in model.tensors.items() if isinstance(held, GroupedTensor)}
    assert {"lm.decoder.weight", "decoder.layers.0.cross_attention.key.weight"} <= grouped
    read = {ours: cast(held, "float32", ours).data for ours, held in model.tensors.items()}
    tensors = {ours: held.astype(np.float64) for ours, held in read.items()}
    spec = json.loads(json.dumps(model.spec))
    spec["heads"]["lm"]["tied"] = False  # it is rounded apart from the table
    expected = reference(spec, tensors)
    near(scored(folder, None), expected, 0.03 if quantize == "int8" else 0.06)
    original = read_safetensors(FOLDER / name / "model.safetensors")
    kept = original["shared.weight" if name == "t5" else "model.encoder.embed_tokens.weight"]
    np.testing.assert_array_equal(read["encoder.embeddings.word"], kept.data)


def test_tables_of_scores_are_no_layers(tmp_path: Path) -> None:
    """Each layer of UMT5 has one, which int8 leaves alone."""
    for model in (GOLDEN / "umt5", FOLDER / "umt5"):
        folder = convert(model, tmp_path / model.parent.name, quantize="int8")
        held = read_safetensors(folder / "model.safetensors")
        dtypes = {name: one.dtype for name, one in held.items() if "relative_bias" in name}
        assert len(dtypes) >= 2
        assert {*dtypes.values()} == {"float32"}
        assert sum(one.dtype == "int8" for one in held.values()) > 2 * len(dtypes)


def test_convert_keeps_what_is_stored(tmp_path: Path) -> None:
    source, _ = rounded("bart", 4, tmp_path / "model")
    folder = convert(source, tmp_path / "converted", dtype=STORED)
    np.testing.assert_array_equal(scored(folder, None), scored(source, None))
    model = resolve_model(source)
    assert model.tensors is not None
    name = "decoder.layers.0.cross_attention.key"
    held = model.tensors[f"{name}.weight"]
    assert isinstance(held, GroupedTensor)
    packed = stored_tensors(model.spec, model.tensors)[f"{name}.weight"].data
    values = unpack_rows(held.form, packed, 32)
    np.testing.assert_allclose(values, held.data, rtol=0, atol=2.0**-12)


def test_hostile_folders(tmp_path: Path) -> None:
    folder = convert(FOLDER / "t5", tmp_path / "model", quantize="int4")
    spec = json.loads((folder / "packhorse.json").read_text())
    encoder, decoder = spec["stacks"].values()
    for changed, message in (
        ({"a": encoder, "b": decoder, "c": decoder}, "expected one stack or two, found 3"),
        ({"encoder": encoder, "decoder": {**decoder, "layers": []}}, "there is no such layer"),
        (
            {"encoder": {**encoder, "layers": [{"blocks": [{"kind": [1]}]}]}, "decoder": decoder},
            r"kind: expected a block's, found \[1\]",
        ),
    ):
        (folder / "packhorse.json").write_text(json.dumps({**spec, "stacks": changed}))
        with pytest.raises(CheckpointError, match=message):
            resolve_model(folder)


def test_t5_leaves_the_range_of_float16() -> None:
    """CUDA multiplies groups by float16, which T5's activations do not fit."""
    assert default_dtype("cuda", STORED, True, "t5") == "bfloat16"
    assert default_dtype("cuda", STORED, True, "marian") == "float16"
    from packhorse.dtypes import choose_dtype

    with pytest.raises(ValueError, match="dtype 'stored'.*float16.*bfloat16"):
        choose_dtype(STORED, "cuda:0", STORED, True, {"family": "t5"})
    assert choose_dtype(STORED, "cuda", STORED, True, {"family": "marian"}) == STORED
    assert choose_dtype(STORED, "cpu", STORED, True, {"family": "t5"}) == STORED
