"""Prompts on one GPU: alone beside PyTorch, and while other sequences go on.

    python benchmarks/generation/gpu_prompts.py build/generation [--shapes llama-1b gpt2-xl]
        [--out FILE]

`build/generation` is benchmarks/generation/decoders.cc, whose first lines say how to compile it.
PyTorch's step is benchmarks/generation/torch_decoders.py: packed prompts, compiled layers with
FlashAttention for variable lengths, in one CUDA graph. Ours is what a caller of the session sees,
from the call to the first tokens. "beside" is the time of prompts and of sequences that go on
meanwhile, over the time of both apart. Weights are random, in bfloat16.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import torch
from gpu_decode import CASES
from torch_decoders import Prefill

SHAPES = {case.name: case.shape for case in CASES}


def run(program: str, shape: str, what: str) -> str:
    command = [program, "cuda", "bfloat16", shape, what]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("program", help="benchmarks/generation/decoders.cc, compiled")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["llama-1b"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("| shape | prompts | Packhorse ms | torch ms | ratio |\n|---|---|---:|---:|---:|")
    rows: list[dict[str, Any]] = []
    for name in arguments.shapes:
        for batch, length, ms in re.findall(
            r"prefill of (\d+) x (\d+): ([\d.]+) ms", run(arguments.program, name, "prefill")
        ):
            peer = Prefill(SHAPES[name], int(batch), int(length), torch.bfloat16)
            theirs = peer.milliseconds(steps=16)
            del peer
            gc.collect()
            torch.cuda.empty_cache()
            rows.append({"shape": name, "batch": int(batch), "length": int(length)})
            rows[-1] |= {"ours": float(ms), "torch": theirs}
            ratio = theirs / float(ms)
            print(f"| {name} | {batch} x {length} | {ms} | {theirs:.3f} | {ratio:.2f}x |")
    for name in arguments.shapes:
        for line in run(arguments.program, name, "mixed").splitlines():
            if found := re.match(r"(.*) ([\d.]+) ms, apart ([\d.]+) ms, ([\d.]+)x", line):
                print(f"{name}: {line}", flush=True)
                rows.append({"shape": name, "case": found[1], "together": float(found[2])})
                rows[-1] |= {"apart": float(found[3]), "ratio": float(found[4])}
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
