"""Loading of models on the CPU, of GGUF files beside llama.cpp's.

    python benchmarks/generation/loading.py MODEL ... [--dtype float32 ...]
        [--llama-cpp /a/venv/bin/python] [--rounds 5] [--cold] [--make FOLDER bfloat16 1.0]

Every load is a process of its own; processes take turns, and a round has one load of each. Files
are in the page cache, or with --cold taken out of it before each load (posix_fadvise). Printed are
medians over the rounds. "process": seconds from the start of the process, with Python and all
imports, until the model is loaded; "load": those of the load alone, with its least, after imports;
MB of the file per second of it, and those of reading the file alone; seconds of a processor in the
program and in the kernel, which clears new memory; the largest resident size; and of Packhorse the
share of what comes before the runtime, in the runtime, and after it.

"text" is TextModel.load, which makes the tokenizer, too; "session" Session.load. Both have a cache
of 4,096 tokens where the model generates. llama.cpp is the package llama-cpp-python: its model,
with vocabulary, and a context of 4,096 tokens, by the functions of C that it has. Neither has
computed a token.

--make writes a folder of Llama's shape with random weights: its dtype and its size in GB.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

CONTEXT = 4096
NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def make_folder(folder: Path, dtype: str, size: float) -> None:
    """A Llama of random weights that takes about `size` GB."""
    hidden, inner, heads, kv_heads, vocab = 2048, 8192, 32, 8, 32000
    kv = hidden * kv_heads // heads
    itemsize = 4 if dtype == "float32" else 2
    per_layer = 2 * hidden * (hidden + kv) + 3 * hidden * inner
    layers = max(1, round((size * 1e9 / itemsize - vocab * hidden) / per_layer))
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": dtype,
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    for i in range(layers):
        sizes = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in sizes.items()}
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + int(np.prod(shape)) * itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            values = random.standard_normal(shape, np.float32) * np.float32(0.02)
            if dtype == "bfloat16":
                file.write((values.view(np.uint32) >> 16).astype("<u2").tobytes())
            else:
                file.write(values.astype(dtype).tobytes())


def load_packhorse(kind: str, path: str, dtype: str | None, generates: bool) -> dict[str, float]:
    import packhorse
    import packhorse.generation.session
    import packhorse.text.model
    import packhorse_weights.convert  # noqa: F401
    import tokenizers  # noqa: F401
    from packhorse._native import generation, session

    spans: list[tuple[float, float]] = []

    def timed(module: Any, name: str) -> None:
        native = getattr(module, name)

        class Timed:
            @staticmethod
            def load(*given: Any) -> Any:
                begin = time.monotonic()
                result = native.load(*given)
                spans.append((begin, time.monotonic()))
                return result

        setattr(module, name, Timed)

    timed(generation, "NativeGenerationSession")
    timed(session, "NativeSession")
    load = packhorse.Session.load if kind == "session" else packhorse.TextModel.load
    options: dict[str, Any] = {"kv_tokens": CONTEXT} if generates else {}
    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    model = load(path, dtype=dtype, progress=False, **options)
    end, after = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    entered, left = spans[-1]
    del model
    return {
        "end": end,
        "seconds": end - begin,
        "user": after.ru_utime - before.ru_utime,
        "system": after.ru_stime - before.ru_stime,
        "before": (entered - begin) / (end - begin),
        "runtime": (left - entered) / (end - begin),
        "after": (end - left) / (end - begin),
    }


def load_llama_cpp(path: str) -> dict[str, float]:
    import llama_cpp

    @llama_cpp.llama_log_callback
    def silent(*_: Any) -> None:
        pass

    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    model = llama_cpp.llama_model_load_from_file(
        path.encode(), llama_cpp.llama_model_default_params()
    )
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = CONTEXT
    context = llama_cpp.llama_init_from_model(model, parameters)
    end, after = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    if not model or not context:
        raise RuntimeError("llama.cpp did not load it")
    return {
        "end": end,
        "seconds": end - begin,
        "user": after.ru_utime - before.ru_utime,
        "system": after.ru_stime - before.ru_stime,
    }


def load_here(kind: str, path: str, dtype: str, generates: str, started: str) -> None:
    """A child: loads once and prints its figures. `started`: when its parent began to start it."""
    if kind == "llama.cpp":
        found = load_llama_cpp(path)
    else:
        found = load_packhorse(kind, path, None if dtype == "None" else dtype, generates == "True")
    found["process"] = found.pop("end") - float(started)
    found["resident"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(found), flush=True)
    os._exit(0)  # what it has loaded need not be freed


def has_head_of_words(path: Path) -> bool:
    import packhorse_weights

    return "lm" in packhorse_weights.inspect_checkpoint(path).spec.get("heads", {})


def files_of(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = [*path.rglob("*.safetensors"), *path.glob("*.gguf"), *path.glob("*.bin")]
    return [file for file in found if file.is_file()]


def forget(path: Path) -> None:
    """Takes the files out of the page cache."""
    for file in files_of(path):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(path: Path) -> float:
    """Seconds of reading the files and nothing else."""
    begin = time.perf_counter()
    buffer = bytearray(1 << 22)
    for file in files_of(path):
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass
    return time.perf_counter() - begin


def measure(arguments: argparse.Namespace) -> None:
    loads = [
        (path, kind, dtype, sys.executable)
        for path in arguments.models
        for dtype in arguments.dtype
        for kind in arguments.kinds
    ]
    if arguments.llama_cpp:
        ggufs = [path for path in arguments.models if path.suffix == ".gguf"]
        loads += [(path, "llama.cpp", "None", arguments.llama_cpp) for path in ggufs]
    figures: dict[Any, list[dict[str, float]]] = {load: [] for load in loads}
    alone: dict[Path, list[float]] = {path: [] for path in arguments.models}
    generates = {path: has_head_of_words(path) for path in arguments.models}
    for _ in range(arguments.rounds):
        for path in arguments.models:
            if arguments.cold:
                forget(path)
            alone[path].append(read(path))
        for path, kind, dtype, python in loads:
            if arguments.cold:
                forget(path)
            child = [python, __file__, "--child", kind, str(path), dtype, str(generates[path])]
            done = subprocess.run(
                [*child, str(time.monotonic())],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                sys.exit(f"{kind} {path}: {done.stderr[-2000:]}")
            figures[path, kind, dtype, python].append(json.loads(done.stdout.splitlines()[-1]))
    heads = ("model", "what", "dtype", "process", "load", "MB/s", "reading alone", "user", "kernel")
    print("|", " | ".join((*heads, "resident MB", "before, in, after the runtime")), "|")
    print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|---|")
    for (path, kind, dtype, _), rows in figures.items():
        size = sum(file.stat().st_size for file in files_of(path)) / 1e6
        median = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        least = min(row["seconds"] for row in rows)
        parts = [median[name] for name in ("before", "runtime", "after") if name in median]
        cells = (
            path.name,
            kind,
            "" if dtype == "None" else dtype,
            f"{median['process']:.3f}",
            f"{median['seconds']:.3f} ({least:.3f})",
            f"{size / median['seconds']:,.0f}",
            f"{size / statistics.median(alone[path]):,.0f}",
            f"{median['user']:.2f}",
            f"{median['system']:.2f}",
            f"{median['resident'] / 1e6:,.0f}",
            ", ".join(f"{100 * part:.0f} %" for part in parts),
        )
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--dtype", nargs="+", default=["None"])
    parser.add_argument("--kinds", nargs="+", default=["text"], choices=("text", "session"))
    parser.add_argument("--llama-cpp", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--make", nargs=3, metavar=("FOLDER", "DTYPE", "GB"))
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        load_here(*arguments.child)
    if arguments.make:
        folder, dtype, size = arguments.make
        make_folder(Path(folder), dtype, float(size))
    if arguments.models:
        measure(arguments)


if __name__ == "__main__":
    main()
