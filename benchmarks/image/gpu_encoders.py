"""Images per second of encoders of images on one GPU, beside transformers with torch.compile.

    python benchmarks/image/gpu_encoders.py [--only TEXT] [--seconds S] [--out FILE.json]
    python benchmarks/image/gpu_encoders.py --device cpu --tiny

Weights are random, of the sizes of real models; both engines get the same ones in bfloat16, and the
same pixels, and give one embedding for each image to the host. METHOD below says what is measured.
Each line is printed as soon as it is known, and the file is written after each case.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import torch
import transformers
from packhorse import PackedPatches, Session

sys.path.append(str(Path(__file__).resolve().parents[1] / "lib"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "gpu"))
from random_models import device_name, forget, make_model, room, synchronise
from turns import (
    Times,
    against_mark,
    asked,
    elapsed,
    guarded,
    medians,
    ratio,
    say,
    take_turns,
    write_json,
)

METHOD = """\
Wall time from pixels to embeddings in host memory, medians over rounds in which all engines take \
turns. "host" pixels are float32 in ordinary memory, "pinned" in page-locked memory: both engines \
are charged with their copy to the device. "device" pixels are float32 that lies on the device, \
"device16" bfloat16. PyTorch copies bfloat16 from page-locked memory besides ("pinned16"). \
"kernels" is the time in which a kernel runs, by CUPTI, copies not counted: of both, \
the encoder alone. PyTorch is transformers' model with scaled_dot_product_attention, compiled as \
a whole by torch.compile with static shapes in its default mode (max-autotune takes minutes for \
each model), or layer by layer where that would take over 20 seconds; its batch size is the \
fastest of those tried without compiling, ours the fastest of the same. Images of mixed sizes \
have 32 to 256 patches in grids of six aspect ratios; PyTorch pads them to 256 patches with a \
mask, with positions resized before and kept on the device, as Packhorse keeps them; \
transformers' own forward, which resizes them image by image, stands beside it."""

PLACES = ("host", "pinned", "device", "device16")  # where pixels lie
BATCHES = (32, 128, 256)
SLOW_COMPILE = 20.0  # seconds
MARKS = {"equal": 1.15, "mixed": 1.8, "float8": 1.4}
PATCHES = 256  # the most of an image of NaFlex
ASPECTS = (1.0, 4 / 3, 3 / 4, 16 / 9, 9 / 16, 2.0)  # columns over rows

TINY: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128
}  # fmt: skip
BASE: dict[str, Any] = {}
LARGE: dict[str, Any] = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 4096,
}  # fmt: skip
SO400M: dict[str, Any] = {
    "hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16,
    "intermediate_size": 4304,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model to measure. kind, config: classes of transformers. patch, side: in pixels; a side of
    0 has patches of any grid."""

    name: str
    kind: str
    config: str
    sizes: dict[str, Any]
    patch: int
    side: int
    options: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("ViT-B/16", "ViTModel", "ViTConfig", BASE, 16, 224, {"add_pooling_layer": False}),
    Case("SigLIP 2 so400m NaFlex", "Siglip2VisionModel", "Siglip2VisionConfig", SO400M, 16, 0),
    Case("ViT-L/16", "ViTModel", "ViTConfig", LARGE, 16, 224, {"add_pooling_layer": False}),
    Case("CLIP L/14", "CLIPVisionModelWithProjection", "CLIPVisionConfig", LARGE, 14, 224),
]

Call = Callable[[], Any]


def make(case: Case, device: str, tiny: bool) -> Any:
    sizes = {**(TINY if tiny else case.sizes), "patch_size": case.patch}
    sizes |= {"image_size": case.side} if case.side else {"num_patches": PATCHES}
    if case.kind.startswith("CLIP"):
        sizes["projection_dim"] = 768
    config = getattr(transformers, case.config)(**sizes)
    config.architectures = [case.kind]
    kind = partial(getattr(transformers, case.kind), **case.options)
    return make_model(kind, config, device, torch.bfloat16)  # type: ignore[arg-type]


def grids_of(case: Case, count: int, mixed: bool) -> list[tuple[int, int]]:
    if case.side:
        return [(case.side // case.patch,) * 2] * count
    if not mixed:
        return [(16, 16)] * count
    random = np.random.default_rng(0)
    found: list[tuple[int, int]] = []
    while len(found) < count:
        patches, aspect = random.integers(32, PATCHES + 1), random.choice(ASPECTS)
        rows = max(1, round((patches / aspect) ** 0.5))
        columns = max(1, round((patches * aspect) ** 0.5))
        if rows * columns <= PATCHES:
            found.append((rows, columns))
    return found


@dataclass
class Pixels:
    """Images of both engines, on the device. patches [P, k]: of all images, by channel,
    row and column, float32. pixels: PyTorch's input, float32: [B, 3, side, side], or [B, PATCHES,
    k] by row, column and channel, zeros behind an image's last patch."""

    grids: list[tuple[int, int]]
    patches: Any
    pixels: Any

    @property
    def count(self) -> int:
        return len(self.grids)

    @property
    def lengths(self) -> list[int]:
        return [rows * columns for rows, columns in self.grids]

    def first(self, count: int) -> Pixels:
        rows = sum(self.lengths[:count])
        return Pixels(self.grids[:count], self.patches[:rows], self.pixels[:count])


def make_pixels(case: Case, count: int, mixed: bool, device: str) -> Pixels:
    torch.manual_seed(1)
    grids = grids_of(case, count, mixed)
    if case.side:
        pixels = torch.randn(count, 3, case.side, case.side, device=device)
        rows = case.side // case.patch
        cells = pixels.reshape(count, 3, rows, case.patch, rows, case.patch)
        patches = cells.permute(0, 2, 4, 1, 3, 5).reshape(count * rows * rows, -1)
        return Pixels(grids, patches.contiguous(), pixels)
    lengths = [rows * columns for rows, columns in grids]
    patches = torch.randn(sum(lengths), 3, case.patch, case.patch, device=device)
    flat = patches.permute(0, 2, 3, 1).flatten(1)
    padded = torch.nn.utils.rnn.pad_sequence(list(flat.split(lengths)), batch_first=True)
    pixels = torch.zeros(count, PATCHES, flat.shape[1], device=device)
    pixels[:, : padded.shape[1]] = padded
    return Pixels(grids, patches.flatten(1).contiguous(), pixels)


def on_host(tensor: Any, pinned: bool) -> Any:
    """A copy in host memory, page-locked or not."""
    found = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
    return found.copy_(tensor)


class Torch:
    """transformers' model, as it is and compiled."""

    per_layer = 0.5  # seconds of compiling, of the last model; before the first one a guess

    def __init__(self, case: Case, model: Any, device: str, compiles: bool) -> None:
        self.case, self.model, self.device, self.compiles = case, model, device, compiles
        self.layers: int = model.config.num_hidden_layers
        self.compiled = ""

    def arguments(self, images: Pixels) -> tuple[Any, ...]:
        """Arguments of the forward beside pixels."""
        if self.case.side:
            return ()
        embeddings = getattr(self.model, "vision_model", self.model).embeddings
        table = embeddings.position_embedding.weight.detach()
        side = round(len(table) ** 0.5)
        square = table.float().reshape(1, side, side, -1).permute(0, 3, 1, 2)
        known: dict[tuple[int, int], Any] = {}
        positions = torch.zeros(
            len(images.grids), PATCHES, table.shape[1], dtype=table.dtype, device=self.device
        )
        for row, grid in zip(positions, images.grids, strict=True):
            if grid not in known:
                resized = torch.nn.functional.interpolate(
                    square, size=grid, mode="bilinear", align_corners=False, antialias=True
                )
                known[grid] = resized[0].flatten(1).t().to(table.dtype)
            row[: len(known[grid])] = known[grid]
        lengths = torch.tensor(images.lengths)
        if lengths.min() == PATCHES:
            return positions, None
        mask = torch.arange(PATCHES) < lengths[:, None]
        return positions, mask.to(self.device)

    def forward(self, pixels: Any, positions: Any = None, mask: Any = None) -> Any:
        """The embeddings of a batch on the device."""
        model = self.model
        if positions is None:
            found = model(pixels)
            embeddings = getattr(found, "image_embeds", None)
            return found.last_hidden_state[:, 0] if embeddings is None else embeddings
        inner = getattr(model, "vision_model", model)
        x = inner.embeddings.patch_embedding(pixels) + positions
        wide = None if mask is None else mask[:, None, None, :].expand(-1, 1, PATCHES, -1)
        x = inner.encoder(inputs_embeds=x, attention_mask=wide).last_hidden_state
        return inner.head(inner.post_layernorm(x), mask)

    def own_forward(self, images: Pixels) -> Call:
        """transformers' forward of patches of any grid, not compiled."""
        pixels = images.pixels.to(torch.bfloat16)
        lengths = torch.tensor(images.lengths)
        mask = (torch.arange(PATCHES) < lengths[:, None]).to(self.device)
        shapes = torch.tensor(images.grids)

        def run() -> Any:
            with torch.inference_mode():
                found = self.model(pixels, pixel_attention_mask=mask, spatial_shapes=shapes)
            return found.pooler_output.float().cpu()

        return run

    def compile(self, pixels: Any, *more: Any) -> Callable[..., Any]:
        """The forward compiled for these shapes."""
        if not self.compiles:
            self.compiled = "not compiled"
            return self.forward
        begin = time.perf_counter()
        whole = self.layers * Torch.per_layer <= SLOW_COMPILE
        if whole:
            call: Callable[..., Any] = torch.compile(self.forward, dynamic=False)
        else:
            inner = getattr(self.model, "vision_model", self.model)
            lists = [one for one in inner.modules() if isinstance(one, torch.nn.ModuleList)]
            for layer in max(lists, key=len):
                layer.compile(dynamic=False)
            call = self.forward
        with torch.inference_mode():
            call(pixels, *more)
            call(pixels, *more)
        synchronise(self.device)
        seconds = time.perf_counter() - begin
        if whole:
            Torch.per_layer = seconds / self.layers
        self.compiled = f"compiled {'whole' if whole else 'layer by layer'} in {seconds:.0f} s"
        return call

    def calls(self, images: Pixels) -> tuple[dict[str, Call], Call]:
        """(calls by where their pixels are, the last of them without the copy of its result)"""
        more = self.arguments(images)
        pixels = images.pixels.to(torch.bfloat16)
        name = f"torch.compile of {self.case.name}"
        compiled = guarded(name, lambda: self.compile(pixels, *more))
        if compiled is None:
            self.compiled = "not compiled, since that failed"
            for one in self.model.modules():
                one._compiled_call_impl = None
        call = compiled or self.forward
        gpu = self.device.startswith("cuda")

        def run(source: Any) -> Any:
            with torch.inference_mode():
                there = source.to(self.device, non_blocking=True).to(torch.bfloat16)
                return call(there, *more).float().cpu()

        def kernels() -> Any:
            with torch.inference_mode():
                return call(pixels, *more)

        sources = {"device16": pixels, "host": on_host(images.pixels, False)}
        if gpu:
            sources["device"] = images.pixels
            sources["pinned"] = on_host(images.pixels, True)
            sources["pinned16"] = on_host(pixels, True)
        return {where: partial(run, source) for where, source in sources.items()}, kernels

    def best_batch(self, images: Pixels, batches: tuple[int, ...]) -> int:
        """The batch of the most images a second, not compiled, with pixels on the device."""
        calls = {}
        for count in batches:
            part = images.first(count)
            more, pixels = self.arguments(part), part.pixels.to(torch.bfloat16)

            def run(pixels: Any = pixels, more: Any = more) -> Any:
                with torch.inference_mode():
                    return self.forward(pixels, *more).float().cpu()

            calls[str(count)] = run
        return fastest(take_turns(calls, 0.3))


def fastest(times: Times) -> int:
    """The batch of the most images a second, of calls named after their batches."""
    return min((seconds / int(count), int(count)) for count, seconds in medians(times).items())[1]


def our_call(session: Any, images: Pixels, where: str) -> Call:
    if where in ("host", "pinned"):
        features = on_host(images.patches, where == "pinned").numpy()
        batch: Any = PackedPatches(features, images.grids)
        assert np.shares_memory(batch.features, features)
    else:
        there = images.patches.to(torch.bfloat16 if where == "device16" else torch.float32)
        batch = PackedPatches(there, images.grids)
    return lambda: session.run(batch, outputs="embedding", on_device=False).embedding


def our_best_batch(session: Any, images: Pixels, batches: tuple[int, ...], where: str) -> int:
    calls = {str(n): our_call(session, images.first(n), where) for n in batches}
    return fastest(take_turns(calls, 0.3))


def kernel_seconds(call: Call) -> float:
    """The time in which a kernel of `call` runs, of the fastest of three."""
    from kernel_timing import busy, named_spans

    call()
    found = []
    for _ in range(3):
        spans = [(start, end) for start, end, _ in named_spans(call)]
        if not spans:
            raise RuntimeError("the profiler saw no kernel")
        found.append(busy(spans) / 1e6)
    return min(found)


def _as_array(call: Call) -> Any:
    return np.asarray(call())


def cosine(ours: Any, theirs: Any) -> float:
    """The smallest cosine of a row of `ours` and the same row of `theirs`."""
    a, b = (np.asarray(x, np.float64) for x in (ours, theirs))
    return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


class Bench:
    """A model in all engines."""

    def __init__(self, case: Case, folder: Path, options: argparse.Namespace) -> None:
        self.case, self.options, self.device = case, options, options.device
        self.gpu = self.device.startswith("cuda")
        self.batches: tuple[int, ...] = (1, 2) if options.tiny else BATCHES
        begin = time.perf_counter()
        model = make(case, self.device, options.tiny)
        model.save_pretrained(folder)
        made = time.perf_counter()
        self.torch = Torch(case, model, self.device, not options.no_compile)
        rows = PATCHES if not case.side else (case.side // case.patch) ** 2 + 1
        sizes = {"max_tokens": rows * max(self.batches), "max_sequences": max(self.batches)}
        self.sessions: dict[str, Any] = {}
        for dtype in ("bfloat16", "float8") if self.gpu else ("bfloat16", "int8"):
            load = partial(Session.load, folder, self.device, dtype, **sizes)
            session = guarded(f"Packhorse {dtype}", load)
            if session is not None:
                self.sessions[dtype] = session
        loaded = time.perf_counter()
        parameters = sum(one.numel() for one in model.parameters()) / 1e6
        say(
            f"{case.name}: {parameters:.0f} M parameters, made and saved in {made - begin:.1f} s, "
            f"loaded in {loaded - made:.1f} s"
        )

    def measure(self, mixed: bool) -> dict[str, Any]:
        images = make_pixels(self.case, max(self.batches), mixed, self.device)
        kind = "mixed" if mixed else "equal"
        sizes: dict[str, int] = {}  # images of each call
        calls: dict[str, Call] = {}
        kernels: dict[str, Call] = {}
        for dtype, session in self.sessions.items():
            name = f"Packhorse {dtype}"
            best = "pinned" if self.gpu else "host"
            count = guarded(name, partial(our_best_batch, session, images, self.batches, best))
            if count is None:
                continue
            part = images.first(count)
            for where in PLACES if self.gpu else ("host",):
                calls[f"{name}, {where}"] = our_call(session, part, where)
                sizes[f"{name}, {where}"] = sizes[name] = count
            kernels[name] = calls[f"{name}, {best}"]
        count = guarded("torch", lambda: self.torch.best_batch(images, self.batches))
        if count is not None:
            part = images.first(count)
            found, kernels["torch"] = self.torch.calls(part)
            calls |= {f"torch, {where}": call for where, call in found.items()}
            if mixed:
                calls["torch, transformers' own forward"] = self.torch.own_forward(part)
            sizes |= {name: count for name in calls if name.startswith("torch")}
            sizes["torch"] = count
        self.check(calls, sizes)
        times = take_turns(calls, self.options.seconds)
        per_image: Times = {
            name: [seconds / sizes[name] for seconds in samples] for name, samples in times.items()
        }
        label = f"{self.case.name}, {kind} sizes"
        rates = {name: 1 / seconds for name, seconds in medians(per_image).items()}
        for name, rate in rates.items():
            say(f"{label}, {name}, batch {sizes[name]}: {rate:,.0f} images/s")
        on_device = self.kernels(kernels, sizes, label) if self.gpu else {}
        ratios = self.ratios(per_image, on_device)
        for name, value in ratios.items():
            if value is not None:
                mark = MARKS["float8" if "our 16 bit" in name else kind]
                say(f"{label}, {name}: {against_mark(value, mark)}")
        full = sum(images.lengths) / (images.count * max(PATCHES, max(images.lengths)))
        return {
            "name": self.case.name,
            "sizes": kind,
            "patches": sum(images.lengths) / images.count,
            "full": full if mixed else 1.0,
            "batches": sizes,
            "torch": self.torch.compiled,
            "images_per_second": rates,
            "kernel_images_per_second": on_device,
            "ratios": ratios,
            "seconds_per_image": per_image,
        }

    def check(self, calls: dict[str, Call], sizes: dict[str, int]) -> None:
        """Says how close embeddings are."""
        names = [name for name in calls if name.endswith((", host", "own forward"))]
        found = {name: guarded(name, partial(_as_array, calls[name])) for name in names}
        expected = found.get("torch, host")
        if expected is None:
            return
        for name, embeddings in found.items():
            if embeddings is not None and name != "torch, host":
                count = min(sizes[name], sizes["torch, host"])
                least = cosine(embeddings[:count], expected[:count])
                say(f"{self.case.name}, {name}: least cosine with torch {least:.4f}")
        say(f"{self.case.name}: torch is {self.torch.compiled}")

    def kernels(
        self, calls: dict[str, Call], sizes: dict[str, int], label: str
    ) -> dict[str, float]:
        """Images per second of the time in which kernels run."""
        rates = {}
        for name, call in calls.items():
            seconds = guarded(f"kernels of {name}", partial(kernel_seconds, call))
            if seconds is not None:
                rates[name] = sizes[name] / seconds
                say(f"{label}, {name}, kernels alone: {rates[name]:,.0f} images/s")
        return rates

    def ratios(self, times: Times, kernels: dict[str, float]) -> dict[str, float | None]:
        ours = "Packhorse bfloat16"
        small = "Packhorse float8" if self.gpu else "Packhorse int8"
        found: dict[str, float | None] = {}
        for where in PLACES:
            found[f"beside torch, both {where}"] = ratio(
                times, f"torch, {where}", f"{ours}, {where}"
            )
        found["pinned float32 beside torch's pinned bfloat16"] = ratio(
            times, "torch, pinned16", f"{ours}, pinned"
        )
        found["pinned beside torch's device16"] = ratio(times, "torch, device16", f"{ours}, pinned")
        for where in ("host", "pinned"):
            found[f"{small.split()[1]} beside our 16 bit, {where}"] = ratio(
                times, f"{ours}, {where}", f"{small}, {where}"
            )
        if ours in kernels and "torch" in kernels:
            found["beside torch, kernels alone"] = kernels[ours] / kernels["torch"]
        if ours in kernels and small in kernels:
            found["float8 beside our 16 bit, kernels alone"] = kernels[small] / kernels[ours]
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="models whose names contain this: ViT-L")
    parser.add_argument("--seconds", type=float, default=3, help="of the rounds of each row")
    parser.add_argument("--limit", type=float, default=160, help="seconds; no row begins later")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="models of two layers, to try it out")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--out", type=Path, help="the result file")
    options = parser.parse_args()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    say(f"{device_name(options.device)}; packhorse {packhorse.__version__}, {versions}")
    rows: list[dict[str, Any]] = []
    with room() as parent:
        for number, case in enumerate(CASES):
            if options.only not in case.name:
                continue
            for mixed in (True, False) if not case.side else (False,):
                if elapsed() > options.limit:
                    say(f"{case.name} left out: {options.limit:g} seconds are over")
                    continue
                folder = Path(parent) / str(number)
                made = guarded(case.name, partial(row_of, case, folder, options, mixed))
                rows += [made] if made is not None else []
                write_json(
                    options.out,
                    {
                        "device": device_name(options.device),
                        "versions": {"packhorse": packhorse.__version__, "peers": versions},
                        "command": asked(),
                        "method": METHOD,
                        "marks": MARKS,
                        "rows": rows,
                    },
                )
                forget(options.device)
    table(rows)
    print(f"\n{device_name(options.device)}. {METHOD}", flush=True)


_benches: dict[str, Bench] = {}


def row_of(case: Case, folder: Path, options: argparse.Namespace, mixed: bool) -> dict[str, Any]:
    """Measures a row. The model of the last row stays, for another row of the same."""
    if case.name not in _benches:
        for bench in _benches.values():
            for session in bench.sessions.values():
                session.close()
        _benches.clear()
        forget(options.device)
        _benches[case.name] = Bench(case, folder, options)
    return _benches[case.name].measure(mixed)


def table(rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row["ratios"]))
    print("\n| | " + " | ".join(names) + " |\n|---|" + "---:|" * len(names))
    for row in rows:
        cells = [row["ratios"].get(name) for name in names]
        text = " | ".join("-" if one is None else f"{one:.2f}" for one in cells)
        print(f"| {row['name']}, {row['sizes']} sizes | {text} |")


if __name__ == "__main__":
    main()
