"""Models of the benchmarks, and batches of real text that are not sorted by length."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from packhorse.text import TextTokenizer
from packhorse_weights.formats.safetensors import write_safetensors
from packhorse_weights.tensor import Tensor

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
from sample import read_passages

Batch = list[list[int]]  # token ids, one list for each sequence

MINILM, BERT_BASE = "all-MiniLM-L6-v2", "BERT-base size, random weights"
MODELS = {"minilm": MINILM, "bert-base": BERT_BASE}  # keys are names on the command line
BATCH_SIZES = (1, 8, 32)
MAX_LENGTHS = (64, 128, 256, 512)


@dataclass(frozen=True)
class Case:
    model: str
    batch_size: int
    max_length: int  # longer texts are truncated
    num_batches: int  # number of batches in a timed pass

    @property
    def name(self) -> str:
        return f"{self.model}, {self.batch_size} x <= {self.max_length}"


def make_case(model: str, batch_size: int, max_length: int) -> Case:
    """Makes a case with as many texts in a pass as are needed to time it well, fewer for the larger
    model."""
    texts = 32 if model == MINILM else 16
    return Case(model, batch_size, max_length, max(1, texts // batch_size))


def make_batches(case: Case, tokenizer_folder: Path) -> list[Batch]:
    texts = [passage.text for passage in read_passages(case.batch_size * case.num_batches)]
    tokens = TextTokenizer.load(tokenizer_folder).encode(texts, case.max_length)
    rows = [ids.tolist() for ids in tokens.ids]
    return [rows[i : i + case.batch_size] for i in range(0, len(rows), case.batch_size)]


@dataclass(frozen=True)
class Sizes:
    """The sizes that determine the work of an encoder."""

    num_layers: int
    num_heads: int
    hidden_size: int
    intermediate_size: int

    @classmethod
    def read(cls, folder: Path) -> Sizes:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return cls(
            config["num_hidden_layers"],
            config["num_attention_heads"],
            config["hidden_size"],
            config["intermediate_size"],
        )

    @property
    def linear_layers(self) -> list[tuple[int, int]]:
        """(in_features, out_features) of the matrix products of one layer; query, key and value are
        fused."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return [(hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (inner, hidden)]

    @property
    def flop_per_token(self) -> int:
        """FLOP of the linear layers for each token, without attention."""
        return self.num_layers * sum(2 * rows * columns for rows, columns in self.linear_layers)


def write_random_bert_base(folder: Path, tokenizer_folder: Path) -> None:
    """Writes a model folder with the sizes of BERT-base and weights from N(0, 0.02), as before
    training."""
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",  # CTranslate2's converter requires it
    }
    random = np.random.default_rng(0)
    tensors: dict[str, Tensor] = {}

    def normal(name: str, *shape: int) -> None:
        values = random.standard_normal(shape, np.float32)
        tensors[name] = Tensor(values * np.float32(0.02), "float32")

    def linear(name: str, in_features: int, out_features: int) -> None:
        normal(f"{name}.weight", out_features, in_features)
        tensors[f"{name}.bias"] = Tensor(np.zeros(out_features, np.float32), "float32")

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = Tensor(np.ones(768, np.float32), "float32")
        tensors[f"{name}.bias"] = Tensor(np.zeros(768, np.float32), "float32")

    normal("embeddings.word_embeddings.weight", 30522, 768)
    normal("embeddings.position_embeddings.weight", 512, 768)
    normal("embeddings.token_type_embeddings.weight", 2, 768)
    norm("embeddings.LayerNorm")
    for i in range(12):
        layer = f"encoder.layer.{i}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            linear(f"{layer}.attention.{part}", 768, 768)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", 768, 3072)
        linear(f"{layer}.output.dense", 3072, 768)
        norm(f"{layer}.output.LayerNorm")
    linear("pooler.dense", 768, 768)

    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        if (tokenizer_folder / name).is_file():
            shutil.copyfile(tokenizer_folder / name, folder / name)
    write_safetensors(folder / "model.safetensors", tensors)
    # The config is written last, so that a folder that has it is complete.
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
