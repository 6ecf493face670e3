"""The dtype of a session: as asked for, or as the model's files suggest."""

from __future__ import annotations

from typing import cast

from packhorse.names import Dtype

# That can be asked for; a CPU may still lack bfloat16, which the runtime then says.
_DTYPES = {"cpu": ("float32", "bfloat16", "int8"), "cuda": ("float16", "bfloat16")}


def choose_dtype(dtype: str | None, device: str, stored: str) -> Dtype:
    """`dtype`, or the default one of weights that are stored as `stored`.

    Raises ValueError for what is not the name of a dtype of any device, and where the weights are
    quantised for another one.
    """
    if dtype is None:
        from packhorse_weights.tensor import default_dtype

        return cast(Dtype, default_dtype(device, stored))
    known = _DTYPES.get(device.partition(":")[0], ())
    if known and not any(dtype in names for names in _DTYPES.values()):
        raise ValueError(f"unknown dtype {dtype!r:.80}; known: {', '.join(known)} on {device}")
    if stored == "int8" != dtype:
        raise ValueError(
            f"dtype {dtype!r:.80}, but the weights are stored in int8: load this model with dtype "
            "int8, or the one that it was converted from"
        )
    return cast(Dtype, dtype)
