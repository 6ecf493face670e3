"""Files of models of which one field is something else: nothing but clear errors comes out."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapted_model import adapted_texts
from checkpoints import GOLDEN
from mutations import VALUES, check, mutations
from packhorse_weights import CheckpointError, convert, inspect_checkpoint, resolve_model
from packhorse_weights.adapters.peft import read_adapter, read_adapter_rank
from packhorse_weights.architectures import find_architecture
from packhorse_weights.config import Config
from packhorse_weights.formats.gguf.config import read_config
from packhorse_weights.formats.gguf.file import GgufFile, read_gguf
from packhorse_weights.formats.gguf.names import read_tensors
from packhorse_weights.formats.gguf.tokenizer import read_tokenizer
from packhorse_weights.generation_files import generates, read_generation
from packhorse_weights.text import read_text_config
from quantized_folders import all_layers, gptq_folder

FOLDERS = ("bert-dense", "modernbert-reranker", "qwen3-reranker")
GGUFS = sorted(
    f"{folder}/{path.stem}"
    for folder in ("gguf", "gguf_t5")
    for path in (GOLDEN / folder).glob("*.gguf")
    if path.stem != "types"
)
# Values that metadata can hold: no objects, and arrays of one kind.
_METADATA: tuple[Any, ...] = (
    *(value for value in VALUES if type(value) in (str, int, float, bool)),
    [],
    ["a", "b"],
    [[]],
    np.zeros(0, np.int32),
    np.zeros(2, np.float32),
    np.ones(3, bool),
    np.array([2**63, 1], np.uint64),
    np.array([-1], np.int8),
)


def mutate(file: Path, readers: list[Callable[[], object]], depth: int, each: int) -> None:
    text = file.read_text()
    for what, broken in mutations(json.loads(text), depth, each):
        file.write_text(json.dumps(broken))
        for reader in readers:
            check(reader, f"{file.name}: {what}")
    file.write_text(text)


@pytest.mark.parametrize("name", FOLDERS)
def test_folders(name: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(GOLDEN / name, model)
    reads_text = (model / "tokenizer.json").is_file()
    for file in sorted(model.rglob("*.json")):
        if file.name == "tokenizer.json":
            continue
        readers = [
            functools.partial(resolve_model, model),
            functools.partial(read_generation, model),
        ]
        if reads_text and file.name != "config.json":
            readers.append(functools.partial(read_text_config, model))
        mutate(file, readers, 2, 2)


def test_converted(tmp_path: Path) -> None:
    model = convert(GOLDEN / "qwen3", tmp_path / "m", quantize="int4")

    def read() -> None:
        found = resolve_model(model)
        found.in_dtype("stored")
        generates(model, found.spec, None)

    asked = functools.partial(resolve_model, model, pooling="mean", normalize=True)
    mutate(model / "packhorse.json", [read, asked], 3, 2)


def test_headers_of_safetensors(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "llama", tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    data = file.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    for what, broken in itertools.islice(mutations(json.loads(data[8:end]), 3, 1), 80):
        header = json.dumps(broken).encode()
        file.write_bytes(struct.pack("<Q", len(header)) + header + data[end:])
        check(functools.partial(resolve_model, tmp_path / "m"), what)


def test_adapters(tmp_path: Path) -> None:
    model, adapter = adapted_texts(tmp_path)
    spec = inspect_checkpoint(model).spec
    config = adapter / "adapter_config.json"
    fields = json.loads(config.read_text())
    more = {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"x": 3}, "use_rslora": True}
    config.write_text(json.dumps(fields | more | {"bias": "none", "init_lora_weights": True}))
    readers = [
        functools.partial(read_adapter, adapter, spec),
        functools.partial(read_adapter_rank, adapter),
    ]
    mutate(config, readers, 2, 6)


@pytest.mark.parametrize(
    "settings",
    [
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": True},
        {"quant_method": "awq", "w_bit": 4, "q_group_size": 32, "zero_point": True},
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {
                "group_0": {"weights": {"num_bits": 4, "group_size": 32, "symmetric": True}}
            },
            "sparsity_config": {"format": "dense"},
            "transform_config": {},
        },
    ],
    ids=lambda settings: settings["quant_method"],
)
def test_quantization_configs(settings: dict[str, Any], tmp_path: Path) -> None:
    model = gptq_folder(tmp_path / "m", all_layers(4, 32), 4)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    for what, broken in mutations(settings, 4, 3):
        text = json.dumps({**config, "quantization_config": broken})
        (model / "config.json").write_text(text)
        check(functools.partial(resolve_model, model), what)


def read_model(file: GgufFile) -> None:
    fields, _ = read_config(file)
    config = Config(fields, str(file.path))
    model_type, family = find_architecture(config)
    family.spec(model_type, config)
    read_tensors(file, fields)


@pytest.mark.parametrize("name", GGUFS)
def test_metadata_of_gguf(name: str) -> None:
    file = read_gguf(GOLDEN / f"{name}.gguf")
    for key in file.metadata:
        reader = read_tokenizer if key.startswith("tokenizer") else read_model
        for value in _METADATA:
            broken = dataclasses.replace(file, metadata={**file.metadata, key: value})
            check(functools.partial(reader, broken), f"{key} = {value!r:.40}")


def test_memory_of_gguf() -> None:
    """Nothing large is made of a number in the metadata before a tensor is looked at."""
    for name, key in (("llama", "attention.key_length"), ("gemma3", "block_count")):
        file = read_gguf(GOLDEN / "gguf" / f"{name}.gguf")
        key = f"{name}.{key}"
        broken = dataclasses.replace(file, metadata={**file.metadata, key: 2**31 - 1})
        tracemalloc.start()
        with pytest.raises(CheckpointError, match=f"{name}: {key.split('.', 1)[1]}: expected a"):
            read_model(broken)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 10 << 20
