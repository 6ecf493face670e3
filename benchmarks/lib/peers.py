"""The peers of Packhorse. Those that are not installed are left out.

Each peer pads, masks and copies as it needs to, and all of that is part of its time. No module of a
peer is imported before the peer is asked for.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from engines import Engine, FloatArray, packhorse_engines, pad, unpad
from onnx_peers import onnxruntime_engines, openvino_engines, openvino_int8_engines
from workloads import Batch


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


# A function that makes engines, and the PyPI packages that it needs.
Maker = tuple[Callable[[Path, Path, int], Iterator[Engine]], tuple[str, ...]]
MAKERS: tuple[Maker, ...] = (
    (packhorse_engines, ()),
    (torch_engines, ("torch", "transformers")),
    (onnxruntime_engines, ("onnxruntime", "onnx", "torch", "transformers")),
    (ctranslate2_engines, ("ctranslate2", "torch", "transformers")),
    (openvino_engines, ("openvino", "torch", "transformers")),
    (openvino_int8_engines, ("openvino", "nncf", "torch", "transformers")),
)

VERSIONED = (
    "torch",
    "transformers",
    "sentence-transformers",
    "onnxruntime",
    "ctranslate2",
    "openvino",
    "nncf",
)


def installed(packages: Sequence[str]) -> dict[str, str]:
    """The versions of those packages that are installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def collect_engines(
    makers: Sequence[Maker], folder: Path, cache: Path, threads: int
) -> tuple[list[Engine], dict[str, str]]:
    """Returns the engines that run the model, and those that cannot with the reason."""
    # Some peers ask the hub whether a local folder has a newer version.
    os.environ["HF_HUB_OFFLINE"] = "1"
    logging.disable(logging.WARNING)  # exporters write many messages
    engines: list[Engine] = []
    left_out: dict[str, str] = {}
    for maker, packages in makers:
        name = maker.__name__
        missing = set(packages) - installed(packages).keys()
        if missing:
            left_out[name] = f"not installed: {', '.join(sorted(missing))}"
            continue
        try:
            engines += maker(folder, cache, threads)
        except Exception as error:  # a failure of a peer, of any kind, must not end the run
            left_out[name] = f"{type(error).__name__}: {error}"
    return engines, left_out


def make_engines(folder: Path, cache: Path, threads: int) -> tuple[list[Engine], dict[str, str]]:
    """Makes the engines that run batches of token ids."""
    return collect_engines(MAKERS, folder, cache, threads)
