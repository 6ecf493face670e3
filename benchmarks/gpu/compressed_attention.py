"""Times compressed convolutional attention on one GPU, in bfloat16: blocks of the size of ZAYA1-8B
beside blocks of plain attention of the same width, and beside PyTorch's.

    python benchmarks/gpu/compressed_attention.py [--out FILE.json] [--only PART ...]
        [--longest N ...]

Blocks are of width 2048: 8 heads of queries and 2 of keys of 128 columns, or 16 heads of both in
plain attention. Batches have 65,536 tokens in sequences of uneven lengths, the longest of them N
(default: 1024, 4096, 16384 and 65536). Prints Markdown and writes FILE.json (default:
benchmarks/results/). METHOD below says how times are measured.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import torch
from batches import Json, random_weights, uniform_lengths
from kernel_timing import named_spans
from models import write_model
from packhorse import Sampling
from results import origin, result_of, table, write
from torch_compressed_attention import (
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    ROUNDS,
    TOKENS,
    WIDTH,
    Block,
    time_of,
)

PLAIN_HEADS, LAYERS, VOCABULARY, THETA = 16, 3, 64, 1e4
LONGEST = (1024, 4096, 16384, 65536)
BATCHES, CONTEXT, STEPS, NEW_TOKENS = (1, 16, 64), 16384, 24, 192

METHOD = f"""\
Times on the GPU as PyTorch's profiler (CUPTI) sees them. A block is what lies between the norm \
ahead of attention and the norm ahead of the feed-forward block, with the former: from the end of \
the kernel before to the end of its last kernel; medians over the {LAYERS} layers of a model and \
{ROUNDS} runs. Its parts are the times of single kernels. PyTorch's block is that of \
transformers' own modules (models/zaya: norm, attention, rotation) with the residual, padded, \
compiled by torch.compile (default mode, static shapes). Decode: a session that generates, {STEPS} \
steps of {CONTEXT} tokens of context and up to {NEW_TOKENS} new ones, in which all sequences take \
part. "Floor": the bytes of the block's weights and of cached keys and values over the rate of a \
copy of 1 GiB between two arrays, bytes read and written, in the same run."""


@dataclass(frozen=True)
class Model:
    compressed: bool
    causal_lm: bool = False

    @property
    def spec(self) -> Json:
        heads = (HEADS, KV_HEADS) if self.compressed else (PLAIN_HEADS, PLAIN_HEADS)
        attention: Json = {
            "mask": "causal",
            "qkv_bias": False,
            "output_bias": False,
            "rope": {"theta": THETA, "dims": HEAD_DIM // 2 if self.compressed else HEAD_DIM},
        }
        if self.compressed:
            attention |= {"kind": "compressed", "depthwise_width": 2, "grouped_width": 2}
        return {
            "format": 1,
            "family": "zaya" if self.compressed else "llama",
            "vocab_size": VOCABULARY,
            "hidden_size": WIDTH,
            "num_layers": LAYERS,
            "num_heads": heads[0],
            "num_kv_heads": heads[1],
            "head_dim": HEAD_DIM,
            "intermediate_size": 16,
            "max_seqlen": TOKENS,
            "positions": {"kind": "none"},
            "norm": {"kind": "rms", "placement": "pre", "eps": 1e-5, "embeddings": False},
            "attention": attention,
            "ffn": {"kind": "plain", "activation": "relu", "up_bias": False, "down_bias": False},
            "embedding": {"pooling": "mean", "normalize": False},
            **({"heads": {"lm": {"tied": True}}} if self.causal_lm else {}),
        }


def load(model: Model, folder: Path, **options: Any) -> Any:
    weights = {name: x.float().cpu().numpy() for name, x in random_weights(model).items()}
    path = write_model(folder, model.spec, weights)
    return packhorse.Session.load(path, device="cuda", dtype="bfloat16", **options)


def lengths_of(longest: int) -> list[int]:
    """Uniform from 0.2 to 1 times the longest, 65,536 tokens in all."""
    lengths: list[int] = []
    for length in uniform_lengths(TOKENS, longest) if longest < TOKENS else [TOKENS]:
        lengths.append(min(length, TOKENS - sum(lengths)))
        if sum(lengths) == TOKENS:
            break
    return lengths


Spans = list[tuple[float, float, str]]


def blocks_of(spans: Spans) -> list[tuple[float, dict[str, float]]]:
    """Microseconds of every block among the kernels of runs, and of its parts."""
    norms = [i for i, span in enumerate(spans) if "norm_" in span[2]]
    found = []
    # Two norms for each layer, and the final one.
    per_run = 2 * LAYERS + 1
    for run in range(0, len(norms) // per_run * per_run, per_run):
        for layer in range(LAYERS):
            first, end = norms[run + 2 * layer], norms[run + 2 * layer + 1]
            block = spans[first:end]
            parts: dict[str, float] = {}
            for begin, last, name in block:
                part = next(
                    (part for part in ("norm", "gemm", "convolve", "keep", "attention", "append")
                     if part in name), "other",
                )  # fmt: skip
                if part == "gemm":
                    part = "up-projection" if "attention" in parts else "down-projection"
                parts[part] = parts.get(part, 0.0) + last - begin
            found.append((block[-1][1] - spans[first - 1][1], parts))
    return found


def medians(blocks: list[tuple[float, dict[str, float]]]) -> Json:
    names = sorted({name for _, parts in blocks for name in parts})
    return {
        "us": statistics.median(us for us, _ in blocks),
        "parts": {
            name: statistics.median(parts.get(name, 0.0) for _, parts in blocks) for name in names
        },
    }


def copy_bandwidth() -> float:
    """Bytes a second of a copy between two arrays, those read and those written."""
    source = torch.randint(256, (1 << 30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2e3 * source.numel() / time_of(lambda: target.copy_(source))


def prefill(folder: Path, choice: Sequence[int]) -> list[Json]:
    sessions = {
        name: load(Model(name == "compressed"), folder / name, max_tokens=TOKENS, max_sequences=512)
        for name in ("compressed", "plain")
    }
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCABULARY, TOKENS).astype(np.int32)
    rows = []
    for longest in choice:
        lengths = lengths_of(longest)
        cu_seqlens = np.cumsum([0, *lengths], dtype=np.int32)
        row: Json = {"longest": longest, "sequences": len(lengths)}
        for name, session in sessions.items():

            def work(session: Any = session, cu_seqlens: Any = cu_seqlens) -> None:
                session._native.time_encoder(ids, cu_seqlens, 1, 1)

            work()
            row[name] = medians([block for _ in range(ROUNDS)
                                 for block in blocks_of(named_spans(work))])  # fmt: skip
        rows.append(row)
    for session in sessions.values():
        session.close()
    return rows


def peers(choice: Sequence[int]) -> list[Json]:
    """Times and memory of PyTorch; "us" is None where it fails."""
    block = Block()
    rows = []
    for longest in choice:
        lengths = lengths_of(longest)
        row: Json = {"longest": longest, "sequences": len(lengths), "us": None}
        torch.compiler.reset()
        torch.cuda.reset_peak_memory_stats()
        try:
            row["us"] = 1e3 * block.milliseconds(lengths)
        except RuntimeError as error:  # out of memory, or what a compiler refuses
            print(f"torch, {longest}: {error}"[:500], flush=True)
        row["gib"] = torch.cuda.max_memory_allocated() / 2**30
        gc.collect()
        torch.cuda.empty_cache()
        rows.append(row)
    return rows


def decode(folder: Path, bandwidth: float) -> list[Json]:
    rng = np.random.default_rng(1)
    most = max(BATCHES)
    session = load(
        Model(True, causal_lm=True), folder / "decode", max_tokens=16384, max_sequences=most,
        kv_tokens=sum(BATCHES) * (CONTEXT + 256),  # the cache keeps all prompts
    )  # fmt: skip
    rows = []
    weights = (HEADS + 2 * KV_HEADS + HEADS) * HEAD_DIM * WIDTH
    weights += (HEADS + KV_HEADS) * 2 * HEAD_DIM**2
    for batch in BATCHES:
        prompts = rng.integers(0, VOCABULARY, (batch, CONTEXT)).tolist()
        sampling = Sampling(max_new_tokens=NEW_TOKENS, ignore_eos=True)
        # The prompts are kept by the prefix cache, so that the second call has few tokens to read.
        session.generate(prompts, sampling)

        def work(prompts: Any = prompts, sampling: Any = sampling) -> None:
            session.generate(prompts, sampling)

        # Sequences may begin some steps after each other, and end so. All take part from when the
        # last begins until the first, which began with the first step, ends.
        before = session.stats["steps"]
        blocks = blocks_of(named_spans(work))
        late = session.stats["steps"] - before - NEW_TOKENS
        if late > NEW_TOKENS - STEPS:
            raise RuntimeError(f"the last of {batch} sequences began {late} steps late")
        found = blocks[(NEW_TOKENS - STEPS) * LAYERS : NEW_TOKENS * LAYERS]
        cached = 2 * batch * CONTEXT * KV_HEADS * HEAD_DIM
        floor = 2 * (weights + cached) / bandwidth * 1e6
        rows.append({"batch": batch, "floor_us": floor, **medians(found)})
    session.close()
    return rows


def markdown(result: Json) -> str:
    bandwidth = result["copy_tb_s"] * 1e12
    parts = [origin(result), f"A copy: {result['copy_tb_s']:.2f} TB/s."]
    if result["prefill"]:
        torch_us = {row["longest"]: row for row in result["peers"]}
        lines = []
        for row in result["prefill"]:
            ours, plain = row["compressed"], row["plain"]
            before = ours["parts"].get("convolve", 0.0)
            bytes_ = 4 * TOKENS * (HEADS + 2 * KV_HEADS) * HEAD_DIM
            share = bytes_ / bandwidth * 1e6 / before if before else float("nan")
            line = [f"{row['longest']}", f"{row['sequences']}", f"{ours['us']:.0f}"]
            line += [f"{plain['us']:.0f}", f"{plain['us'] / ours['us']:.2f}"]
            us = torch_us.get(row["longest"], {}).get("us")
            line += ["", ""] if us is None else [f"{us:.0f}", f"{us / ours['us']:.2f}"]
            lines.append([*line, f"{before:.0f}", f"{100 * share:.0f} %"])
        titles = ["longest", "sequences", "compressed, us", "plain", "times"]
        titles += ["transformers", "times", "convolutions, us", "of copy"]
        parts.append(table(titles, lines))
        names = sorted({name for row in result["prefill"] for kind in ("compressed", "plain")
                        for name in row[kind]["parts"]})  # fmt: skip
        lines = [
            [f"{kind}, {row['longest']}", *(f"{row[kind]['parts'].get(n, 0.0):.0f}" for n in names)]
            for row in result["prefill"] for kind in ("compressed", "plain")
        ]  # fmt: skip
        parts.append(table(["parts, us", *names], lines))
    if result["decode"]:
        names = sorted({name for row in result["decode"] for name in row["parts"]})
        lines = [
            [f"{row['batch']}", f"{row['floor_us']:.1f}", f"{row['us']:.1f}",
             f"{row['us'] / row['floor_us']:.2f}",
             *(f"{row['parts'].get(n, 0.0):.1f}" for n in names)]
            for row in result["decode"]
        ]  # fmt: skip
        parts.append(table(["sequences", "floor, us", "block, us", "times", *names], lines))
    if result["peers"] and not result["prefill"]:
        parts.append(str(result["peers"]))
    return "\n\n".join([*parts, result["method"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="the result file")
    parts = ("prefill", "peers", "decode")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=parts,
        default=parts,
        metavar="PART",
        help="parts to run: prefill, peers and decode",
    )
    parser.add_argument(
        "--longest", nargs="+", type=int, choices=LONGEST, default=LONGEST, metavar="N",
        help="tokens of a batch's longest sequence, in prefill and peers",
    )  # fmt: skip
    arguments = parser.parse_args()
    torch.manual_seed(0)
    bandwidth = copy_bandwidth()
    torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found: dict[str, list[Json]] = {"prefill": [], "peers": [], "decode": []}
        if "prefill" in arguments.only:
            found["prefill"] = prefill(folder, arguments.longest)
        if "decode" in arguments.only:
            found["decode"] = decode(folder, bandwidth)
    if "peers" in arguments.only:
        found["peers"] = peers(arguments.longest)
    result = result_of(method=METHOD, copy_tb_s=bandwidth / 1e12, **found)
    print(markdown(result))
    write(result, "compressed_attention", arguments.out)


if __name__ == "__main__":
    main()
