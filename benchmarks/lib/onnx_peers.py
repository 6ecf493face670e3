"""The peers onnxruntime and OpenVINO, which run the model as PyTorch exports it."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from engines import Engine, FloatArray, pad, unpad
from workloads import Batch, Case, Sizes, make_batches


def export_onnx(folder: Path, cache: Path) -> Path:
    """Writes model.onnx as exported and, if onnxruntime's transformer optimizer is installed, its
    optimized.onnx.

    Eager attention and the TorchScript exporter give the graph that the optimizer recognises.
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
        warnings.simplefilter("ignore")  # the exporter warns of its own age
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
        # Each missing fusion would make the engine slower than it can be.
        if not fused["Attention"] == fused["BiasGelu"] == sizes.num_layers:
            raise RuntimeError(f"onnxruntime's optimizer did not know the graph: {fused}")
        model.save_model_to_file(str(optimized))
    if not quantized.is_file():
        quantize_dynamic(
            optimized,
            quantized,
            weight_type=QuantType.QInt8,
            per_channel=True,
            # Shapes and types after its own fused operators are not inferred.
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Its threads spin within a run, but must not go on into the run of the next engine.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    for dtype, path in (("float32", optimized), ("int8", quantized)):
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        kinds = {argument.name: argument.type for argument in session.get_inputs()}

        def run(batch: Batch, session: Any = session, kinds: dict[str, str] = kinds) -> FloatArray:
            inputs = dict(zip(("input_ids", "attention_mask"), pad(batch), strict=True))
            for name, kind in kinds.items():
                if kind == "tensor(int32)":  # the optimizer narrows the types of inputs
                    inputs[name] = inputs[name].astype(np.int32)
            return session.run(None, inputs)[0]  # type: ignore[no-any-return]

        yield Engine("onnxruntime", dtype, run, unpad)


def _openvino_engine(core: Any, model: Any, dtype: str, threads: int, **config: Any) -> Engine:
    compiled = core.compile_model(
        model,
        "CPU",
        {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            **config,
        },
    )

    def run(batch: Batch) -> FloatArray:
        return np.asarray(compiled(list(pad(batch)))[0])

    return Engine("OpenVINO", dtype, run, unpad)


def openvino_engines(folder: Path, cache: Path, threads: int) -> Iterator[Engine]:
    import openvino

    core = openvino.Core()
    model = core.read_model(export_onnx(folder, cache))
    supported = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    for dtype, precision, capability in (("float32", "f32", "FP32"), ("bfloat16", "bf16", "BF16")):
        if capability in supported:
            yield _openvino_engine(core, model, dtype, threads, INFERENCE_PRECISION_HINT=precision)


def openvino_int8_engines(folder: Path, cache: Path, threads: int) -> Iterator[Engine]:
    """Engines quantised by nncf with ranges of activations from some text, because OpenVINO has no
    dynamic quantisation."""
    import nncf
    import openvino

    core = openvino.Core()
    quantized = cache / "openvino_int8.xml"
    if not quantized.is_file():
        batches = make_batches(Case("", 8, 128, 4), folder)
        with contextlib.redirect_stdout(io.StringIO()):  # to hide its progress bars
            model = nncf.quantize(
                core.read_model(export_onnx(folder, cache)),
                nncf.Dataset(batches, lambda batch: list(pad(batch))),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(batches),
            )
        openvino.save_model(model, quantized)
    # Layers that are not quantised are float32, as in the int8 engines of the others.
    yield _openvino_engine(
        core, core.read_model(quantized), "int8", threads, INFERENCE_PRECISION_HINT="f32"
    )
