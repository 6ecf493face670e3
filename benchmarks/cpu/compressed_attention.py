"""Times compressed convolutional attention on the CPU: blocks of the size of ZAYA1-8B, with random
weights, of Packhorse on a packed batch of uneven lengths beside those of transformers, padded and
one text at a time.

    python benchmarks/cpu/compressed_attention.py [--threads 2] [--rounds 5] [--out FILE.json]

Needs torch and transformers 5 or later. Layers are of width 2048, with 8 heads of queries and 2 of
keys of 128 columns, without a feed-forward block: Packhorse's has 16 inner columns of zeros, whose
time counts against it, as do its norms and residuals, which the peer has as well. Engines take
turns; medians of rounds. The results of both are compared. Prints Markdown and writes FILE.json
where asked to.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import torch
import transformers
from transformers.models.zaya import modeling_zaya as zaya

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "python" / "support"))
from cases import mixed_lengths
from models import write_model

WIDTH, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCABULARY = 2048, 8, 2, 128, 2, 64
THETA = 1e4
BATCHES = {  # name -> lengths
    "16 texts of up to 256 tokens": mixed_lengths(16, 256),
    "8 texts of up to 512 tokens": mixed_lengths(8, 512, seed=1),
    "1 text of 512 tokens": [512],
}
NAMES = {
    "query": "qkv_proj.q_proj",
    "key": "qkv_proj.k_proj",
    "value": "qkv_proj.v_proj_current",
    "delayed_value": "qkv_proj.v_proj_delayed",
    "depthwise": "qkv_proj.conv_qk_depthwise",
    "grouped": "qkv_proj.conv_qk_grouped",
    "output": "o_proj",
}


def make_peer() -> tuple[Any, torch.nn.ModuleList, Any]:
    torch.manual_seed(0)
    config = transformers.ZayaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        rope_parameters={
            "hybrid": {"rope_type": "default", "rope_theta": THETA, "partial_rotary_factor": 0.5}
        },
        attn_implementation="sdpa",
    )
    layers = torch.nn.ModuleList(zaya.ZayaAttention(config, i) for i in range(LAYERS)).eval()
    for layer in layers:
        torch.nn.init.normal_(layer.qk_norm.temp, 1.2, 0.2)
    return config, layers, zaya.ZayaRotaryEmbedding(config)


def write(folder: Path, layers: torch.nn.ModuleList, word: np.ndarray) -> Path:
    spec = {
        "format": 1,
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "num_kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": 16,
        "max_seqlen": 4096,
        "positions": {"kind": "none"},
        "norm": {"kind": "rms", "placement": "pre", "eps": 1e-5, "embeddings": False},
        "attention": {
            "kind": "compressed",
            "mask": "causal",
            "depthwise_width": 2,
            "grouped_width": 2,
            "qkv_bias": False,
            "output_bias": False,
            "rope": {"theta": THETA, "dims": HEAD_DIM // 2},
        },
        "ffn": {"kind": "plain", "activation": "relu", "up_bias": False, "down_bias": False},
        "embedding": {"pooling": "mean", "normalize": False},
    }
    ones = np.ones(WIDTH, np.float32)
    tensors = {"embeddings.word": word, "final_norm.weight": ones}
    for i, layer in enumerate(layers):
        state = {name: value.detach().numpy() for name, value in layer.state_dict().items()}
        for ours, theirs in NAMES.items():
            for part in ("weight", "bias"):
                if f"{theirs}.{part}" in state:
                    tensors[f"layers.{i}.attention.{ours}.{part}"] = state[f"{theirs}.{part}"]
        tensors[f"layers.{i}.attention.temperature"] = state["qk_norm.temp"]
        tensors[f"layers.{i}.attention.norm.weight"] = ones
        tensors[f"layers.{i}.ffn.norm.weight"] = ones
        tensors[f"layers.{i}.ffn.up.weight"] = np.zeros((16, WIDTH), np.float32)
        tensors[f"layers.{i}.ffn.down.weight"] = np.zeros((WIDTH, 16), np.float32)
    return write_model(folder, spec, tensors)


class Peer:
    """The blocks with their norms and residuals, on rows of one length."""

    def __init__(self, layers: torch.nn.ModuleList, rotary: Any, word: Any, dtype: Any) -> None:
        self.layers, self.rotary, self.word = layers.to(dtype), rotary, word.to(dtype)

    def norm(self, x: Any) -> Any:
        return torch.nn.functional.rms_norm(x, (WIDTH,), eps=1e-5)

    @torch.no_grad()
    def run(self, ids: Any, lengths: list[int] | None = None) -> Any:
        """`lengths`: of rows that are padded at their ends."""
        hidden = self.word[ids]
        rotation = self.rotary(hidden, torch.arange(ids.shape[1])[None], "hybrid")
        masks = {}
        if lengths is not None:
            kept = torch.arange(ids.shape[1])[None] < torch.tensor(lengths)[:, None]
            causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
            masks = {"conv": kept, "causal": causal[None, None] & kept[:, None, None]}
        for layer in self.layers:
            hidden = (
                hidden
                + layer(self.norm(hidden), attention_mask=masks, position_embeddings=rotation)[0]
            )
        return self.norm(hidden)


def measure(engines: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in engines}
    names = list(engines)
    for name in names:
        engines[name]()
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            begin = time.perf_counter()
            engines[name]()
            samples[name].append(time.perf_counter() - begin)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    _, layers, rotary = make_peer()
    random = np.random.default_rng(0)
    word = random.normal(0, 1, (VOCABULARY, WIDTH)).astype(np.float32)
    results = []
    print("| | padding | Packhorse, ms | transformers, padded | transformers, one by one | error |")
    print("|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "model", layers, word)
        for dtype in ("float32", "bfloat16"):
            peer = Peer(layers, rotary, torch.tensor(word), getattr(torch, dtype))
            session = packhorse.Session.load(
                Path(folder) / "model", dtype=dtype, threads=options.threads, max_tokens=4096
            )
            for name, lengths in BATCHES.items():
                texts = [random.integers(0, VOCABULARY, n) for n in lengths]
                packed = packhorse.pack(texts)
                padded = torch.zeros(len(texts), max(lengths), dtype=torch.int64)
                for row, text in zip(padded, texts, strict=True):
                    row[: len(text)] = torch.tensor(text)
                rows = [torch.tensor(text)[None] for text in texts]
                engines: dict[str, Callable[[], Any]] = {
                    "packhorse": lambda p=packed, s=session: s.run(p).hidden,
                    "padded": lambda p=padded, n=lengths, e=peer: e.run(p, n),
                    "one by one": lambda r=rows, e=peer: [e.run(one)[0] for one in r],
                }
                expected = torch.cat(engines["one by one"]()).float().numpy()
                error = float(np.abs(engines["packhorse"]() - expected).max())
                samples = measure(engines, options.rounds)
                ms = {one: 1e3 * statistics.median(times) for one, times in samples.items()}
                share = sum(lengths) / (len(lengths) * max(lengths))
                ours = ms["packhorse"]
                others = " | ".join(
                    f"{ms[one]:.0f} ({ms[one] / ours:.2f})" for one in ("padded", "one by one")
                )
                print(
                    f"| {dtype}, {name} | {1 - share:.0%} | {ours:.0f} | {others} | {error:.1e} |"
                )
                results.append(
                    {"dtype": dtype, "batch": name, "lengths": lengths, "ms": ms, "error": error}
                )
            session.close()
    if options.out:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        options.out.write_text(json.dumps({"versions": versions, "results": results}, indent=2))


if __name__ == "__main__":
    main()
