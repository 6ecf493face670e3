"""The converter: families, names, refusals, dtypes, and what it writes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import packhorse_weights
import pytest
from packhorse_weights import CheckpointError, Tensor, convert, inspect_checkpoint, resolve_model
from packhorse_weights.layout import STACKS, weight_shapes
from packhorse_weights.safetensors_file import read_safetensors, write_safetensors
from packhorse_weights.tensor import cast, to_float32

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDERS = sorted(path.parent for path in GOLDEN.glob("*/config.json"))

Edit = Callable[[dict[str, Any]], object]


def edited(
    source: Path, target: Path, config: Edit | None = None, tensors: Edit | None = None
) -> Path:
    """A copy of a golden folder (one safetensors file) with its config and tensors changed."""
    target.mkdir(parents=True)
    fields = json.loads((source / "config.json").read_text())
    weights = dict(read_safetensors(source / "model.safetensors"))
    if config:
        config(fields)
    if tensors:
        tensors(weights)
    (target / "config.json").write_text(json.dumps(fields))
    write_safetensors(target / "model.safetensors", weights)
    return target


def add_prefix(prefix: str) -> Edit:
    def edit(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors[prefix + name] = tensors.pop(name)

    return edit


BERT = GOLDEN / "bert-gelu"


# --- whole folders


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_convert_keeps_every_value(folder: Path, tmp_path: Path) -> None:
    source = inspect_checkpoint(folder)
    convert(folder, tmp_path / "out")
    spec = json.loads((tmp_path / "out" / "packhorse.json").read_text())
    written = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert spec == source.spec
    stacks = [stack for stack in STACKS if f"layers.1.{stack}.weight" in written]
    assert {name: tensor.shape for name, tensor in written.items()} == weight_shapes(spec, stacks)
    for ours, theirs in source.names.items():
        assert written[ours].dtype == source.tensors[theirs].dtype
        np.testing.assert_array_equal(written[ours].data, source.tensors[theirs].data)

    again = inspect_checkpoint(tmp_path / "out")
    assert again.converted
    assert again.spec == spec
    convert(folder, tmp_path / "twice")
    for name in ("packhorse.json", "model.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_resolve_agrees_with_convert(folder: Path, tmp_path: Path) -> None:
    """Loading in place gives the tensors and the spec that a converted folder gives."""
    convert(folder, tmp_path / "out")
    written = read_safetensors(tmp_path / "out" / "model.safetensors")
    files = resolve_model(folder)
    assert files.spec == json.loads((tmp_path / "out" / "packhorse.json").read_text())
    if files.tensors is None:
        theirs: dict[str, Tensor] = {}
        for path in files.safetensors:
            theirs |= read_safetensors(path)
        found = {ours: theirs[name] for ours, name in files.names.items()}
    else:
        assert not files.safetensors
        found = files.tensors
    assert found.keys() == written.keys()
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor.data, written[name].data)
        assert tensor.data.flags.c_contiguous

    converted = resolve_model(tmp_path / "out")
    assert converted.safetensors == [tmp_path / "out" / "model.safetensors"]
    assert converted.names == {name: name for name in written}
    assert converted.tensors is None


def test_specs() -> None:
    spec = resolve_model(GOLDEN / "bert-312").spec
    assert spec == {
        "format": 1,
        "family": "bert",
        "vocab_size": 100,
        "hidden_size": 312,
        "num_layers": 1,
        "num_heads": 12,
        "num_kv_heads": 12,
        "head_dim": 26,
        "intermediate_size": 96,
        "type_vocab_size": 2,
        "max_seqlen": 120,
        "positions": {"kind": "learned", "count": 120, "offset": 0},
        "norm": {"kind": "layer", "placement": "post", "eps": 1e-12},
        "attention": {"mask": "bidirectional"},
        "ffn": {"kind": "plain", "activation": "gelu"},
        "embedding": {"pooling": "mean_sqrt", "normalize": False},
    }
    for name, pooler in (("roberta", True), ("xlm-roberta", True), ("camembert", False)):
        spec = resolve_model(GOLDEN / name).spec
        assert spec["family"] == name
        assert spec["positions"] == {"kind": "learned", "count": 120, "offset": 2}
        assert spec["max_seqlen"] == 118
        assert spec["type_vocab_size"] == 1
        assert spec["norm"]["eps"] == 1e-5
        assert ("heads" in spec) == pooler


# --- names


@pytest.mark.parametrize("prefix", ["", "bert.", "roberta.", "model.", "module.bert."])
def test_prefixes(prefix: str, tmp_path: Path) -> None:
    def tensors(weights: dict[str, Any]) -> None:
        add_prefix(prefix)(weights)
        weights["cls.predictions.bias"] = Tensor(np.zeros(100, np.float32), "float32")
        weights["classifier.weight"] = Tensor(np.zeros((2, 32), np.float32), "float32")
        weights["lm_head.bias"] = Tensor(np.zeros(100, np.float32), "float32")
        weights[prefix + "embeddings.position_ids"] = Tensor(np.arange(120)[None], "int64")

    folder = edited(BERT, tmp_path / "m", tensors=tensors)
    names = resolve_model(folder).names
    assert names["embeddings.word"] == prefix + "embeddings.word_embeddings.weight"
    assert names["pooler.bias"] == prefix + "pooler.dense.bias"
    assert names["layers.1.ffn.norm.bias"] == prefix + "encoder.layer.1.output.LayerNorm.bias"


def test_old_norm_names() -> None:
    names = resolve_model(GOLDEN / "bert-old-bin").names
    assert names["embeddings.norm.weight"] == "bert.embeddings.LayerNorm.gamma"
    assert names["layers.0.attention.norm.bias"] == (
        "bert.encoder.layer.0.attention.output.LayerNorm.beta"
    )


def test_missing_tensors_are_listed(tmp_path: Path) -> None:
    def tensors(weights: dict[str, Any]) -> None:
        for name in list(weights):
            if "layer.1." in name:
                del weights[name]

    folder = edited(BERT, tmp_path / "m", tensors=tensors)
    with pytest.raises(CheckpointError) as error:
        resolve_model(folder)
    message = str(error.value)
    assert "16 of 39 tensors are missing: encoder.layer.1.attention.self.query.weight" in message
    assert "and 8 more; there are: embeddings.LayerNorm.bias" in message


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "embeddings.word_embeddings.weight",
            (99, 32),
            r"\[99, 32\], config.json says \[100, 32\]",
        ),
        ("encoder.layer.0.attention.self.distance_embedding.weight", (9, 8), "distance_embedding"),
        ("encoder.layer.0.crossattention.self.query.weight", (32, 32), "crossattention"),
        ("encoder.layer.2.output.dense.bias", (32,), r"encoder\.layer\.2"),
        ("bert.embeddings.word_embeddings.weight", (100, 32), "several models"),
    ],
)
def test_other_tensors(name: str, shape: tuple[int, ...], message: str, tmp_path: Path) -> None:
    def tensors(weights: dict[str, Any]) -> None:
        weights[name] = Tensor(np.zeros(shape, np.float32), "float32")

    with pytest.raises(CheckpointError, match=message):
        resolve_model(edited(BERT, tmp_path / "m", tensors=tensors))


def test_no_model_in_the_file(tmp_path: Path) -> None:
    folder = edited(BERT, tmp_path / "m", tensors=add_prefix("x"))
    with pytest.raises(CheckpointError, match=r"no tensor named embeddings\.word_embeddings"):
        resolve_model(folder)


# --- configs


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("gelu", "gelu"),
        ("gelu_python", "gelu"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_fast", "gelu_tanh"),
        ("gelu_accurate", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("gelu_python_tanh", "gelu_tanh"),
        ("relu", "relu"),
        ("silu", "silu"),
        ("swish", "silu"),
        ("tanh", "tanh"),
    ],
)
def test_activations(theirs: str, ours: str, tmp_path: Path) -> None:
    folder = edited(BERT, tmp_path / "m", lambda config: config.update(hidden_act=theirs))
    assert resolve_model(folder).spec["ffn"] == {"kind": "plain", "activation": ours}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "quick_gelu"}, "hidden_act 'quick_gelu' is not supported.*gelu_new"),
        ({"hidden_act": None}, "hidden_act None"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ({"position_embedding_type": "alibi"}, "alibi"),
        ({"is_decoder": True}, "is_decoder = True"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_attention_heads": 5}, "hidden_size 32 is not a multiple of num_attention_heads 5"),
        ({"hidden_size": "32"}, "hidden_size.*whole number.*'32'"),
        ({"hidden_size": True}, "hidden_size"),
        ({"vocab_size": None}, "vocab_size.*found nothing"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"layer_norm_eps": -1}, "layer_norm_eps"),
        ({"layer_norm_eps": "1e-12"}, "layer_norm_eps"),
        ({"model_type": "gpt2"}, "'gpt2'.*bert, roberta, xlm-roberta, camembert"),
        ({"model_type": None, "architectures": ["BertGenerationEncoder"]}, "unknown architecture"),
        ({"model_type": None, "architectures": None}, "unknown architecture"),
        ({"model_type": ["bert"]}, "unknown architecture"),
    ],
)
def test_refused_configs(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = edited(BERT, tmp_path / "m", lambda config: config.update(changes))
    with pytest.raises(CheckpointError, match=message):
        resolve_model(folder)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("BertForMaskedLM", "bert"),
        ("BertLMHeadModel", "bert"),
        ("RobertaModel", "roberta"),
        ("XLMRobertaForTokenClassification", "xlm-roberta"),
        ("CamembertModel", "camembert"),
    ],
)
def test_family_by_class_name(name: str, family: str, tmp_path: Path) -> None:
    def config(fields: dict[str, Any]) -> None:
        del fields["model_type"]
        fields["architectures"] = [name]

    assert resolve_model(edited(BERT, tmp_path / "m", config)).spec["family"] == family


def test_defaults_of_old_configs(tmp_path: Path) -> None:
    def config(fields: dict[str, Any]) -> None:
        for name in ("layer_norm_eps", "pad_token_id", "position_embedding_type"):
            fields.pop(name, None)

    spec = resolve_model(edited(GOLDEN / "roberta", tmp_path / "m", config)).spec
    assert spec["norm"]["eps"] == 1e-12
    assert spec["positions"]["offset"] == 2


def test_folders_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        resolve_model(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        resolve_model(tmp_path)
    (tmp_path / "config.json").write_bytes((BERT / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"no weights; expected.*found: config\.json"):
        resolve_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        resolve_model(tmp_path)


def test_one_weight_file_of_a_folder(tmp_path: Path) -> None:
    folder = edited(BERT, tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "model.fp32.safetensors")
    assert resolve_model(folder / "model.fp32.safetensors").spec["family"] == "bert"


# --- pooling


def with_pooling(
    folder: Path, config: dict[str, Any], kinds: tuple[str, ...] = ("Transformer", "Pooling")
) -> Path:
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": paths.get(kind, kind)}
        for kind in kinds
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True, "include_prompt": True}, "last"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["mean"]}, "mean"),
    ],
)
def test_pooling(config: dict[str, Any], pooling: str, tmp_path: Path) -> None:
    folder = with_pooling(edited(BERT, tmp_path / "m"), config)
    assert resolve_model(folder).spec["embedding"] == {"pooling": pooling, "normalize": False}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "cls, mean"),
        ({"pooling_mode": ["mean", "max"]}, "concatenation"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode": "attention"}, "attention"),
        ({"pooling_mode_mean_tokens": False}, "no pooling mode"),
        ({"pooling_mode": []}, "no pooling mode"),
        ({"pooling_mode": "mean", "include_prompt": False}, "include_prompt"),
    ],
)
def test_refused_pooling(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = with_pooling(edited(BERT, tmp_path / "m"), config)
    with pytest.raises(CheckpointError, match=message):
        resolve_model(folder)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (("Transformer", "Pooling", "Dense", "Normalize"), "'Dense' is not supported"),
        (("WordEmbeddings", "Pooling"), "'WordEmbeddings'"),
        (("Pooling", "Transformer"), "in this order"),
        (("Transformer", "Normalize", "Pooling"), "in this order"),
    ],
)
def test_refused_modules(kinds: tuple[str, ...], message: str, tmp_path: Path) -> None:
    folder = with_pooling(edited(BERT, tmp_path / "m"), {"pooling_mode": "mean"}, kinds)
    with pytest.raises(CheckpointError, match=message):
        resolve_model(folder)


def test_module_paths_stay_inside(tmp_path: Path) -> None:
    folder = with_pooling(edited(BERT, tmp_path / "m"), {"pooling_mode": "mean"})
    text = (folder / "modules.json").read_text().replace("1_Pooling", "../1_Pooling")
    (folder / "modules.json").write_text(text)
    with pytest.raises(CheckpointError, match="leads out"):
        resolve_model(folder)


def test_transformer_in_a_subfolder(tmp_path: Path) -> None:
    edited(BERT, tmp_path / "m" / "0_Transformer")
    with_pooling(tmp_path / "m", {"pooling_mode": "max"}, ("Transformer", "Pooling", "Normalize"))
    text = (tmp_path / "m" / "modules.json").read_text().replace('""', '"0_Transformer"')
    (tmp_path / "m" / "modules.json").write_text(text)
    files = resolve_model(tmp_path / "m")
    assert files.spec["embedding"] == {"pooling": "max", "normalize": True}
    assert files.safetensors == [tmp_path / "m" / "0_Transformer" / "model.safetensors"]


def test_pooling_without_files_says_so_by_the_pooler() -> None:
    assert resolve_model(GOLDEN / "bert-odd").spec["embedding"]["pooling"] == "cls"
    assert resolve_model(GOLDEN / "bert-no-pooler").spec["embedding"]["pooling"] == "mean"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"sentence_bert_config.json": {"max_seq_length": 64}}, 64),
        ({"sentence_roberta_config.json": {"max_seq_length": 4096}}, 120),
        ({"tokenizer_config.json": {"model_max_length": 100}}, 100),
        ({"tokenizer_config.json": {"model_max_length": int(1e30)}}, 120),
        (
            {
                "sentence_bert_config.json": {"max_seq_length": 64},
                "tokenizer_config.json": {"model_max_length": 100},
            },
            64,
        ),
    ],
)
def test_max_length(files: dict[str, Any], expected: int | None, tmp_path: Path) -> None:
    folder = edited(BERT, tmp_path / "m")
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    assert resolve_model(folder).spec.get("max_length") == expected


# --- dtypes


def test_bfloat16_rounds_to_nearest_even() -> None:
    bits = np.array(
        [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F800000, 0xFF800000, 0x80000000, 1],
        np.uint32,
    )
    result = cast(Tensor(bits.view(np.float32), "float32"), "bfloat16", "x")
    expected = [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80, 0xFF80, 0x8000, 0]
    np.testing.assert_array_equal(result.data, expected)
    nan = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000], np.uint32).view(np.float32)
    assert np.isnan(to_float32(cast(Tensor(nan, "float32"), "bfloat16", "x"))).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_convert_dtype(dtype: str, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    convert(BERT, tmp_path / "out", dtype, progress=lambda done, total: seen.append((done, total)))
    source = inspect_checkpoint(BERT)
    tolerance = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    written = read_safetensors(tmp_path / "out" / "model.safetensors")
    for ours, theirs in source.names.items():
        assert written[ours].dtype == dtype
        np.testing.assert_allclose(
            to_float32(written[ours]), source.tensors[theirs].data, rtol=tolerance, atol=1e-7
        )
    assert seen[-1][0] == seen[-1][1] == sum(tensor.data.nbytes for tensor in written.values())
    assert seen == sorted(seen)


def test_float64_becomes_float32(tmp_path: Path) -> None:
    def tensors(weights: dict[str, Any]) -> None:
        for name, tensor in weights.items():
            weights[name] = Tensor(tensor.data.astype(np.float64), "float64")

    folder = edited(BERT, tmp_path / "m", tensors=tensors)
    files = resolve_model(folder)
    assert files.tensors is not None
    expected = read_safetensors(BERT / "model.safetensors")
    for ours, theirs in files.names.items():
        assert files.tensors[ours].dtype == "float32"
        np.testing.assert_array_equal(files.tensors[ours].data, expected[theirs].data)


@pytest.mark.parametrize("value", [70000.0, -1e30, 65520.0])
def test_float16_overflow_is_an_error(value: float, tmp_path: Path) -> None:
    def tensors(weights: dict[str, Any]) -> None:
        data = weights["pooler.dense.bias"].data.copy()
        data[3] = value
        weights["pooler.dense.bias"] = Tensor(data, "float32")

    folder = edited(BERT, tmp_path / "m", tensors=tensors)
    with pytest.raises(CheckpointError, match=r"'pooler\.bias' holds .*does not fit float16"):
        convert(folder, tmp_path / "out", "float16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_inf_and_nan_are_kept(value: float) -> None:
    for dtype in ("float16", "bfloat16"):
        result = to_float32(cast(Tensor(np.array([value], np.float32), "float32"), dtype, "x"))
        np.testing.assert_array_equal(result, [value])


def test_integer_weights_and_unknown_dtypes(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'x' is int8"):
        cast(Tensor(np.zeros(3, np.int8), "int8"), "float32", "x")
    with pytest.raises(CheckpointError, match="'int4' is not one of float32"):
        convert(BERT, tmp_path / "out", "int4")
    assert not list(tmp_path.iterdir())


# --- what is written


def test_other_readers_agree(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    convert(BERT, tmp_path / "out", "float16")
    theirs = safetensors.load_file(tmp_path / "out" / "model.safetensors")
    ours = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert theirs.keys() == ours.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(value, ours[name].data)


def test_mixed_dtypes_are_aligned(tmp_path: Path) -> None:
    tensors = {
        "a": Tensor(np.arange(3, dtype=np.float16), "float16"),
        "b": Tensor(np.arange(5, dtype=np.float32), "float32"),
    }
    write_safetensors(tmp_path / "m", tensors)
    for name, tensor in read_safetensors(tmp_path / "m").items():
        np.testing.assert_array_equal(tensor.data, tensors[name].data)
        assert tensor.data.flags.aligned


def test_large_tensors_are_written_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse_weights.tensor._BLOCK", 7)
    convert(BERT, tmp_path / "blocks", "bfloat16")
    monkeypatch.undo()
    convert(BERT, tmp_path / "whole", "bfloat16")
    name = "model.safetensors"
    assert (tmp_path / "blocks" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_tokenizer_files_travel(tmp_path: Path) -> None:
    folder = edited(BERT, tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        (folder / name).write_text("{}")
    (folder / "optimizer.pt").write_text("{}")
    convert(folder, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "model.safetensors",
        "packhorse.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]


def test_destination(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    convert(BERT, out)
    with pytest.raises(CheckpointError, match="not empty"):
        convert(BERT, out)
    convert(out, out, "float16", overwrite=True)  # a converted folder over itself
    assert read_safetensors(out / "model.safetensors")["pooler.bias"].dtype == "float16"
    (tmp_path / "empty").mkdir()
    convert(BERT, tmp_path / "empty")
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="not a folder"):
        convert(BERT, tmp_path / "file", overwrite=True)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("x")
    with pytest.raises(CheckpointError, match="not a converted folder"):
        convert(BERT, tmp_path / "precious", overwrite=True)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["out"]


def test_a_failed_conversion_leaves_the_old_folder(tmp_path: Path) -> None:
    convert(BERT, tmp_path / "out")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt(f"{done} of {total}")

    with pytest.raises(KeyboardInterrupt):
        convert(GOLDEN / "bert-relu", tmp_path / "out", progress=stop, overwrite=True)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failed_rename_brings_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(BERT, tmp_path / "out")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.suffix == ".partial":
            raise OSError("disk trouble")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="disk trouble"):
        convert(GOLDEN / "bert-relu", tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# --- the package


def test_import_is_light() -> None:
    """No framework, and not the zip reader either: a session imports this when it loads."""
    path = str(Path(packhorse_weights.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {path!r}); import numpy; " + (
        "before = set(sys.modules); import packhorse_weights; "
        "print(sorted({'torch', 'safetensors', 'zipfile', 'transformers', 'pickle'} "
        "& (set(sys.modules) - before)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
