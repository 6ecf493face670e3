"""Operators on packed arrays. Each is one call of the runtime, on any device and dtype.

Host inputs are arrays of numbers, converted to float32; ids and offsets are integers of any kind
within int32. The computation runs in `dtype` on `device`, and results come back as float32.

If the first argument lies on a CUDA device, all arguments must (offsets may lie on the host, except
those of `embed`). They may be any arrays with `__dlpack__` or `__cuda_array_interface__`. All
matrices have one dtype, float16 or bfloat16, in which the computation runs; vectors are float32 and
ids int32. The result is a `DeviceArray` with memory of its own. `stream` is as in
`EncoderSession.run`, but an operator always waits until it is done.

The operators are for tests and for models of one's own; a `Session` plans its memory and is faster.

`norm` arguments are `(gamma, beta, eps)`, where beta may be None. Every function raises ValueError
if its arguments do not fit together, and RuntimeError if the device does not support the dtype.
"""

from packhorse.kv_pages import PAGE_TOKENS
from packhorse.ops.compressed_attention import LatentState, cca
from packhorse.ops.dense import feed_forward, gemm, qkv_rope
from packhorse.ops.groupwise import gemm_groupwise
from packhorse.ops.kv_cache import append_kv_cache, paged_attention, rope
from packhorse.ops.lora import add_lora
from packhorse.ops.rowwise import embed, layer_norm, log_softmax, pool, rms_norm, sparse_pool
from packhorse.ops.sampling import Sampled, sample
from packhorse.ops.varlen_attention import attention

__all__ = [
    "PAGE_TOKENS",
    "LatentState",
    "Sampled",
    "add_lora",
    "append_kv_cache",
    "attention",
    "cca",
    "embed",
    "feed_forward",
    "gemm",
    "gemm_groupwise",
    "layer_norm",
    "log_softmax",
    "paged_attention",
    "pool",
    "qkv_rope",
    "rms_norm",
    "rope",
    "sample",
    "sparse_pool",
]
