"""Speech to text on one GPU: Whisper large-v3's and turbo's shapes, in 16 bit and float8.

    python benchmarks/speech/gpu_whisper.py [--only turbo] [--batch N] [--samples] [--out FILE.json]
    python benchmarks/speech/gpu_whisper.py --device cpu --tiny

Weights are random. METHOD below says what is measured. Each line is printed as soon as it is known,
and the file is written after each row.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import torch
import transformers
from packhorse.audio import FrameMaker, log_mel

sys.path.append(str(Path(__file__).resolve().parents[1] / "lib"))
from random_models import device_name, forget, make_model, room, synchronise
from turns import asked, elapsed, guarded, medians, ratio, say, take_turns, write_json

METHOD = """\
Samples of 24 seconds of noise, each its own, padded with silence to Whisper's window of 30: \
frames in host memory -> 66 new tokens in host memory, greedily, behind a prompt of four tokens, \
all samples handed over at once. Samples a second are medians over rounds. Frames are made \
before; runs "from samples" begin with the samples in host memory, and the device makes frames of \
16 of them at a time while it reads those before; "with frames" is the rate that frames made on \
the processor's cores, one sample after the other in the time of the run, would leave. \
transformers, where --peer asks for it, generates in \
padded batches with scaled_dot_product_attention. A step of one file is the difference of two \
lengths of output over the number of steps between them; its bytes are those of the decoder's \
weights and head and of the keys and values of the window and of the output, over the rate of \
reading. In float8 the encoder's dense layers and the cache of keys and values are e4m3."""

NEW = 66  # tokens
SECONDS, WINDOW = 24, 30  # a sample lasts, and the window that the encoder reads
RATE = 16000
TOGETHER = 16  # samples whose frames are made at a time
READ_RATE = 4.1e12  # bytes a second, of an H200
STEP_MARK = 1.5  # times the floor
STEPS = 16, 144  # new tokens
PROMPT = (50258, 50259, 50360, 50364)  # start, language, task, no times


@dataclass(frozen=True)
class Shape:
    """A model to measure. marks: samples a second by dtype."""

    name: str
    decoder_layers: int
    marks: dict[str, float]


SHAPES = [
    Shape("turbo", 4, {"bfloat16": 180}),
    Shape("large-v3", 32, {"bfloat16": 100, "float8": 150}),
]


def config_of(shape: Shape, tiny: bool) -> Any:
    sizes: dict[str, Any] = {
        "vocab_size": 51866, "num_mel_bins": 128, "d_model": 1280, "encoder_layers": 32,
        "decoder_layers": shape.decoder_layers, "encoder_attention_heads": 20,
        "decoder_attention_heads": 20, "encoder_ffn_dim": 5120, "decoder_ffn_dim": 5120,
    }  # fmt: skip
    if tiny:
        sizes |= {
            "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
        }  # fmt: skip
    return transformers.WhisperConfig(
        **sizes, suppress_tokens=None, begin_suppress_tokens=None, max_target_positions=448
    )


def frames_of(count: int, mels: int) -> tuple[list[Any], float]:
    """(float32 [frames, mels] of each sample, seconds of the processor for one)"""
    random = np.random.default_rng(0)
    noise = random.normal(0, 0.1, RATE * SECONDS).astype(np.float32)
    window = np.zeros(RATE * WINDOW, np.float32)
    window[: noise.size] = noise
    log_mel(window, mels, end="silence")
    begin = time.perf_counter()
    first = log_mel(window, mels, end="silence")
    seconds = time.perf_counter() - begin
    # Samples differ from each other, so that none finds the encoder's rows of another.
    rows = RATE * SECONDS // (RATE // 100)
    found = []
    for _ in range(count):
        one = first.copy()
        one[:rows] += random.normal(0, 0.05, mels).astype(np.float32)
        found.append(one)
    return found, seconds


def samples_of(count: int) -> list[Any]:
    """float32 [samples] of each sample: noise, each its own, and silence behind it."""
    random = np.random.default_rng(1)
    found = []
    for _ in range(count):
        window = np.zeros(RATE * WINDOW, np.float32)
        window[: RATE * SECONDS] = random.normal(0, 0.1, RATE * SECONDS)
        found.append(window)
    return found


def load(folder: Path, dtype: str, shape: Shape, options: argparse.Namespace) -> Any:
    """A session that runs all samples at once; of half as many where memory does not suffice."""
    rows = WINDOW * 50 + len(PROMPT) + max(NEW, *STEPS) + 128
    while True:
        try:
            return packhorse.Session.load(
                folder,
                options.device,
                dtype,
                kv_tokens=options.batch * rows,
                max_sequences=options.batch,
                max_tokens=options.max_tokens,
                kv_cache_dtype="float8" if dtype == "float8" else None,
                prefix_cache=False,
            )  # type: ignore[call-overload]
        except MemoryError as error:
            if options.batch < 16:
                raise
            options.batch //= 2
            say(f"{shape.name}, {dtype}: {error}; with {options.batch} samples at once")


def generate(session: Any, frames: Iterable[Any], new: int) -> list[Any]:
    sampling = packhorse.Sampling(max_new_tokens=new, ignore_eos=True)
    requests = [session.submit_features(PROMPT, one, sampling, timeout_s=600.0) for one in frames]
    found = [request.result() for request in requests]
    for one in found:
        if len(one.ids) != new:
            raise RuntimeError(f"{len(one.ids)} new tokens, expected {new}")
    return found


def made_frames(maker: FrameMaker, samples: list[Any]) -> Iterator[Any]:
    """Frames of the samples, some at a time, so that the model reads the first meanwhile."""
    for first in range(0, len(samples), TOGETHER):
        yield from maker.log_mel(samples[first : first + TOGETHER], end="silence")


def generate_from_samples(session: Any, maker: FrameMaker, samples: list[Any]) -> list[Any]:
    return generate(session, made_frames(maker, samples), NEW)


def step_bytes(config: Any) -> float:
    hidden, layers = int(config.d_model), int(config.decoder_layers)
    # Attention to the window has its keys and values ready: two of its four matrices remain.
    layer = 6 * hidden * hidden + 2 * hidden * config.decoder_ffn_dim
    weights = layers * layer + config.vocab_size * hidden
    rows = WINDOW * 50 + len(PROMPT) + sum(STEPS) / 2
    return 2.0 * float(weights + 2 * layers * hidden * rows)


def measure_step(session: Any, config: Any, one: Any, options: argparse.Namespace) -> Any:
    seconds: dict[int, list[float]] = {new: [] for new in STEPS}
    for new in STEPS:
        generate(session, [one], new)
    for _ in range(options.rounds + 2):
        for new in STEPS:
            begin = time.perf_counter()
            generate(session, [one], new)
            seconds[new].append(time.perf_counter() - begin)
    pairs = zip(seconds[STEPS[0]], seconds[STEPS[1]], strict=True)
    us = 1e6 * statistics.median(b - a for a, b in pairs) / (STEPS[1] - STEPS[0])
    floor = 1e6 * step_bytes(config) / options.read_rate
    first = 1e3 * statistics.median(seconds[STEPS[0]])
    say(
        f"step of one file: {us:.0f} us; its bytes in 16 bits take {floor:.0f} us "
        f"({us / floor:.2f} times that, mark {STEP_MARK}); {STEPS[0]} tokens with the encoder take "
        f"{first:.1f} ms"
    )
    return {"us": us, "bytes_us": floor, "first_ms": first, "seconds": seconds}


def peer_run(model: Any, frames: list[Any], device: str, batch: int) -> Callable[[], int]:
    inputs = torch.from_numpy(np.stack(frames)).transpose(1, 2).contiguous()

    def run() -> int:
        found = 0
        for first in range(0, len(inputs), batch):
            part = inputs[first : first + batch].to(device).to(model.dtype)
            start = torch.tensor([PROMPT] * len(part), device=device)
            with torch.inference_mode():
                # The decoder's own loop: that of transformers' Whisper seeks and retries besides.
                made = transformers.GenerationMixin.generate(
                    model,
                    part,
                    decoder_input_ids=start,
                    max_new_tokens=NEW,
                    min_new_tokens=NEW,
                    do_sample=False,
                )
            found += made.cpu().shape[0]
        return found

    return run


def measure(
    shape: Shape, parent: Path, options: argparse.Namespace, tell: Callable[[Any], None]
) -> None:
    config = config_of(shape, options.tiny)
    begin = time.perf_counter()
    model = make_model(
        transformers.WhisperForConditionalGeneration, config, options.device, torch.bfloat16
    )
    folder = parent / shape.name
    model.save_pretrained(folder)
    parameters = sum(one.numel() for one in model.parameters()) / 1e6
    frames, seconds = frames_of(options.batch, config.num_mel_bins)
    say(
        f"{shape.name}: {parameters:.0f} M parameters, made and saved in "
        f"{time.perf_counter() - begin:.1f} s; frames of a sample take {1e3 * seconds:.1f} ms"
    )
    if not options.peer:
        del model
        forget(options.device)
    for dtype in options.dtypes:
        if elapsed() > options.limit:
            say(f"{shape.name}, {dtype} left out: {options.limit:g} seconds are over")
            continue
        begin = time.perf_counter()
        session = guarded(f"{shape.name}, {dtype}", partial(load, folder, dtype, shape, options))
        if session is None:
            continue
        say(f"{shape.name}, {dtype}: loaded in {time.perf_counter() - begin:.1f} s")
        given = frames[: options.batch]
        calls: dict[str, Callable[[], Any]] = {"Packhorse": partial(generate, session, given, NEW)}
        maker = FrameMaker(options.device, config.num_mel_bins)
        if options.samples:
            samples = samples_of(len(given))
            begin = time.perf_counter()
            maker.log_mel(samples, end="silence")
            rate = len(samples) / (time.perf_counter() - begin)
            say(f"{shape.name}: frames alone, made by {options.device}: {rate:.0f} samples/s")
            calls["from samples"] = partial(generate_from_samples, session, maker, samples)
        if options.peer and dtype == "bfloat16":
            calls["transformers"] = peer_run(model, given, options.device, min(64, len(given)))
        times = take_turns(calls, 0, options.rounds)
        synchronise(options.device)
        rates = {name: len(given) / median for name, median in medians(times).items()}
        mark = shape.marks.get(dtype)
        label = f"{shape.name}, {dtype}, {len(given)} samples at once"
        for name, rate in rates.items():
            reached = ""
            if name != "transformers" and mark is not None:
                reached = f"; mark {mark:g}: {'reached' if rate >= mark else 'missed'}"
            if name == "Packhorse":
                with_frames = 1 / (1 / rate + seconds)
                reached += f"; with frames {with_frames:.1f}"
            say(f"{label}, {name}: {rate:.1f} samples/s{reached}")
        row: dict[str, Any] = {
            "shape": shape.name,
            "dtype": dtype,
            "samples": len(given),
            "samples_per_second": rates,
            "mark": mark,
            "beside_transformers": ratio(times, "transformers", "Packhorse"),
            "frames_ms": 1e3 * seconds,
            "seconds": times,
        }
        tell(row)
        row["step"] = guarded(
            f"{label}, step",
            partial(measure_step, session, config, given[0], options),
        )
        tell(None)
        session.close()
        maker.close()
        del session, calls
        forget(options.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="shapes whose names contain this: turbo")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float8"])
    parser.add_argument("--batch", type=int, default=256, help="samples at once")
    parser.add_argument("--max-tokens", type=int, default=16 * WINDOW * 50, help="of a step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=150, help="seconds; no row begins later")
    parser.add_argument(
        "--samples", action="store_true", help="also from samples, whose frames the device makes"
    )
    parser.add_argument("--peer", action="store_true", help="transformers, too")
    parser.add_argument("--read-rate", type=float, default=READ_RATE, help="bytes a second")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="small models, to try it out")
    parser.add_argument("--out", type=Path, help="the result file")
    options = parser.parse_args()
    if options.tiny:
        options.batch = min(options.batch, 4)
    transformers.utils.logging.set_verbosity_error()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    name = device_name(options.device)
    say(f"{name}; packhorse {packhorse.__version__}, {versions}")
    rows: list[dict[str, Any]] = []

    def tell(row: dict[str, Any] | None) -> None:
        rows.extend([] if row is None else [row])
        write_json(
            options.out,
            {
                "device": name,
                "versions": {"packhorse": packhorse.__version__, "peers": versions},
                "command": asked(),
                "method": METHOD,
                "rows": rows,
            },
        )

    with room() as parent:
        for shape in SHAPES:
            if options.only in shape.name:
                guarded(shape.name, partial(measure, shape, Path(parent), options, tell))
                forget(options.device)
    print("\n| shape | dtype | samples/s | mark | step us | its bytes us |")
    print("|---|---|---:|---:|---:|---:|")
    for row in rows:
        rate = row["samples_per_second"].get("Packhorse")
        step = row.get("step") or {}
        cells = [
            row["shape"],
            row["dtype"],
            "-" if rate is None else f"{rate:.1f}",
            f"{row['mark'] or ''}",
            f"{step['us']:.0f}" if step else "-",
            f"{step['bytes_us']:.0f}" if step else "-",
        ]
        print(f"| {' | '.join(cells)} |")
    print(f"\n{name}. {METHOD}", flush=True)


if __name__ == "__main__":
    main()
