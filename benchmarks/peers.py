"""The peers of Packhorse; one that is not installed is left out.

Each pads, masks and copies as it needs to: all of that is part of its time. No module of a peer is
imported before it is asked for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cases import Batch, Sizes
from engines import Engine, FloatArray, packhorse_engines, product_engines


def pad(batch: Batch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(ids, mask), int64[B, S] each."""
    ids = np.zeros((len(batch), max(len(row) for row in batch)), np.int64)
    mask = np.zeros_like(ids)
    for i, row in enumerate(batch):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return ids, mask


def unpad(hidden: FloatArray, batch: Batch) -> FloatArray:
    return np.concatenate([hidden[i, : len(row)] for i, row in enumerate(batch)])


def torch_engines(folder: Path, _cache: Path, threads: int) -> Iterator[Engine]:
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(threads)
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        model = transformers.AutoModel.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa"
        ).eval()

        def run(batch: Batch, model: Any = model) -> Any:
            ids, mask = pad(batch)
            with torch.inference_mode():
                return model(torch.from_numpy(ids), torch.from_numpy(mask)).last_hidden_state

        yield Engine("PyTorch", name, run, lambda out, batch: unpad(out.float().numpy(), batch))


def export_onnx(folder: Path, cache: Path) -> Path:
    """model.onnx: as exported; optimized.onnx: after onnxruntime's transformer optimizer, if there.

    The eager attention and the TorchScript exporter give the graph that the optimizer knows.
    """
    plain = cache / "model.onnx"
    if plain.is_file():
        return plain
    import torch
    import transformers

    class LastHiddenState(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.AutoModel.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager"
            ).eval()

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids, attention_mask).last_hidden_state

    example = torch.ones(2, 8, dtype=torch.long)
    names = ("input_ids", "attention_mask", "last_hidden_state")
    cache.mkdir(parents=True, exist_ok=True)
    partial = cache / "partial.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of its own age
        torch.onnx.export(
            LastHiddenState(),
            (example, example),
            str(partial),
            input_names=list(names[:2]),
            output_names=[names[2]],
            dynamic_axes={name: {0: "batch", 1: "sequence"} for name in names},
            opset_version=17,
            dynamo=False,
        )
    partial.rename(plain)
    return plain


def onnxruntime_engines(folder: Path, cache: Path, threads: int) -> Iterator[Engine]:
    import onnx
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model

    onnxruntime.set_default_logger_severity(3)
    optimized, quantized = cache / "optimized.onnx", cache / "quantized.onnx"
    if not optimized.is_file():
        sizes = Sizes.read(folder)
        model = optimize_model(
            str(export_onnx(folder, cache)),
            model_type="bert",
            num_heads=sizes.num_heads,
            hidden_size=sizes.hidden_size,
        )
        fused = model.get_fused_operator_statistics()
        # Otherwise the figures would be of something less than it can do.
        if not fused["Attention"] == fused["BiasGelu"] == sizes.num_layers:
            raise RuntimeError(f"onnxruntime's optimizer did not know the graph: {fused}")
        model.save_model_to_file(str(optimized))
    if not quantized.is_file():
        quantize_dynamic(
            optimized,
            quantized,
            weight_type=QuantType.QInt8,
            per_channel=True,
            # Shapes and types behind its own fused operators are not inferred.
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Its threads spin within a run, but not on into the next engine's.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    for dtype, path in (("float32", optimized), ("int8", quantized)):
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        kinds = {argument.name: argument.type for argument in session.get_inputs()}

        def run(batch: Batch, session: Any = session, kinds: dict[str, str] = kinds) -> FloatArray:
            inputs = dict(zip(("input_ids", "attention_mask"), pad(batch), strict=True))
            for name, kind in kinds.items():
                if kind == "tensor(int32)":  # the optimizer narrows what it can
                    inputs[name] = inputs[name].astype(np.int32)
            return session.run(None, inputs)[0]  # type: ignore[no-any-return]

        yield Engine("onnxruntime", dtype, run, unpad)


def ctranslate2_engines(folder: Path, cache: Path, threads: int) -> Iterator[Engine]:
    import ctranslate2

    converted = cache / "ctranslate2"
    if not converted.is_dir():
        converter = ctranslate2.converters.TransformersConverter(str(folder))
        converter.convert(str(converted), force=True)
    supported = ctranslate2.get_supported_compute_types("cpu")
    for dtype in ("float32", "bfloat16", "int8"):
        if dtype not in supported:
            continue
        encoder = ctranslate2.Encoder(
            str(converted),
            device="cpu",
            compute_type=dtype,
            inter_threads=1,
            intra_threads=threads,
        )

        def run(batch: Batch, encoder: Any = encoder) -> FloatArray:
            return np.asarray(encoder.forward_batch(batch).last_hidden_state)

        yield Engine(
            "CTranslate2", dtype, run, lambda out, batch: unpad(out.astype(np.float32), batch)
        )


def openvino_engines(folder: Path, cache: Path, threads: int) -> Iterator[Engine]:
    import openvino

    core = openvino.Core()
    model = core.read_model(export_onnx(folder, cache))
    supported = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    for name, precision, capability in (("float32", "f32", "FP32"), ("bfloat16", "bf16", "BF16")):
        if capability not in supported:
            continue
        compiled = core.compile_model(
            model,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": precision,
                "INFERENCE_NUM_THREADS": threads,
                "NUM_STREAMS": 1,
                "PERFORMANCE_HINT": "LATENCY",
            },
        )

        def run(batch: Batch, compiled: Any = compiled) -> FloatArray:
            return np.asarray(compiled(list(pad(batch)))[0])

        yield Engine("OpenVINO", name, run, unpad)


# What makes the engines, and the PyPI packages that each needs.
MAKERS: tuple[tuple[Callable[[Path, Path, int], Iterator[Engine]], tuple[str, ...]], ...] = (
    (packhorse_engines, ()),
    (torch_engines, ("torch", "transformers")),
    (onnxruntime_engines, ("onnxruntime", "onnx", "torch", "transformers")),
    (ctranslate2_engines, ("ctranslate2", "torch", "transformers")),
    (openvino_engines, ("openvino", "torch", "transformers")),
    (product_engines, ("torch",)),
)

VERSIONED = ("torch", "transformers", "onnxruntime", "ctranslate2", "openvino")


def installed(packages: Sequence[str]) -> dict[str, str]:
    """Versions of those that are installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def make_engines(folder: Path, cache: Path, threads: int) -> tuple[list[Engine], dict[str, str]]:
    """What runs the model, and what cannot, with the reason."""
    # Some ask the hub whether a local folder has a newer version.
    os.environ["HF_HUB_OFFLINE"] = "1"
    logging.disable(logging.WARNING)  # exporters have much to say
    engines: list[Engine] = []
    left_out: dict[str, str] = {}
    for maker, packages in MAKERS:
        name = maker.__name__
        missing = set(packages) - installed(packages).keys()
        if missing:
            left_out[name] = f"not installed: {', '.join(sorted(missing))}"
            continue
        try:
            engines += maker(folder, cache, threads)
        except Exception as error:  # of whatever kind: a peer's failure is no reason to stop
            left_out[name] = f"{type(error).__name__}: {error}"
    return engines, left_out
