"""Other names of dtypes, as PyTorch, transformers and vLLM write them."""

from __future__ import annotations

_NAMES = {
    "fp32": "float32",
    "float": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
}


def dtype_name(dtype: object) -> str:
    """The name of a dtype here; of one that is not known, its own."""
    name = str(dtype).removeprefix("torch.")
    return _NAMES.get(name, name)
