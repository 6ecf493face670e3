"""Parts of golden models beside an encoder: layers in files of their own, and outputs made of the
last hidden state or of a masked language model's logits."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from golden_cases import Case
from safetensors.torch import save_file
from torch import nn

IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
Arrays = dict[str, np.ndarray]


def linear(in_features: int, out_features: int, bias: bool, seed: int) -> nn.Linear:
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(in_features, out_features, bias)
    layer.weight.data = torch.randn(layer.weight.shape, generator=generator) / in_features**0.5
    if bias:
        layer.bias.data = torch.randn(out_features, generator=generator) * 0.3
    return layer


def write_modules(folder: Path, modules: list[tuple[str, str, dict[str, Any]]]) -> None:
    """(class, folder, config) of each module after the transformer."""
    rows = [("sentence_transformers.models.Transformer", "", {}), *modules]
    if modules[0][1].endswith("SpladePooling"):
        rows[0] = ("sentence_transformers.sparse_encoder.models.MLMTransformer", "", {})
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": kind}
        for i, (kind, path, _) in enumerate(rows)
    ]
    (folder / "modules.json").write_text(json.dumps(listed, indent=2))
    for _, path, config in modules:
        (folder / path).mkdir(exist_ok=True)
        if config:
            (folder / path / "config.json").write_text(json.dumps(config, indent=2))


def dense_config(layer: nn.Linear, activation: str) -> dict[str, Any]:
    return {
        "in_features": layer.in_features,
        "out_features": layer.out_features,
        "bias": layer.bias is not None,
        "activation_function": activation,
    }


def state(layer: nn.Linear, prefix: str = "linear.") -> dict[str, torch.Tensor]:
    return {prefix + name: value for name, value in layer.state_dict().items()}


def write_dense(folder: Path, arrays: Arrays, hidden: torch.Tensor) -> None:
    """Mean pooling, then tanh of a layer, another layer, and length 1."""
    first, second = linear(hidden.shape[1], 21, True, 1), linear(21, 13, False, 2)
    models = "sentence_transformers.models."
    pooling = {"pooling_mode_mean_tokens": True}
    write_modules(
        folder,
        [
            (models + "Pooling", "1_Pooling", pooling),
            (models + "Dense", "2_Dense", dense_config(first, TANH)),
            (models + "Dense", "3_Dense", dense_config(second, IDENTITY)),
            (models + "Normalize", "4_Normalize", {}),
        ],
    )
    save_file(state(first), folder / "2_Dense" / "model.safetensors")
    torch.save(state(second), folder / "3_Dense" / "pytorch_model.bin")
    bounds = arrays["cu_seqlens"]
    means = torch.stack([hidden[a:b].mean(0) for a, b in pairwise(bounds)])
    arrays["embedding"] = nn.functional.normalize(second(first(means).tanh())).numpy()


POOLINGS = ("weightedmean", "max", "cls")


def residual_layers(sizes: tuple[int, ...], name: str) -> list[Any]:
    """Dense modules of sentence-transformers that add their inputs, of the features `name`."""
    from sentence_transformers.base.modules import Dense

    modules = []
    for i, (before, size) in enumerate(pairwise(sizes)):
        own = linear(before, size, i != 1, 10 + i)
        activation = nn.Tanh() if i == 0 else nn.Identity()
        bias = None if own.bias is None else own.bias.data
        has_bias = own.bias is not None
        dense = Dense(before, size, has_bias, activation, own.weight.data, bias, name)
        dense.use_residual = True
        if before != size:
            dense.residual = linear(before, size, False, 20 + i)
        modules.append(dense)
    return modules


def write_residual(folder: Path, part: str, arrays: Arrays, hidden: torch.Tensor) -> None:
    """Modules of sentence-transformers, as it writes and runs them: several poolings, with `part`
    "residual" layers that add their inputs, and length 1; or such layers on each token."""
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    width = hidden.shape[1]
    name = "token_embeddings" if part == "residual-vectors" else "sentence_embedding"
    modules: list[Any] = []
    if part != "residual-vectors":
        modules = [Pooling(width, POOLINGS)]
        width = 3 * width
    if part != "poolings":
        modules += residual_layers((width, width, 21, 21), name)
    modules.append(Normalize(name))
    kinds = [type(module).__name__ for module in modules]
    paths = [f"{i}_{kind}" for i, kind in enumerate(kinds, 1)]
    listed = [f"sentence_transformers.models.{kind}" for kind in kinds]
    write_modules(folder, [(kind, path, {}) for kind, path in zip(listed, paths, strict=True)])
    for module, path in zip(modules, paths, strict=True):
        module.save(str(folder / path))
    rows = []
    for a, b in pairwise(arrays["cu_seqlens"]):
        features: dict[str, Any] = {"token_embeddings": hidden[a:b][None]}
        features["attention_mask"] = torch.ones(1, int(b - a), dtype=torch.int64)
        for module in modules:
            features = module(features)
        rows.append(features[name][0])
    if part == "residual-vectors":
        arrays["vectors"] = torch.cat(rows).numpy()
    else:
        arrays["embedding"] = torch.stack(rows).numpy()


def write_vectors(folder: Path, part: str, arrays: Arrays, hidden: torch.Tensor) -> None:
    layer = linear(hidden.shape[1], 20, False, 3)
    if part == "colbert":  # the first ColBERT checkpoints had it in the model's own file
        from safetensors.torch import load_file

        tensors = load_file(folder / "model.safetensors")
        tensors = {f"bert.{name}": value for name, value in tensors.items()}
        save_file(tensors | state(layer), folder / "model.safetensors", {"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        config["architectures"] = ["HF_ColBERT"]
        (folder / "config.json").write_text(json.dumps(config, indent=2))
    else:
        write_modules(
            folder, [("pylate.models.Dense.Dense", "1_Dense", dense_config(layer, IDENTITY))]
        )
        save_file(state(layer), folder / "1_Dense" / "model.safetensors")
    arrays["vectors"] = nn.functional.normalize(layer(hidden)).numpy()


def write_bge_m3(folder: Path, arrays: Arrays, hidden: torch.Tensor) -> None:
    weights, vectors = linear(hidden.shape[1], 1, True, 4), linear(hidden.shape[1], 32, True, 5)
    torch.save(state(weights, ""), folder / "sparse_linear.pt")
    torch.save(state(vectors, ""), folder / "colbert_linear.pt")
    arrays["token_weights"] = weights(hidden).relu().numpy()
    arrays["vectors"] = nn.functional.normalize(vectors(hidden)).numpy()


def write_splade(folder: Path, part: str, arrays: Arrays) -> None:
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    options = {"splade-sum": ("sum", "relu"), "splade-logs": ("sum", "log1p_relu")}
    module = SpladePooling(*options.get(part, ("max", "relu"))).eval()
    kind = "sentence_transformers.sparse_encoder.models.SpladePooling"
    write_modules(folder, [(kind, "1_SpladePooling", {})])
    module.save(str(folder / "1_SpladePooling"))
    rows = []
    for a, b in pairwise(arrays["cu_seqlens"]):
        logits = torch.from_numpy(arrays["logits"][a:b])[None].clone()  # pooled in place
        features = {"token_embeddings": logits, "attention_mask": torch.ones(1, int(b - a))}
        rows.append(module(features)["sentence_embedding"][0])
    arrays["sparse"] = torch.stack(rows).numpy()


@torch.no_grad()
def add_parts(case: Case, folder: Path, arrays: Arrays) -> None:
    """Writes the files of `case.part`, and what it gives into `arrays`."""
    hidden = torch.from_numpy(arrays["hidden"])
    if case.part == "dense":
        write_dense(folder, arrays, hidden)
    elif case.part in ("poolings", "residual", "residual-vectors"):
        write_residual(folder, case.part, arrays, hidden)
    elif case.part in ("colbert", "pylate"):
        write_vectors(folder, case.part, arrays, hidden)
    elif case.part == "bge-m3":
        write_bge_m3(folder, arrays, hidden)
    is_splade = case.part is not None and case.part.startswith("splade")
    if is_splade:
        write_splade(folder, case.part, arrays)
    if case.part == "answers":  # a reranker of its kind is made of the last logits
        arrays["last_logits"] = arrays.pop("logits")[arrays["cu_seqlens"][1:] - 1]
    if case.part == "predictions" or is_splade:
        rows = np.arange(2, len(hidden), 3, dtype=np.int32)
        arrays["prediction_rows"], arrays["predictions"] = rows, arrays.pop("logits")[rows]
