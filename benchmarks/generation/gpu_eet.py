"""The shapes of EET's own tables (arXiv 2104.12470), on one GPU.

    python benchmarks/generation/gpu_eet.py build/generation [--only NAME ...] [--out FILE]

`build/generation` is benchmarks/generation/decoders.cc, whose first lines say how to compile it.
Decoders are GPT-2's in float16. "per token": from a context of 512 tokens to 1,024, all of the
model, as in EET's table of an A100. "per layer": the difference of 8 and 24 layers, over 16; beside
what EET itself took on an H200 (prompts of 512 tokens, its decoder layer in a loop). Ours includes
the way of tokens to the host. NAME is a model of the first table, or the width of layers of the
second.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from pathlib import Path
from typing import Any

# Model: layers x width x heads, and EET's milliseconds a token at batch 4 and 16.
MODELS = {
    "125M": ("12x768x12", (2.69, 2.84)),
    "1.3B": ("24x2048x32", (7.3, 8.27)),
    "6.7B": ("32x4096x32", (17.2, 23.2)),
    "13B": ("40x5120x40", (29.3, 43.4)),
}
# Layer: width, heads, batch; EET's milliseconds of a prompt and of a step.
LAYERS = [
    (768, 12, 4, 0.61, 0.079),
    (1024, 16, 4, 0.73, 0.084),
    (2048, 32, 4, 1.04, 0.135),
    (4096, 32, 4, 2.07, 0.219),
    (4096, 32, 16, 7.47, 0.297),
]


def run(program: str, shape: str, what: str, *arguments: int) -> str:
    command = [program, "cuda", "float16", f"gpt-{shape}", what, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def steps(program: str, shape: str, batch: int, new_tokens: int) -> dict[int, float]:
    """Milliseconds of a step by batch, from a context of 512 tokens on."""
    out = run(program, shape, "decode", batch * (512 + new_tokens + 64), 512, new_tokens)
    found = re.findall(r"batch (\d+), context \d+: ([\d.]+) ms", out)
    return {int(size): float(ms) for size, ms in found}


def prompts(program: str, shape: str) -> dict[int, float]:
    """Milliseconds of prompts of 512 tokens by batch."""
    found = re.findall(r"prefill of (\d+) x 512: ([\d.]+) ms", run(program, shape, "prefill"))
    return {int(size): float(ms) for size, ms in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("program", help="benchmarks/generation/decoders.cc, compiled")
    names = [*MODELS, *dict.fromkeys(str(layer[0]) for layer in LAYERS)]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print("| per token | batch | EET, A100, ms | Packhorse ms | ratio |\n|---|---:|---:|---:|---:|")
    for name, (shape, published) in MODELS.items():
        if name not in arguments.only:
            continue
        found = steps(arguments.program, shape, 16, 512)
        for batch, eet in zip((4, 16), published, strict=True):
            ms = found[batch]
            rows.append({"model": name, "batch": batch, "eet_a100": eet, "ours": ms})
            print(f"| {name} | {batch} | {eet} | {ms:.3f} | {eet / ms:.2f}x |", flush=True)
    print("| per layer | batch | EET, H200, prompt / step | Packhorse | ratios |")
    print("|---|---:|---:|---:|---:|")
    made: dict[tuple[int, int], tuple[dict[int, float], dict[int, float]]] = {}
    for width, heads, batch, prompt, step in LAYERS:
        if str(width) not in arguments.only:
            continue
        if (width, heads) not in made:
            low, high = (f"{layers}x{width}x{heads}" for layers in (8, 24))
            both = [
                (prompts(arguments.program, shape), steps(arguments.program, shape, 16, 72))
                for shape in (low, high)
            ]
            made[width, heads] = (
                {b: (both[1][0][b] - both[0][0][b]) / 16 for b in both[0][0]},
                {b: (both[1][1][b] - both[0][1][b]) / 16 for b in both[0][1]},
            )
        ours = (made[width, heads][0][batch], made[width, heads][1][batch])
        rows.append({"width": width, "batch": batch, "eet_h200": (prompt, step), "ours": ours})
        print(
            f"| {width} | {batch} | {prompt} / {step} | {ours[0]:.3f} / {ours[1]:.4f} | "
            f"{prompt / ours[0]:.2f}x / {step / ours[1]:.2f}x |",
            flush=True,
        )
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
