"""Folders as sentence-transformers and model2vec write them, made of tiny models, and texts for
them: what both make of the texts is in tests/golden/sentence_transformers.npz."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import GOLDEN
from packhorse_weights.formats.safetensors import write_safetensors
from packhorse_weights.tensor import Tensor
from tiny_tokenizer import NO_TYPES, make_tokenizer, vocabulary, with_tokenizer

TEXTS = (
    "Mark sat on the mat.",
    "",
    "In Paris, who was not sitting?",
    "a-b-c! Émile 42 \U0001f600 end",  # unknown tokens among others
    "\U0001f600",  # nothing else
    "the cat sat on the mat " * 30,
)
# Models without a modules.json.
PLAIN = ("bert-odd", "bert-no-pooler", "bert-sequence", "bert-predictions", "qwen3-answers")
_MODULES = "sentence_transformers.models."
_SIZE, _DENSE = 24, 10  # columns of a table, and after a dense layer


def _write_modules(folder: Path, modules: list[tuple[str, str]]) -> None:
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": _MODULES + kind}
        for i, (kind, path) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(rows))


def _write_tokenizer(folder: Path, longest: int | None = None) -> None:
    tokenizer = make_tokenizer()
    if longest is None:
        tokenizer.no_truncation()
    else:
        tokenizer.enable_truncation(longest)
    tokenizer.save(str(folder / "tokenizer.json"))


def _table(rows: int, dtype: str = "float32") -> Tensor:
    values = np.random.default_rng(7).standard_normal((rows, _SIZE)).astype(np.float32)
    if dtype == "int8":
        return Tensor(np.rint(values * 40).astype(np.int8), dtype)
    return Tensor(values.astype(dtype), dtype)


def _save(folder: Path, tensors: dict[str, Tensor]) -> None:
    write_safetensors(folder / "model.safetensors", tensors)


def _static(folder: Path) -> None:
    _write_tokenizer(folder)
    _save(folder, {"embedding.weight": _table(len(vocabulary()))})
    _write_modules(folder, [("StaticEmbedding", "")])


def _static_in_a_subfolder(folder: Path) -> None:
    """A static model with the modules that may follow, and a tokenizer that cuts texts."""
    table = folder / "0_StaticEmbedding"
    table.mkdir()
    _write_tokenizer(table, longest=5)
    _save(table, {"embedding.weight": _table(len(vocabulary()))})
    dense = folder / "2_Dense"
    dense.mkdir()
    random = np.random.default_rng(8)
    weight = random.standard_normal((_DENSE, _SIZE)).astype(np.float32)
    bias = random.standard_normal(_DENSE).astype(np.float32)
    _save(
        dense, {"linear.weight": Tensor(weight, "float32"), "linear.bias": Tensor(bias, "float32")}
    )
    config = {"in_features": _SIZE, "out_features": _DENSE, "bias": True}
    activation = {"activation_function": "torch.nn.modules.activation.Tanh"}
    (dense / "config.json").write_text(json.dumps(config | activation))
    (folder / "1_Dropout").mkdir()
    (folder / "1_Dropout" / "config.json").write_text('{"dropout": 0.5}')
    names = ("0_StaticEmbedding", "1_Dropout", "2_Dense", "3_Normalize")
    (folder / "3_Normalize").mkdir()
    _write_modules(folder, [(name[2:], name) for name in names])


def _model2vec(
    folder: Path,
    dtype: str = "float32",
    shared: bool = False,
    modules: bool = True,
    **options: Any,
) -> None:
    _write_tokenizer(folder)
    tokens = len(vocabulary())
    tensors = {"embeddings": _table(16 if shared else tokens, dtype)}
    if shared:
        random = np.random.default_rng(9)
        tensors["mapping"] = Tensor(random.integers(0, 16, tokens), "int64")
        tensors["weights"] = Tensor(random.random(tokens), "float64")
    _save(folder, tensors)
    config = {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": True}
    (folder / "config.json").write_text(json.dumps(config | options))
    if modules:
        _write_modules(folder, [("StaticEmbedding", "."), ("Normalize", "1_Normalize")])


def _truncated(folder: Path) -> None:
    """A model that normalises, of which 12 dimensions are kept."""
    with_tokenizer(GOLDEN / "bert-gelu", folder)
    config = {
        "model_type": "SentenceTransformer",
        "prompts": {"query": "who: "},
        "default_prompt_name": None,
        "similarity_fn_name": "dot",
        "truncate_dim": 12,
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def _flags(folder: Path) -> None:
    """Pooling by flags that are numbers."""
    with_tokenizer(GOLDEN / "bert-gelu", folder)
    flags = {"pooling_mode_cls_token": 1, "pooling_mode_max_tokens": 1}
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": 0, **flags}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


# Folders that sentence-transformers loads, and folders that model2vec loads.
SENTENCE_TRANSFORMERS: dict[str, Callable[[Path], Any]] = {
    "static": _static,
    "static-subfolder": _static_in_a_subfolder,
    "static-model2vec": _model2vec,
    "truncated": _truncated,
    "flags": _flags,
}
MODEL2VEC: dict[str, Callable[[Path], Any]] = {
    "model2vec-alone": lambda folder: _model2vec(folder, modules=False),
    "model2vec-int8": lambda folder: _model2vec(folder, "int8", modules=False),
    "model2vec-shared": lambda folder: _model2vec(folder, shared=True),
}


def make_folder(name: str, folder: Path) -> Path:
    """Writes the folder of a case, or of one of PLAIN with a tokenizer, and returns it."""
    if name in PLAIN:
        return with_tokenizer(GOLDEN / name, folder, config=NO_TYPES)
    if name not in ("truncated", "flags"):
        folder.mkdir(parents=True)
    (SENTENCE_TRANSFORMERS | MODEL2VEC)[name](folder)
    return folder
