"""The operator of weights that are quantised in groups, which is also a name of `packhorse.ops`."""

from __future__ import annotations

from typing import Any

import numpy as np

from packhorse.device import is_device_array
from packhorse.names import Activation, Dtype
from packhorse.ops.call import OperatorCall, as_float32
from packhorse.packing import own_int32


def gemm_groupwise(
    x: Any,
    values: Any,
    scales: Any,
    minima: Any = None,
    bias: Any = None,
    *,
    bits: int,
    group: int,
    activation: Activation = "none",
    gated: bool = False,
    residual: Any = None,
    device: str = "cpu",
    dtype: Dtype = "float32",
    threads: int | None = None,
    stream: Any = None,
    input_order: Any = None,
) -> Any:
    """residual + activation(x @ weight.T + bias), where each `group` neighbouring input features of
    a row of the weight share a scale and, if there are any, a minimum: scales * values + minima, or
    without minima scales * (values - 2 ** (bits - 1)). See docs/weights.md for what is rounded.

    x [rows, in_features]. values [out_features, in_features]: integers from 0 to 2 ** bits - 1, of
    4 or 8 bits. scales, minima [out_features, groups], rounded to float16. group: a power of two
    from 16 on, with 4 bits from 32 on; a row's last group may have fewer features.
    gated: blocks of 16 rows of the weight are in turn a gate and what it gates, and the result is
    activation(gate) * other, half as wide, without a residual.
    input_order [in_features]: every input feature once; columns of `values` are then for those of
    x[:, input_order]. None: they are for those of x.

    x, bias and residual lie on the host or, all of them, on a device, as the result does then;
    values, scales, minima and input_order lie on the host. Raises ValueError where arguments do not
    fit together or are out of range, RuntimeError in a dtype that the device does not have it in:
    CUDA devices have it in float16.
    """
    if bits not in (4, 8):
        raise ValueError(f"bits is {bits}, expected 4 or 8")
    least = 32 if bits == 4 else 16
    if group < least or group & (group - 1):
        raise ValueError(f"group is {group}, expected a power of two from {least} on")
    rows = np.shape(values)[0] if np.ndim(values) else 0
    if gated and (rows % 32 or residual is not None):
        raise ValueError(
            f"a gated weight has {rows} rows, and takes no residual: expected a multiple of 32"
        )

    for name, array in (
        ("values", values),
        ("scales", scales),
        ("minima", minima),
        ("input_order", input_order),
    ):
        if is_device_array(array):
            raise ValueError(f"{name} lies on a device, expected host memory")
    order = None if input_order is None else own_int32("input_order", input_order)
    if order is not None and np.ndim(values) == 2:
        columns = np.shape(values)[1]
        if order.shape != (columns,) or np.any(np.sort(order) != np.arange(columns)):
            raise ValueError(f"input_order: expected each number from 0 to {columns - 1} once")
    call = OperatorCall(x, x, device, dtype, threads, stream)
    return call.result(
        call.operators.gemm_groupwise(
            call.stream,
            call.put("x", x),
            as_float32("values", values),
            as_float32("scales", scales),
            None if minima is None else as_float32("minima", minima),
            call.put("bias", bias),
            bits,
            group,
            activation,
            gated,
            call.put("residual", residual),
            order,
        )
    )
