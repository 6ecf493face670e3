"""Times compressed convolutional attention on one GPU, in bfloat16: blocks of the size of ZAYA1-8B
beside blocks of plain attention of the same width, and beside PyTorch's.

    python benchmarks/gpu_compressed_attention.py [--out FILE.json] [--only PART ...]
        [--longest N ...] [--seconds S]

Blocks are of width 2048: 8 heads of queries and 2 of keys of 128 columns, or 16 heads of both in
plain attention. Batches have 65,536 tokens in sequences of uneven lengths, the longest of them N
(default: 1024, 4096, 16384 and 65536). Prints Markdown and writes FILE.json (default:
benchmarks/results/). METHOD below says how times are measured. PyTorch's blocks need about 12 GiB
of the GPU's memory at most, by counting; each of the seven is compiled anew, and those that would
begin after S seconds (default: 420) are left out.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import torch
import torch.nn.functional as F  # noqa: N812
from gpu_cases import Json, random_weights, uniform_lengths
from gpu_results import origin, result_of, table, write
from gpu_timing import named_spans
from models import write_model
from packhorse import Sampling
from torch import Tensor

WIDTH, HEADS, KV_HEADS, HEAD_DIM, PLAIN_HEADS, LAYERS = 2048, 8, 2, 128, 16, 3
TOKENS, VOCABULARY, THETA = 65536, 64, 1e4
LONGEST = (1024, 4096, 16384, 65536)
BATCHES, CONTEXT, STEPS, NEW_TOKENS = (1, 16, 64), 16384, 24, 192
ROUNDS = 5

METHOD = f"""\
Times on the GPU as PyTorch's profiler (CUPTI) sees them. A block is what lies between the norm \
ahead of attention and the norm ahead of the feed-forward block, with the former: from the end of \
the kernel before to the end of its last kernel; medians over the {LAYERS} layers of a model and \
{ROUNDS} runs. Its parts are the times of single kernels. PyTorch's block is padded, as \
transformers computes it, in a function of our own that torch.compile compiles (default mode, one \
graph, static shapes), with the norm and the residual; its attention is \
scaled_dot_product_attention, by a mask of padding and order as transformers has it ("masked"; \
keys and values are then repeated for all heads of queries, as there), and without one, by \
is_causal alone ("causal"), which gives rows of text the same results because padding is at the \
end. Decode: a session that generates, {STEPS} steps of {CONTEXT} tokens of context and up to \
{NEW_TOKENS} new ones, in which all sequences take part. "Floor": the bytes of the block's weights \
and of cached keys and values over the rate of a copy of 1 GiB between two arrays, bytes read and \
written, in the same run."""


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


class Peer:
    """The block in PyTorch, on padded rows: [B, S, width]."""

    def __init__(self) -> None:
        def normal(*shape: int) -> Tensor:
            scale = 1.5 * shape[-1] ** -0.5
            return (torch.randn(shape, device="cuda") * scale).bfloat16()

        mixed, values = (HEADS + KV_HEADS) * HEAD_DIM, KV_HEADS * HEAD_DIM
        self.down = [normal(mixed, WIDTH), normal(values // 2, WIDTH), normal(values // 2, WIDTH)]
        self.up = normal(WIDTH, HEADS * HEAD_DIM)
        self.depthwise = normal(mixed, 1, 2), normal(mixed)
        self.grouped = normal(mixed, HEAD_DIM, 2), normal(mixed)
        self.temperature = torch.ones(KV_HEADS, device="cuda")
        self.gamma = torch.ones(WIDTH, device="cuda", dtype=torch.bfloat16)
        positions = torch.arange(TOKENS, device="cuda", dtype=torch.float32)
        exponents = torch.arange(0, HEAD_DIM // 2, 2, device="cuda") / (HEAD_DIM // 2)
        angles = positions[:, None] * THETA**-exponents
        self.cos, self.sin = (f(torch.cat([angles, angles], -1)).bfloat16()
                              for f in (torch.cos, torch.sin))  # fmt: skip
        self.compiled = torch.compile(self.block, dynamic=False, fullgraph=True)

    def block(self, hidden: Tensor, mask: Tensor | None, kept: Tensor | None) -> Tensor:
        b, s, _ = hidden.shape
        x = F.rms_norm(hidden, (WIDTH,), self.gamma, 1e-5)
        if kept is not None:
            x = x * kept[..., None]
        qk, v, delayed = (F.linear(x, weight) for weight in self.down)
        columns = F.pad(qk.transpose(1, 2), (2, 0))
        columns = F.conv1d(columns, *self.depthwise, groups=columns.shape[1])
        mixed = F.conv1d(columns, *self.grouped, groups=HEADS + KV_HEADS).transpose(1, 2)
        heads = qk.view(b, s, -1, HEAD_DIM)
        q, k = heads[:, :, :HEADS], heads[:, :, HEADS:]
        group = HEADS // KV_HEADS
        mean = (q + k.repeat_interleave(group, 2)) / 2
        mixed = mixed.view(b, s, -1, HEAD_DIM)
        q = mixed[:, :, :HEADS] + mean
        k = mixed[:, :, HEADS:] + mean.view(b, s, KV_HEADS, group, HEAD_DIM).mean(3)
        q = self.scaled(q, None)
        k = self.scaled(k, self.temperature)
        v = torch.cat([v, F.pad(delayed, (0, 0, 1, 0))[:, :s]], -1).view(b, s, -1, HEAD_DIM)
        q, k = self.rotated(q), self.rotated(k)
        if mask is not None:
            k, v = (x.repeat_interleave(group, 2) for x in (k, v))
        context = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
            attn_mask=mask, is_causal=mask is None, enable_gqa=mask is None,
        )  # fmt: skip
        return hidden + F.linear(context.transpose(1, 2).reshape(b, s, -1), self.up)

    def scaled(self, x: Tensor, temperature: Tensor | None) -> Tensor:
        x = x.float()
        x = x * (HEAD_DIM**0.5 / x.norm(dim=-1, keepdim=True))
        return (x if temperature is None else x * temperature[:, None]).bfloat16()

    def rotated(self, x: Tensor) -> Tensor:
        turned, rest = x.split(HEAD_DIM // 2, -1)
        left, right = turned.chunk(2, -1)
        cos, sin = (table[: x.shape[1], None] for table in (self.cos, self.sin))
        return torch.cat([turned * cos + torch.cat([-right, left], -1) * sin, rest], -1)

    def milliseconds(self, lengths: list[int], masked: bool) -> float:
        longest = max(lengths)
        kept = torch.arange(longest, device="cuda") < torch.tensor(lengths, device="cuda")[:, None]
        mask = None
        if masked:
            causal = torch.ones(longest, longest, dtype=torch.bool, device="cuda").tril()
            mask = causal & kept[:, None, None]
        hidden = torch.randn(len(lengths), longest, WIDTH, device="cuda").bfloat16()
        with torch.no_grad():
            return time_of(lambda: self.compiled(hidden, mask, kept))


def time_of(work: Callable[[], object]) -> float:
    """Milliseconds: the median of rounds, each between two events."""
    times = []
    for round_ in range(ROUNDS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        if round_ >= 2:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


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


def peers(choice: Sequence[int], seconds: float) -> list[Json]:
    """What fails, or would begin too late, is None."""
    end = time.monotonic() + seconds
    peer = Peer()
    rows = []
    for longest in choice:
        lengths = lengths_of(longest)
        row: Json = {"longest": longest, "sequences": len(lengths)}
        rows.append(row)
        for kind in ("causal", "masked"):
            if kind == "masked" and len(lengths) == 1:
                continue  # transformers makes no mask without padding
            row[kind], begin = None, time.monotonic()
            if begin > end:
                print(f"torch, {kind}, {longest}: left out after {seconds:.0f} s", flush=True)
                continue
            torch.compiler.reset()
            torch.cuda.reset_peak_memory_stats()
            try:
                row[kind] = 1e3 * peer.milliseconds(lengths, kind == "masked")
            except RuntimeError as error:  # out of memory, or what a compiler refuses
                print(f"torch, {kind}, {longest}: {error}"[:500], flush=True)
            peak = row[f"{kind}_gib"] = torch.cuda.max_memory_allocated() / 2**30
            gc.collect()
            torch.cuda.empty_cache()
            spent = time.monotonic() - begin
            print(f"torch, {kind}, {longest}: {row[kind]} us, {peak:.1f} GiB, {spent:.0f} s",
                  flush=True)  # fmt: skip
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
            for kind in ("causal", "masked"):
                us = torch_us.get(row["longest"], {}).get(kind)
                line += ["", ""] if us is None else [f"{us:.0f}", f"{us / ours['us']:.2f}"]
            lines.append([*line, f"{before:.0f}", f"{100 * share:.0f} %"])
        titles = ["longest", "sequences", "compressed, us", "plain", "times"]
        titles += ["torch, causal", "times", "torch, masked", "times"]
        titles += ["convolutions, us", "of copy"]
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
        help="of prefill, peers and decode",
    )
    parser.add_argument(
        "--longest", nargs="+", type=int, choices=LONGEST, default=LONGEST, metavar="N",
        help="tokens of a batch's longest sequence, in prefill and peers",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=420, metavar="S",
        help="the time after which no block of PyTorch is begun",
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
        found["peers"] = peers(arguments.longest, arguments.seconds)
    result = result_of(method=METHOD, copy_tb_s=bandwidth / 1e12, **found)
    print(markdown(result))
    write(result, "compressed_attention", arguments.out)


if __name__ == "__main__":
    main()
