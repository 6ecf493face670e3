"""Distance of translation models in fewer bits from themselves in float32.

    python benchmarks/generation/cpu_translation_models.py opus-mt FOLDER
    python benchmarks/generation/translation_accuracy.py FOLDER/hf

The model translates 24 random sources in float32, then every dtype gives log-probabilities of these
translations, token by token. Prints the mean and the largest difference, and how often the most
probable token is the same.

A dtype such as 4-bit/32 is a copy of the model whose dense layers are rounded to 4 bits in groups
of 32 input features, each with a scale and a zero point, in GPTQ's format, and computed in float32;
"4-bit/32 stored" is such a copy whose weights stay in 4 bits.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors
from packhorse_weights.tensor import Tensor

SOURCES = 24
NEW = 32
BITS = 4
LAYERS = (
    *("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
    *("q", "k", "v", "o", "wi", "wi_0", "wi_1", "wo"),
)


def words_of(numbers: Any) -> Any:
    """Numbers of BITS bits along the first axis, the first in the lowest bits of 32."""
    per = 32 // BITS
    rows = numbers.astype(np.uint32).reshape(-1, per, numbers.shape[1])
    shifts = (BITS * np.arange(per, dtype=np.uint32))[:, None]
    return np.bitwise_or.reduce(rows << shifts, axis=1).view(np.int32)


def in_groups(weight: Any, group: int) -> dict[str, Any]:
    """A weight [out, in] as a layer of GPTQ, each number rounded to the nearest."""
    out, columns = weight.shape
    parts = weight.reshape(out, columns // group, group)
    low, high = np.minimum(parts.min(-1), 0), np.maximum(parts.max(-1), 0)
    scale = np.maximum((high - low) / (2**BITS - 1), 1e-8).astype(np.float16).astype(np.float32)
    zero = np.clip(np.rint(-low / scale), 0, 2**BITS - 1)
    found = np.clip(np.rint(parts / scale[..., None] + zero[..., None]), 0, 2**BITS - 1)
    stored = (zero.T.astype(np.int64) - 1) % 2**BITS  # the format's zero points are less by 1
    return {
        "qweight": words_of(found.reshape(out, columns).T),
        "qzeros": np.ascontiguousarray(words_of(stored.T).T),
        "scales": np.ascontiguousarray(scale.T.astype(np.float16)),
        "g_idx": (np.arange(columns) // group).astype(np.int32),
    }


def write_in_groups(folder: Path, to: Path, group: int) -> None:
    """A copy of the model folder whose dense layers are in groups of BITS bits."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors: dict[str, Tensor] = {}
    for name, tensor in read_safetensors(folder / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if not name.endswith(".weight") or module.rpartition(".")[2] not in LAYERS:
            tensors[name] = tensor
            continue
        for part, array in in_groups(np.asarray(tensor.data, np.float32), group).items():
            tensors[f"{module}.{part}"] = Tensor(array, array.dtype.name)
    write_safetensors(to / "model.safetensors", tensors)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "gptq",
        "bits": BITS,
        "group_size": group,
        "sym": False,
        "desc_act": False,
    }
    (to / "config.json").write_text(json.dumps(config))


def load(arguments: argparse.Namespace, dtype: str) -> Any:
    options = {"kv_tokens": 16384, "threads": arguments.threads}
    if not dtype.startswith(f"{BITS}-bit/"):
        return packhorse.Session.load(arguments.folder, dtype=dtype, **options)
    group, _, kept = dtype.partition("/")[2].partition(" ")
    with tempfile.TemporaryDirectory() as root:
        to = Path(root) / "groups"
        write_in_groups(arguments.folder, to, int(group))
        return packhorse.Session.load(to, dtype=kept or "float32", **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--dtypes",
        nargs="+",
        default=[
            *("float16", "bfloat16", "int8"),
            *("4-bit/32", "4-bit/32 stored", "4-bit/128", "4-bit/128 stored"),
        ],
    )
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    config = json.loads((arguments.folder / "config.json").read_text())
    start = [config["decoder_start_token_id"]]
    rng = np.random.default_rng(3)
    sources = [
        rng.integers(100, config["vocab_size"] - 100, n).astype(np.int32)
        for n in rng.integers(4, 60, SOURCES)
    ]
    sampling = packhorse.Sampling(max_new_tokens=NEW, ignore_eos=True)
    with load(arguments, "float32") as session:
        made = session.generate([start] * SOURCES, sampling, sources=sources)
    targets = [np.array([*start, *one.ids], np.int32) for one in made]

    def score(dtype: str) -> tuple[Any, Any]:
        scoring = packhorse.Sampling(max_new_tokens=1, prompt_logprobs=1)
        with load(arguments, dtype) as session:
            scored = session.generate(targets, scoring, sources=sources)
        told = [one.prompt_logprobs for one in scored]
        best = [row[0][0] for one in told for row in one.top]
        return np.concatenate([np.asarray(one.logprobs) for one in told]), np.array(best)

    logprobs, best = score("float32")
    print("| dtype | mean difference | largest | same token |\n|---|---:|---:|---:|")
    for dtype in arguments.dtypes:
        found, its_best = score(dtype)
        away = np.abs(found - logprobs)
        same = (best == its_best).mean()
        print(f"| {dtype} | {away.mean():.4f} | {away.max():.4f} | {same:.3f} |", flush=True)


if __name__ == "__main__":
    main()
