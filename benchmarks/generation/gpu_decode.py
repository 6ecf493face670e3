"""Steps of generation beside PyTorch on one GPU, and beside the time that reading takes.

    python benchmarks/generation/gpu_decode.py build/generation [--only gpt2 llama-1b ...]
        [--out FILE]
    python benchmarks/generation/gpu_decode.py build/generation --quantized int4-128 [--only ...]

`build/generation` is benchmarks/generation/decoders.cc, whose first lines say how to compile it.
PyTorch's step is benchmarks/generation/torch_decoders.py: compiled layers in one CUDA graph, its
token fed back on the device. Ours is what a caller of the session sees: tokens reach the host.
Weights are random, in bfloat16. "Floor" is the bytes of weights and cached keys and values over 4.1
TB/s. --quantized measures weights that are quantised in groups, with a head of 8 bits, beside our
own bfloat16 in place of PyTorch: in float16, at a context of 128.
--transformers adds transformers.generate with a static cache, which compiles its steps; that takes
a minute for each row.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch
from torch_decoders import Shape, Step

COPY_BANDWIDTH = 4.1e12  # bytes a second


@dataclass(frozen=True)
class Case:
    """A decoder to measure. name: in benchmarks/generation/decoders.cc. marks: milliseconds that we
    mean to reach, by batch."""

    name: str
    shape: Shape
    context: int
    marks: dict[int, float]


CASES = [
    Case("gpt2", Shape(12, 768, 12, 12, 64, 3072, 50257), 924, {1: 0.20, 16: 0.36, 64: 0.85}),
    Case("llama-1b", Shape(16, 2048, 32, 8, 64, 8192, 128256, True), 160, {1: 0.69}),
    Case("gpt2-xl", Shape(48, 1600, 25, 25, 64, 6400, 50257), 1024, {1: 1.25, 16: 2.5}),
    Case("gpt-6.7b", Shape(32, 4096, 32, 32, 128, 16384, 50257), 1024, {1: 3.75, 16: 5.9}),
    Case("qwen3-8b", Shape(36, 4096, 32, 8, 128, 12288, 151936, True), 1024, {1: 4.15, 4: 4.27}),
    Case("gpt-13b", Shape(40, 5120, 40, 40, 128, 20480, 50257), 1024, {4: 7.7, 16: 10.3}),
    Case("gpt-12288", Shape(8, 12288, 96, 96, 128, 49152, 50257), 1024, {4: 8.1, 16: 9.5}),
]


def floor_ms(shape: Shape, batch: int, context: int) -> float:
    attention = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    feed_forward = shape.hidden * shape.intermediate * (3 if shape.llama else 2)
    weights = shape.layers * (attention + feed_forward) + shape.vocab * shape.hidden
    cached = 2 * shape.layers * batch * context * shape.kv_heads * shape.head_dim
    return 2 * (weights + cached) / COPY_BANDWIDTH * 1e3


def ours(program: str, case: Case, form: str = "") -> dict[int, float]:
    """Milliseconds of a step by batch. form: of weights in groups, such as "int4-128"."""
    batches = max(case.marks)
    name, dtype = (f"{case.name}:{form}", "float16") if form else (case.name, "bfloat16")
    command = [program, "cuda", dtype, name, "decode"]
    command += [str(batches * (case.context + 192)), str(case.context)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.findall(r"batch (\d+), context \d+: ([\d.]+) ms", done.stdout)
    return {int(batch): float(ms) for batch, ms in found}


def quantized_bytes(shape: Shape, form: str) -> float:
    """Bytes of the weights that a step reads: values, and float16 scales of groups."""
    bits, group = (int(number) for number in form.removeprefix("int").split("-"))
    attention = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    feed_forward = shape.hidden * shape.intermediate * (3 if shape.llama else 2)
    head = shape.vocab * shape.hidden * (8 + 16 / 32) / 8
    return shape.layers * (attention + feed_forward) * (bits + 16 / min(group, 128)) / 8 + head


def measure_quantized(program: str, form: str, only: list[str] | None) -> list[dict[str, object]]:
    """Marks of gpt-6.7b in 4 bits: 2.6 and 2.2 times our own bfloat16."""
    marks = {("gpt-6.7b", 1): 2.6, ("gpt-6.7b", 8): 2.2} if form.startswith("int4") else {}
    print(f"| shape | context | batch | bfloat16 ms | {form} ms | ratio | floor | mark |")
    print("|---|" + "---:|" * 7)
    rows: list[dict[str, object]] = []
    for case in CASES:
        if case.name not in (only or ["gpt-6.7b"]):
            continue
        short = Case(case.name, case.shape, 128, {1: 0, 8: 0})
        plain, quantized = ours(program, short), ours(program, short, form)
        cached = 2 * 2 * case.shape.layers * 128 * case.shape.kv_heads * case.shape.head_dim
        for batch in short.marks:
            floor = (quantized_bytes(case.shape, form) + batch * cached) / COPY_BANDWIDTH * 1e3
            mark = marks.get((case.name, batch))
            rows.append(
                {"shape": case.name, "context": 128, "batch": batch, "form": form, "floor": floor}
                | {"bfloat16": plain[batch], "quantized": quantized[batch], "mark": mark}
            )
            print(
                f"| {case.name} | 128 | {batch} | {plain[batch]:.3f} | {quantized[batch]:.3f} | "
                f"{plain[batch] / quantized[batch]:.2f}x | {floor:.3f} | {mark or ''} |",
                flush=True,
            )
    return rows


def torch_ms(case: Case, batch: int) -> float:
    step = Step(case.shape, batch, case.context + 36, torch.bfloat16)
    found = step.milliseconds()
    del step
    gc.collect()
    torch.cuda.empty_cache()
    return found


def transformers_ms(case: Case, batch: int) -> float | None:
    try:
        from transformers_decoders import milliseconds

        return milliseconds(case.shape, batch, case.context, torch.bfloat16)
    except Exception as error:  # a peer that cannot run is named, and left out
        print(f"transformers: {type(error).__name__}: {error}", flush=True)
        return None
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("program", help="benchmarks/generation/decoders.cc, compiled")
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES])
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--quantized", metavar="FORM", help="int4-128, int4-32, int8-32 ...")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    if arguments.quantized:
        found = measure_quantized(arguments.program, arguments.quantized, arguments.only)
        if arguments.out:
            arguments.out.write_text(json.dumps(found, indent=1))
        return
    print(
        "| shape | context | batch | Packhorse ms | torch ms | ratio | floor | of floor | mark | "
        "transformers ms |"
    )
    print("|---|" + "---:|" * 9)
    rows = []
    for case in CASES:
        if arguments.only and case.name not in arguments.only:
            continue
        mine = ours(arguments.program, case)
        for batch, mark in case.marks.items():
            peer = None if arguments.no_torch else torch_ms(case, batch)
            floor = floor_ms(case.shape, batch, case.context)
            row = {"shape": case.name, "context": case.context, "batch": batch}
            row |= {"ours": mine[batch], "torch": peer, "floor": floor, "mark": mark}
            other = transformers_ms(case, batch) if arguments.transformers else None
            row["transformers"] = other
            rows.append(row)
            beside = "| |" if peer is None else f"{peer:.3f} | {peer / mine[batch]:.2f}x |"
            print(
                f"| {case.name} | {case.context} | {batch} | {mine[batch]:.3f} | {beside} "
                f"{floor:.3f} | {floor / mine[batch]:.0%} | {mark} | "
                f"{'' if other is None else format(other, '.2f')} |",
                flush=True,
            )
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
