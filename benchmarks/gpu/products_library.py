"""The library that products.py measures: its build, and its C functions (products.cc)."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
RUNTIME = HERE.parents[1] / "runtime"
BUILD = HERE.parents[1] / "build" / "products"
ROOMS = ("fp8", "skinny", "sm90", "splitk")  # folders of runtime/cuda/gemm


class Product(ctypes.Structure):
    """The structure of the same name in products.cc, which says what its fields are."""

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("row_count", ctypes.c_void_p),
        ("row_scales", ctypes.c_void_p),
        ("column_scales", ctypes.c_void_p),
        ("out_factor", ctypes.c_float),
        ("rows", ctypes.c_int32),
        ("n", ctypes.c_int32),
        ("k", ctypes.c_int32),
        ("parts", ctypes.c_int32),
        ("sm_count", ctypes.c_int32),
        ("bfloat16", ctypes.c_bool),
        ("gelu", ctypes.c_bool),
    )


class Library:
    """The functions of a library that build() has made, now or before."""

    def __init__(self, path: Path) -> None:
        self._functions = ctypes.CDLL(str(path.resolve()))
        self._functions.run_product.argtypes = [ctypes.POINTER(Product), ctypes.c_void_p]
        self._functions.name_kernel.argtypes = [
            ctypes.POINTER(Product),
            ctypes.c_char_p,
            ctypes.c_size_t,
        ]
        size = self._functions.product_size()
        if size != ctypes.sizeof(Product):
            raise RuntimeError(f"{path}: Product has {size} bytes, not as here")

    def parts_of(self, n: int, k: int, sm_count: int) -> int:
        return int(self._functions.parts_of(n, k, sm_count))

    def kernel_of(self, product: Product) -> str:
        name = ctypes.create_string_buffer(32)
        self._functions.name_kernel(product, name, len(name))
        return name.value.decode()

    def run(self, product: Product) -> None:
        """Launches a product on PyTorch's current stream."""
        if self._functions.run_product(product, torch.cuda.current_stream().cuda_stream) != 0:
            raise RuntimeError("run_product failed")


def product(a: Any, weight: Any, out: Any, **rest: Any) -> Product:
    """Returns the product of `a` [rows, k] and `weight` [n, k] with a result `out`; `rest` has
    more fields, tensors among them."""
    fields = {
        name: value.data_ptr() if isinstance(value, torch.Tensor) else value
        for name, value in {"a": a, "weight": weight, "out": out, **rest}.items()
    }
    sizes = {"rows": a.shape[0], "n": weight.shape[0], "k": weight.shape[1]}
    return Product(**{"parts": 1, "sm_count": sm_count(), "bfloat16": True, **sizes, **fields})


def sm_count() -> int:
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


def build(cutlass: Path) -> Path:
    """Compiles the kernels of this tree with CUTLASS's headers in `cutlass`: some minutes."""
    BUILD.mkdir(parents=True, exist_ok=True)
    options = ["-std=c++20", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr"]
    options += ["-Xcompiler=-fPIC,-fvisibility=hidden", "-DPACKHORSE_CUDA_SM90"]
    options += ["-gencode=arch=compute_90a,code=sm_90a"]
    options += [f"-I{path}" for path in (cutlass, RUNTIME, RUNTIME / "include")]
    gemm = RUNTIME / "cuda" / "gemm"
    sources = [source for room in ROOMS for source in sorted((gemm / room).glob("*.cu"))]
    sources += [
        RUNTIME / "cuda" / "device" / "caps.cc",
        RUNTIME / "core" / "types.cc",
        HERE / "products.cc",
    ]
    objects = [BUILD / f"{source.stem}.o" for source in sources]
    for source, to in zip(sources, objects, strict=True):
        subprocess.run(["nvcc", *options, "-c", str(source), "-o", str(to)], check=True)
    library = BUILD / "libproducts.so"
    subprocess.run(["nvcc", "-shared", "-o", str(library), *map(str, objects)], check=True)
    return library
