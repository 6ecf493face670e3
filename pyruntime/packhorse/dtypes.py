"""Chooses the dtype of a session: the one asked for, or the one that the model's files suggest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from packhorse.names import Dtype

# The dtypes that can be asked for. A GPU may still lack float8; then the runtime raises an error.
_DTYPES = {
    "cpu": ("float32", "bfloat16", "float16", "int8", "stored"),
    "cuda": ("float16", "bfloat16", "int8", "float8", "stored"),
}


def dtypes_of(device: str) -> tuple[str, ...]:
    """The dtypes that can be asked for on a device, such as "cpu" or "cuda:0"."""
    return _DTYPES.get(device.partition(":")[0], ())


def choose_dtype(
    dtype: object,
    device: str,
    stored: str,
    generates: bool = False,
    spec: Mapping[str, Any] | None = None,
) -> Dtype:
    """Returns `dtype`, or the default for weights that are stored as `stored`, in a session that
    generates or not, of a model with this spec, if it is None or "auto". Other names of dtypes, and
    those of PyTorch, stand for ours.

    Raises ValueError if `dtype` is not a dtype of any device, or if the weights are quantised for
    another dtype.
    """
    if dtype is not None and not any(dtype in names for names in _DTYPES.values()):
        from packhorse_weights.dtype_names import dtype_name

        dtype = dtype_name(dtype)
    if dtype in (None, "auto"):
        from packhorse_weights.tensor import default_dtype

        family = None if spec is None else spec.get("family")
        return cast(Dtype, default_dtype(device, stored, generates, family))
    known = [name for name in dtypes_of(device) if name != "stored" or stored == "stored"]
    if known and not any(dtype in names for names in _DTYPES.values()):
        raise ValueError(f"unknown dtype {dtype!r:.80}; known: {', '.join(known)} on {device}")
    if dtype == "stored" != stored:
        raise ValueError(
            "dtype 'stored', but this model has no weights that are quantised in groups, as those "
            "of GGUF, GPTQ and AWQ files are: name another dtype"
        )
    if dtype == "stored" and device.startswith("cuda") and spec is not None:
        from packhorse_weights.tensor import leaves_float16

        if leaves_float16(spec.get("family")):
            raise ValueError(
                f"dtype 'stored' on {device} computes in float16, whose range activations of "
                f"{spec['family']!r:.80} leave: use bfloat16, or the cpu"
            )
    if stored in ("int8", "float8") and stored != dtype:
        raise ValueError(
            f"dtype {dtype!r:.80}, but the weights are stored in {stored}: load this model with "
            f"dtype {stored}, or the one that it was converted from"
        )
    return cast(Dtype, dtype)


def native_dtype(dtype: Dtype, device: str) -> str:
    """The dtype by its name in the C++ library. The spec says which weights stay as they are
    stored; activations are float32 then, on CUDA float16."""
    if dtype != "stored":
        return dtype
    return "float16" if device.startswith("cuda") else "float32"
