"""Times every tile of the Hopper GEMMs beside cuBLAS, and fits the cost table to the times.

    python benchmarks/gpu/gemm_sweep.py --cutlass DIR [--seconds 60] [--out FILE.csv]
    python benchmarks/gpu/gemm_sweep.py --fit FILE.csv

The first command needs a Hopper GPU, PyTorch and nvcc; DIR holds CUTLASS's headers. It compiles the
kernels of this tree into build/benchmarks/, checks each against float64 and all against each other,
and times them. The second command prints the rows of kGemmTiles
(runtime/cuda/gemm/gemm_config.h) that fit a file best, and how much slower their choices are than
the best tile of each shape.

The times are those of CUDA graphs of many launches, each of which may begin its setup while the one
before finishes, as in the encoder. The dtype is float16 and the row count lies in device memory.
Activations lie in L2 (one buffer); weights do not (they rotate through more memory than L2). All
tiles of a shape take turns, and times are medians over the rounds; cuBLAS adds only a bias. Power
limits sustained load, so compare only within a shape.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import datetime
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
RUNTIME = HERE.parents[1] / "runtime"
BUILD = HERE.parents[1] / "build" / "benchmarks"
COLUMNS = ["rows", "n", "k", "epilogue", "variant", "tile_rows", "tile_columns", "us"]
Shape = tuple[int, int, int, str]  # (rows, n, k, epilogue)
LAYERS = [(tokens, 768) for tokens in (32, 128, 300, 581, 1151, 2567, 5283, 21769)]
LAYERS += [(10308, 1024), (10191, 384)]
SHAPES: list[Shape] = [(8192, 8192, 8192, "bias")]
for tokens, width in LAYERS:
    SHAPES += [(tokens, 3 * width, width, "bias"), (tokens, width, width, "residual")]
    SHAPES += [(tokens, 4 * width, width, "gelu"), (tokens, width, 4 * width, "residual")]
PRODUCTS = [(512, 3072, 768), (16, 12288, 12288)]
for tokens in (4096, 32768):
    PRODUCTS += [(tokens, 2304, 768), (tokens, 768, 768), (tokens, 3072, 768), (tokens, 768, 3072)]
PRODUCTS += [(32768, 3072, 1024), (32768, 4096, 1024), (32768, 1024, 4096)]
SHAPES += [(*product, epilogue) for product in PRODUCTS for epilogue in ("bias", "gelu")]
FLOAT16, GELU = 1, 1  # values of DType and Activation


class Rotation(ctypes.Structure):  # GemmRotation
    _fields_ = (
        ("positions", ctypes.c_void_p),
        ("frequencies", ctypes.c_void_p),
        ("dims", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("columns", ctypes.c_int32),
    )


class Pool(ctypes.Structure):  # GemmPool
    _fields_ = (
        ("out", ctypes.c_void_p),
        ("cu_seqlens", ctypes.c_void_p),
        ("num_sequences", ctypes.c_int32),
        ("columns", ctypes.c_int32),
    )


class Params(ctypes.Structure):  # GemmParams
    _fields_ = (
        ("a", ctypes.c_void_p),
        ("lda", ctypes.c_int64),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("ldr", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("ldo", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("row_count", ctypes.c_void_p),
        ("n", ctypes.c_int32),
        ("k", ctypes.c_int32),
        ("dtype", ctypes.c_uint8),
        ("activation", ctypes.c_uint8),
        ("gated", ctypes.c_bool),
        ("rotation", Rotation),
        ("pool", Pool),
        ("sm_count", ctypes.c_int32),
    )


def build(cutlass: Path) -> ctypes.CDLL:
    BUILD.mkdir(parents=True, exist_ok=True)
    options = ["-std=c++20", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", "-Xcompiler=-fPIC"]
    options += ["-gencode=arch=compute_90a,code=sm_90a", "-DPACKHORSE_CUDA_SM90"]
    options += [f"-I{path}" for path in (cutlass, RUNTIME, RUNTIME / "include")]
    sources = [
        *sorted((RUNTIME / "cuda" / "gemm" / "sm90").glob("*.cu")),
        RUNTIME / "cuda" / "device" / "caps.cc",
        RUNTIME / "core" / "types.cc",
        HERE / "gemm_sweep.cc",
    ]
    objects = [BUILD / f"{source.stem}.o" for source in sources]

    def compile_one(source: Path, to: Path) -> None:
        subprocess.run(["nvcc", *options, "-c", str(source), "-o", str(to)], check=True)

    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_one, sources, objects))
    library = BUILD / "gemm_sweep.so"
    subprocess.run(["nvcc", "-shared", "-o", str(library), *map(str, objects)], check=True)
    loaded = ctypes.CDLL(str(library))
    if loaded.params_size() != ctypes.sizeof(Params):
        raise RuntimeError(f"GemmParams has {loaded.params_size()} bytes, not as Params here")
    return loaded


def bucket_of(rows: int) -> int:
    """The row count of the session's recording that serves `rows`."""
    size = 16
    while size < rows:
        size += size if size < 128 else 2 ** (size.bit_length() - 1) // 8
    return size


class Case:
    """The buffers of one shape, and its launches."""

    def __init__(self, torch: Any, library: ctypes.CDLL, shape: Shape) -> None:
        self.torch, self.library = torch, library
        self.rows, self.n, self.k, epilogue = shape
        most = bucket_of(self.rows)
        options: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
        copies = min(24, 1 + 120_000_000 // (2 * self.n * self.k))
        self.x = torch.randn(most, self.k, **options)
        self.weights = [torch.randn(self.n, self.k, **options) for _ in range(copies)]
        for weight in self.weights:
            weight *= self.k**-0.5
        self.bias = torch.randn(self.n, device="cuda")
        self.bias16 = self.bias.half()
        self.residual = torch.randn(most, self.n, **options) if epilogue == "residual" else None
        self.out = torch.empty(most, self.n, **options)
        self.count = torch.tensor([self.rows], device="cuda", dtype=torch.int32)
        self.activation = GELU if epilogue == "gelu" else 0
        self.sm_count = torch.cuda.get_device_properties(0).multi_processor_count
        self.params = [self._params(weight) for weight in self.weights]

    def _params(self, weight: Any) -> Params:
        return Params(
            a=self.x.data_ptr(),
            lda=self.k,
            weight=weight.data_ptr(),
            bias=self.bias.data_ptr(),
            residual=None if self.residual is None else self.residual.data_ptr(),
            ldr=self.n,
            out=self.out.data_ptr(),
            ldo=self.n,
            rows=self.x.shape[0],
            row_count=self.count.data_ptr(),
            n=self.n,
            k=self.k,
            dtype=FLOAT16,
            activation=self.activation,
            sm_count=self.sm_count,
        )

    def chosen(self) -> int:
        return int(self.library.chosen_tile(ctypes.byref(self.params[0])))

    def ours(self, tile: int, i: int = 0) -> None:
        stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        params = self.params[i % len(self.params)]
        if self.library.run_gemm(ctypes.byref(params), tile, stream) != 0:
            raise RuntimeError("run_gemm failed")

    def cublas(self, i: int) -> None:
        weight = self.weights[i % len(self.weights)].t()
        out = self.out[: self.rows]
        self.torch.addmm(self.bias16, self.x[: self.rows], weight, out=out)

    def check(self) -> None:
        """Checks that every tile is right to within rounding, and that all tiles give the same
        bits."""
        rows = min(self.rows, 2048)
        expected = self.x[:rows].double() @ self.weights[0].double().t() + self.bias.double()
        if self.activation == GELU:
            expected = self.torch.nn.functional.gelu(expected)
        if self.residual is not None:
            expected += self.residual[:rows].double()
        first = None
        for tile in range(self.library.tile_count()):
            self.out.fill_(float("nan"))
            self.ours(tile)
            out = self.out[: self.rows].clone()
            error = (out[:rows].double() - expected).abs() - 2.0**-11 * expected.abs()
            if not error.max().item() <= 2.5e-4:
                raise AssertionError(f"tile {tile}: off by {error.max().item()}")
            if first is not None and not self.torch.equal(first, out):
                raise AssertionError(f"tile {tile}: bits differ from tile 0")
            first = out

    def capture(self, launch: Callable[[int], None], launches: int) -> Any:
        torch = self.torch
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            launch(0)
            stream.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                for i in range(launches):
                    launch(i)
        return graph

    def measure(self, seconds: float) -> dict[str, float]:
        """Returns the microseconds of each variant: `cublas`, or the number of a tile."""
        from kernel_timing import intervals_ms

        launches = max(len(self.weights), 24 if self.rows < 6000 else 3)
        graphs = {"cublas": self.capture(self.cublas, launches)}
        for tile in range(self.library.tile_count()):
            size = self.library.tile_rows(tile) * self.library.tile_columns(tile)
            if size < 128 * 128 and self.rows * self.n / size > 60 * self.sm_count:
                continue  # small tiles are never good for large shapes

            def launch(i: int, tile: int = tile) -> None:
                self.ours(tile, i)

            graphs[str(tile)] = self.capture(launch, launches)
        samples: dict[str, list[float]] = {name: [] for name in graphs}
        stop = time.monotonic() + seconds
        while time.monotonic() < stop or len(samples["cublas"]) < 3:
            for name, graph in graphs.items():
                (milliseconds,) = intervals_ms([graph.replay], first=graph.replay)
                samples[name].append(1e3 * milliseconds / launches)
        return {name: statistics.median(times) for name, times in samples.items()}


def sweep(cutlass: Path, seconds: float, out: Path) -> None:
    import torch

    torch.manual_seed(1)
    library = build(cutlass)
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for shape in SHAPES:
            case = Case(torch, library, shape)
            case.check()
            times = case.measure(seconds / len(SHAPES))
            chosen = str(case.chosen())
            cublas = times.pop("cublas")
            writer.writerow([*shape, "cublas", "", "", f"{cublas:.2f}"])
            for name, us in times.items():
                tile = int(name)
                size = [library.tile_rows(tile), library.tile_columns(tile)]
                writer.writerow([*shape, name, *size, f"{us:.2f}"])
            best = min(times, key=lambda name: times[name])
            print(
                f"{shape}: cuBLAS {cublas:.1f} us, chosen tile {chosen} {times[chosen]:.1f}"
                f" ({cublas / times[chosen]:.2f}), best tile {best} {times[best]:.1f}",
                flush=True,
            )
    print(f"wrote {out}")


def non_negative(a: Any, y: Any) -> Any:
    """Least squares without negative coefficients, by trying all subsets of the few columns."""
    best, least = np.zeros(a.shape[1]), float("inf")
    for mask in itertools.product([False, True], repeat=a.shape[1]):
        if not any(mask):
            continue
        x = np.zeros(a.shape[1])
        x[list(mask)] = np.linalg.lstsq(a[:, list(mask)], y, rcond=None)[0]
        error = float(((a @ x - y) ** 2).sum())
        if (x >= 0).all() and error < least:
            best, least = x, error
    return best


def fit(file: Path, sm_count: int = 132) -> None:
    shapes: dict[Shape, dict[int, float]] = {}
    size: dict[int, tuple[int, int]] = {}
    for row in csv.DictReader(file.open()):
        if row["variant"] != "cublas":
            shape = (int(row["rows"]), int(row["n"]), int(row["k"]), row["epilogue"])
            tile = int(row["variant"])
            size[tile] = (int(row["tile_rows"]), int(row["tile_columns"]))
            shapes.setdefault(shape, {})[tile] = float(row["us"])

    def terms(tile: int, shape: Shape) -> list[float]:
        tiles = -(-shape[0] // size[tile][0]) * -(-shape[1] // size[tile][1])
        waves = -(-tiles // sm_count)
        return [1.0, float(waves * shape[2]), float(waves)]

    cost: dict[int, Any] = {}
    for tile in sorted(size):
        timed = [s for s, us in shapes.items() if tile in us]
        measured = np.array([shapes[s][tile] for s in timed])
        # The further a tile is from the best one, the less its time matters.
        weight = np.array([min(shapes[s].values()) for s in timed]) / measured
        a = np.array([terms(tile, s) for s in timed]) / measured[:, None]
        cost[tile] = non_negative(a * weight[:, None], weight)
        fixed, per_k, per_tile = cost[tile]
        print(f"tile {tile} {size[tile]}: {fixed:.2f}, {per_k:.5f}, {per_tile:.2f}")
    lost = []
    for shape, us in shapes.items():
        choice = min(us, key=lambda t: float(cost[t] @ terms(t, shape)))
        lost.append(us[choice] / min(us.values()) - 1)
        if lost[-1] > 0.02:
            best = min(us, key=lambda t: us[t])
            print(f"{shape}: tile {choice} {us[choice]:.1f} us, best tile {best} {us[best]:.1f}")
    print(f"lost by the choice: {100 * np.mean(lost):.1f} % on average, {100 * max(lost):.1f} most")


def main() -> None:
    today = datetime.date.today().isoformat()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cutlass", type=Path, help="directory of CUTLASS's headers")
    parser.add_argument("--seconds", type=float, default=60.0, help="time of all measurements")
    default = HERE.parent / "results" / f"gemm_h200_{today}.csv"
    parser.add_argument("--out", type=Path, default=default, metavar="FILE")
    parser.add_argument("--fit", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.fit is not None:
        fit(args.fit)
    elif args.cutlass is not None:
        sweep(args.cutlass, args.seconds, args.out)
    else:
        sys.exit("one of --cutlass and --fit is needed")


if __name__ == "__main__":
    main()
