"""Images per second of encoders of images, beside PyTorch, onnxruntime and OpenVINO.

    python benchmarks/image/encoders.py [--model NAME] [--threads N] [--seconds S]

Weights are random, of the sizes of real models; every engine gets the same ones, and the same
pixels, of one size. int8: packhorse quantises rows of activations as they come; onnxruntime's
dynamic quantisation does, too; OpenVINO's needs another package. Peers are measured where they are
installed. Prints the best of several runs, which alternate.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from packhorse import Session
from packhorse.patches import join, patches_of
from preprocess import best

MODELS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "ViT-B/16": ("ViT", {}, 16, 224),
    "DINOv2-small": ("Dinov2", {"hidden_size": 384, "num_attention_heads": 6}, 14, 224),
}
BATCHES = (1, 4)


def made(name: str, folder: Path) -> Any:
    """A model with random weights, saved in `folder`."""
    import torch
    import transformers

    family, sizes, patch, side = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**sizes, patch_size=patch, image_size=side)
    model = getattr(transformers, f"{family}Model")(config).eval()
    model.save_pretrained(folder)
    return model


def packhorse_calls(folder: Path, pixels: Any, patch: int, threads: int) -> dict[str, Any]:
    batch = join([patches_of(one, patch) for one in pixels])
    calls = {}
    for dtype in ("float32", "bfloat16", "int8"):
        session = Session.load(folder, dtype=dtype, threads=threads, max_tokens=4096)
        calls[f"packhorse {dtype}"] = lambda session=session: session.run(batch, "hidden").hidden
    return calls


def torch_calls(model: Any, pixels: Any, threads: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(threads)
    tensor = torch.from_numpy(pixels)

    def run() -> Any:
        with torch.inference_mode():
            return model(tensor).last_hidden_state.numpy()

    return {"torch float32": run}


def onnx_calls(model: Any, folder: Path, pixels: Any, threads: int) -> dict[str, Any]:
    try:
        import onnxruntime as ort
        import torch
        from onnxruntime.quantization import quantize_dynamic
    except ImportError:
        return {}
    calls: dict[str, Any] = {}
    whole, small = folder / "model.onnx", folder / "int8.onnx"
    if not whole.exists():

        class Hidden(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, pixel_values: Any) -> Any:
                return self.model(pixel_values).last_hidden_state

        example = torch.zeros(2, *pixels.shape[1:])
        names = {"input_names": ["pixels"], "output_names": ["hidden"]}
        axes = {"pixels": {0: "batch"}, "hidden": {0: "batch"}}
        torch.onnx.export(Hidden(), (example,), whole, dynamo=False, dynamic_axes=axes, **names)
        quantize_dynamic(whole, small)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    for name, path in (("float32", whole), ("int8", small)):
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        calls[f"onnxruntime {name}"] = lambda session=session: session.run(
            None, {"pixels": pixels}
        )[0]
    return calls


def openvino_calls(folder: Path, pixels: Any, threads: int) -> dict[str, Any]:
    whole = folder / "model.onnx"
    try:
        import openvino as ov
    except ImportError:
        return {}
    if not whole.exists():
        return {}
    core = ov.Core()
    found = core.read_model(whole)
    found.reshape([*pixels.shape])
    calls: dict[str, Any] = {}
    for name, precision in (("float32", "f32"), ("bfloat16", "bf16")):
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": precision,
            "PERFORMANCE_HINT": "LATENCY",
        }
        compiled = core.compile_model(found, "CPU", settings)
        calls[f"OpenVINO {name}"] = lambda compiled=compiled: compiled(pixels)[0]
    return calls


def measure(name: str, threads: int, seconds: float) -> None:
    patch, side = MODELS[name][2:]
    with tempfile.TemporaryDirectory() as room:
        folder = Path(room)
        model = made(name, folder)
        for count in BATCHES:
            draw = np.random.default_rng(0)
            pixels = draw.normal(size=(count, 3, side, side)).astype(np.float32)
            calls: dict[str, Callable[[], Any]] = {
                **packhorse_calls(folder, pixels, patch, threads),
                **torch_calls(model, pixels, threads),
                **onnx_calls(model, folder, pixels, threads),
                **openvino_calls(folder, pixels, threads),
            }
            expected = calls["torch float32"]().reshape(-1)
            for engine, call in calls.items():
                error = np.abs(np.asarray(call()).reshape(-1) - expected).max()
                assert error < (1e-3 if "float32" in engine else 1), (engine, error)
            times = best(seconds, calls)
            for engine, ms in times.items():
                print(f"{name}, {count} images, {engine}: {count / ms * 1e3:.1f} /s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=15, help="of each batch")
    options = parser.parse_args()
    for name in [options.model] if options.model else MODELS:
        measure(name, options.threads, options.seconds)


if __name__ == "__main__":
    main()
