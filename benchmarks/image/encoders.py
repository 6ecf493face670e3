"""Images per second of encoders of images, beside PyTorch, onnxruntime and OpenVINO.

    python benchmarks/image/encoders.py [--model NAME] [--images N] [--dtype DTYPE] [--threads N]
        [--seconds S] [--room FOLDER]

Weights are random, of the sizes of real models; every engine gets the same ones, and the same
pixels, of one size. int8: packhorse quantises rows of activations as they come; onnxruntime's
dynamic quantisation does, too; nncf, OpenVINO's own tool, takes ranges of activations from 16
images. Peers are measured where they are installed. `--room` keeps what is made for them, which
takes minutes: with `--seconds 0` nothing else is done. Prints the best of several runs, which
alternate.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from packhorse import Session
from packhorse.patches import join, patches_of
from preprocess import best

_LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
MODELS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "ViT-B/16": ("ViT", {}, 16, 224),
    "CLIP-L/14": ("CLIPVision", _LARGE, 14, 224),
    "DINOv2-small": ("Dinov2", {"hidden_size": 384, "num_attention_heads": 6}, 14, 224),
}
BATCHES = (1, 4)
# OpenVINO's precision of what is not quantised.
_HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}


def made(name: str, folder: Path) -> Any:
    """A model with random weights, saved in `folder`."""
    import torch
    import transformers

    family, sizes, patch, side = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**sizes, patch_size=patch, image_size=side)
    model = getattr(transformers, f"{family}Model")(config).eval()
    if not (folder / "model.safetensors").exists():
        model.save_pretrained(folder)
    return model


def packhorse_calls(
    folder: Path, pixels: Any, patch: int, threads: int, dtypes: Sequence[Any]
) -> dict[str, Any]:
    batch = join([patches_of(one, patch) for one in pixels])
    calls = {}
    for dtype in dtypes:
        session = Session.load(folder, dtype=dtype, threads=threads, max_tokens=4096)
        calls[f"packhorse {dtype}"] = lambda session=session: session.run(batch, "hidden").hidden
    return calls


def torch_calls(model: Any, pixels: Any, threads: int, dtypes: Sequence[str]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(threads)
    if "float32" not in dtypes:
        return {}
    tensor = torch.from_numpy(pixels)

    def run() -> Any:
        with torch.inference_mode():
            return model(tensor).last_hidden_state.numpy()

    return {"torch float32": run}


def export(model: Any, folder: Path, side: int) -> None:
    """Writes what PyTorch exports of a model, and its int8 form by onnxruntime."""
    import torch
    from onnxruntime.quantization import quantize_dynamic

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixel_values: Any) -> Any:
            return self.model(pixel_values).last_hidden_state

    example = torch.zeros(2, 3, side, side)
    names = {"input_names": ["pixels"], "output_names": ["hidden"]}
    axes = {"pixels": {0: "batch"}, "hidden": {0: "batch"}}
    whole = folder / "model.onnx"
    torch.onnx.export(Hidden(), (example,), whole, dynamo=False, dynamic_axes=axes, **names)
    quantize_dynamic(whole, folder / "int8.onnx")


def onnx_calls(
    model: Any, folder: Path, pixels: Any, threads: int, dtypes: Sequence[str]
) -> dict[str, Any]:
    try:
        import onnxruntime as ort

        if not (folder / "int8.onnx").exists():
            export(model, folder, pixels.shape[-1])
    except ImportError:
        return {}
    calls: dict[str, Any] = {}
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    for name, path in (("float32", "model.onnx"), ("int8", "int8.onnx")):
        if name not in dtypes:
            continue
        session = ort.InferenceSession(folder / path, options, providers=["CPUExecutionProvider"])
        calls[f"onnxruntime {name}"] = lambda session=session: session.run(
            None, {"pixels": pixels}
        )[0]
    return calls


def quantize(core: Any, folder: Path, side: int) -> None:
    """Writes the int8 form of a model by nncf, with ranges of activations of some images."""
    import nncf
    import openvino as ov

    draw = np.random.default_rng(1)
    images = [draw.normal(size=(1, 3, side, side)).astype(np.float32) for _ in range(16)]
    with contextlib.redirect_stdout(io.StringIO()):  # to hide its progress bars
        made = nncf.quantize(
            core.read_model(folder / "model.onnx"),
            nncf.Dataset(images),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(images),
        )
    ov.save_model(made, folder / "int8.xml")


def openvino_calls(
    folder: Path, pixels: Any, threads: int, dtypes: Sequence[str]
) -> dict[str, Any]:
    try:
        import openvino as ov
    except ImportError:
        return {}
    if not (folder / "model.onnx").exists():
        return {}
    core = ov.Core()
    calls: dict[str, Any] = {}
    for name in dtypes:
        if name == "int8" and not (folder / "int8.xml").exists():
            try:
                quantize(core, folder, pixels.shape[-1])
            except ImportError:
                continue
        found = core.read_model(folder / ("int8.xml" if name == "int8" else "model.onnx"))
        found.reshape([*pixels.shape])
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": _HINTS[name],
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        }
        compiled = core.compile_model(found, "CPU", settings)
        calls[f"OpenVINO {name}"] = lambda compiled=compiled: compiled(pixels)[0]
    return calls


def cosine(found: Any, expected: Any) -> float:
    a, b = np.asarray(found).reshape(-1), np.asarray(expected).reshape(-1)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def normed(model: Any, hidden: Any) -> Any:
    """The rows of a model after its last norm, which CLIP applies to one of them alone."""
    import torch

    norm = getattr(getattr(model, "vision_model", model), "post_layernorm", None)
    if norm is None:
        return hidden
    with torch.inference_mode():
        return norm(torch.from_numpy(hidden)).numpy()


def measure(
    name: str, folder: Path, batches: Sequence[int], dtypes: Sequence[str], options: Any
) -> None:
    patch, side = MODELS[name][2:]
    threads = options.threads
    model = made(name, folder)
    for count in batches:
        draw = np.random.default_rng(0)
        pixels = draw.normal(size=(count, 3, side, side)).astype(np.float32)
        calls: dict[str, Callable[[], Any]] = {
            **packhorse_calls(folder, pixels, patch, threads, dtypes),
            **torch_calls(model, pixels, threads, dtypes),
            **onnx_calls(model, folder, pixels, threads, dtypes),
            **openvino_calls(folder, pixels, threads, dtypes),
        }
        if not options.seconds:
            return
        expected = torch_calls(model, pixels, threads, ["float32"])["torch float32"]()
        cosines = {}
        for engine, call in calls.items():
            wanted = normed(model, expected) if "packhorse" in engine else expected
            cosines[engine] = cosine(call(), wanted)
            assert cosines[engine] > (0.9999 if "float32" in engine else 0.9), engine
        for engine, ms in best(options.seconds, calls).items():
            print(
                f"{name}, {count} images, {engine}: {count / ms * 1e3:.2f} /s, "
                f"cosine {cosines[engine]:.4f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--images", type=int, help=f"of a batch {BATCHES}")
    parser.add_argument("--dtype", choices=_HINTS)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=15, help="of each batch")
    parser.add_argument("--room", type=Path, help="folder that keeps models (a temporary one)")
    options = parser.parse_args()
    batches = [options.images] if options.images else BATCHES
    dtypes = [options.dtype] if options.dtype else [*_HINTS]
    for name in [options.model] if options.model else MODELS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.room or Path(temporary)) / name.replace("/", "-")
            folder.mkdir(parents=True, exist_ok=True)
            measure(name, folder, batches, dtypes, options)


if __name__ == "__main__":
    main()
