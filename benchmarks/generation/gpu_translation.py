"""Translation models on one GPU beside transformers and, where it is installed, CTranslate2.

    python benchmarks/generation/gpu_translation.py [--shapes opus-mt ...] [--out FILE.json]
    python benchmarks/generation/gpu_translation.py --device cpu --tiny

Weights are random, of the shapes of OPUS-MT and NLLB-600M. METHOD below says what is measured. Each
line is printed as soon as it is known, and the file is written after each shape.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import torch
import transformers

sys.path.append(str(Path(__file__).resolve().parents[1] / "lib"))
from random_models import device_name, forget, make_model, room, synchronise
from translation_shapes import SHAPES, enlarge
from turns import (
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
One batch of 64 sources of 4 to 120 random tokens, from token ids in host memory to ids in host \
memory, greedily and with 4 beams; every translation has exactly as many new tokens as --new \
says. Figures are new tokens of results a second, medians over rounds in which all engines take \
turns. All compute in bfloat16. transformers' `generate` has scaled_dot_product_attention, \
sources sorted by length and padded, and of its batch sizes the best; a static cache with \
compiled steps stands beside it, greedily, where --static asks for it. CTranslate2 sorts, and \
cuts the batch by tokens. A step is the difference of two lengths of output over the number of \
steps between them, as the caller of the session sees it; its bytes are those of the decoder's \
weights, of the keys and values of sources of 62 tokens and of the outputs, over the rate of \
reading."""

BEAMS = (1, 4)
READ_RATE = 4.1e12  # bytes a second, of an H200
STEP_MARK = 1.6, 120.0  # times the floor, or microseconds
MARKS = {"CTranslate2": 2.0, "transformers": 8.0}
STEPS = 16, 144  # new tokens of the two outputs
SOURCE = 62  # tokens
TINY = {
    "vocab_size": 600, "decoder_vocab_size": 600, "d_model": 64, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
}  # fmt: skip

Run = Callable[[int, int], int]  # (beams, new tokens) -> new tokens of the results


def config_of(shape: str, tiny: bool) -> Any:
    config = copy.deepcopy(SHAPES[shape][1])
    if tiny:
        for name, value in TINY.items():
            if hasattr(config, name):
                setattr(config, name, value)
        if config.pad_token_id > 1:
            config.pad_token_id = config.decoder_start_token_id = 599
    return config


def sources(config: Any, count: int = 64) -> list[list[int]]:
    random = np.random.default_rng(1)
    high = min(60000, config.vocab_size - 10)
    return [random.integers(100, high, n).tolist() for n in random.integers(4, 121, count)]


def packhorse_session(folder: Path, options: argparse.Namespace) -> Any:
    sizes = {"kv_tokens": 131072, "max_sequences": 64 * max(BEAMS), "max_tokens": 8192}
    if options.tiny:
        sizes = {"kv_tokens": 32768, "max_sequences": 64, "max_tokens": 4096}
    return packhorse.Session.load(folder, options.device, "bfloat16", prefix_cache=False, **sizes)  # type: ignore[call-overload]


def packhorse_run(session: Any, config: Any, batch: list[list[int]]) -> Run:
    prompts = [[config.decoder_start_token_id]] * len(batch)

    def run(beams: int, new: int) -> int:
        sampling = packhorse.Sampling(max_new_tokens=new, num_beams=beams, ignore_eos=True)
        results = session.generate(prompts, sampling, sources=batch)
        return sum(len(result.ids) for result in results)

    return run


class Transformers:
    """`generate` of a model, and the best of its batch sizes for each number of beams."""

    def __init__(self, model: Any, batch: list[list[int]], device: str) -> None:
        self.model, self.device = model, device
        self.sources = sorted(batch, key=len, reverse=True)
        self.best: dict[int, int] = {}

    def run_in(self, size: int, beams: int, new: int, **more: Any) -> int:
        found = 0
        for first in range(0, len(self.sources), size):
            rows = [torch.tensor(one) for one in self.sources[first : first + size]]
            pad = self.model.config.pad_token_id
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
            lengths = torch.tensor([len(one) for one in rows])
            mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
            with torch.inference_mode():
                made = self.model.generate(
                    ids.to(self.device),
                    attention_mask=mask.to(self.device),
                    max_new_tokens=new,
                    min_new_tokens=new,
                    num_beams=beams,
                    do_sample=False,
                    **more,
                )
            found += (made.shape[1] - 1) * made.cpu().shape[0]
        return found

    def run(self, beams: int, new: int) -> int:
        if beams not in self.best:
            seconds = {}
            for size in (len(self.sources), len(self.sources) // 2):
                self.run_in(size, beams, min(new, 8))
                begin = time.perf_counter()
                self.run_in(size, beams, new)
                seconds[size] = time.perf_counter() - begin
            self.best[beams] = min(seconds, key=lambda size: seconds[size])
            say(f"transformers, {beams} beams: batches of {self.best[beams]}")
        return self.run_in(self.best[beams], beams, new)

    def with_static_cache(self, new: int) -> int:
        return self.run_in(len(self.sources), 1, new, cache_implementation="static")


def ctranslate2_run(model: Any, folder: Path, batch: list[list[int]], device: str) -> Run:
    """Raises ImportError where CTranslate2 is not installed."""
    import ctranslate2
    from cpu_translation_models import Converter

    kind = device.split(":", maxsplit=1)[0]
    if kind == "cuda" and not ctranslate2.get_cuda_device_count():
        raise RuntimeError("CTranslate2 sees no GPU")
    Converter(copy.deepcopy(model).float().cpu()).convert(
        str(folder), quantization="bfloat16", force=True
    )
    compute = "bfloat16" if kind == "cuda" else "float32"
    translator = ctranslate2.Translator(str(folder), device=kind, compute_type=compute)
    words = [[str(i) for i in source] for source in batch]
    best: dict[int, int] = {}

    def translate(tokens: int, beams: int, new: int) -> int:
        results = translator.translate_batch(
            words,
            beam_size=beams,
            max_batch_size=tokens,
            batch_type="tokens",
            min_decoding_length=new,
            max_decoding_length=new,
        )
        return sum(len(result.hypotheses[0]) for result in results)

    def run(beams: int, new: int) -> int:
        if beams not in best:
            seconds = {}
            for tokens in (2048, 8192, 32768):
                translate(tokens, beams, 4)
                begin = time.perf_counter()
                translate(tokens, beams, new)
                seconds[tokens] = time.perf_counter() - begin
            best[beams] = min(seconds, key=lambda tokens: seconds[tokens])
            say(f"CTranslate2, {beams} beams: batches of {best[beams]} tokens")
        return translate(best[beams], beams, new)

    return run


def step_bytes(config: Any, batch: int) -> float:
    """Bytes that a step of the decoder reads: weights and head in 16 bits, and keys and values of
    sources and of outputs halfway between STEPS."""
    hidden, layers = int(config.d_model), int(config.decoder_layers)
    # Attention to sources has its keys and values ready: two of its four matrices remain.
    layer = 6 * hidden * hidden + 2 * hidden * config.decoder_ffn_dim
    weights = layers * layer + config.vocab_size * hidden
    rows = SOURCE + sum(STEPS) / 2
    return 2.0 * float(weights + batch * 2 * layers * hidden * rows)


def step(session: Any, config: Any, batch: int, rate: float, rounds: int) -> dict[str, Any]:
    random = np.random.default_rng(2)
    high = min(60000, config.vocab_size - 10)
    found = [random.integers(100, high, SOURCE).tolist() for _ in range(batch)]
    run = packhorse_run(session, config, found)
    seconds: dict[int, list[float]] = {new: [] for new in STEPS}
    for new in STEPS:
        run(1, new)
    for _ in range(rounds):
        for new in STEPS:
            begin = time.perf_counter()
            run(1, new)
            seconds[new].append(time.perf_counter() - begin)
    pairs = zip(seconds[STEPS[0]], seconds[STEPS[1]], strict=True)
    us = 1e6 * statistics.median(b - a for a, b in pairs) / (STEPS[1] - STEPS[0])
    floor = 1e6 * step_bytes(config, batch) / rate
    mark = max(STEP_MARK[0] * floor, STEP_MARK[1])
    say(
        f"step of {batch}: {us:.1f} us; its bytes take {floor:.1f} us ({us / floor:.2f} times "
        f"that); mark {mark:.0f} us: {'reached' if us <= mark else 'missed'}"
    )
    return {"batch": batch, "us": us, "bytes_us": floor, "mark_us": mark, "seconds": seconds}


def measure(shape: str, parent: Path, options: argparse.Namespace) -> dict[str, Any]:
    config = config_of(shape, options.tiny)
    device, new = options.device, options.new
    begin = time.perf_counter()
    model = make_model(SHAPES[shape][0], config, device, torch.float32)
    enlarge(model)
    model = model.to(torch.bfloat16)
    folder = parent / shape
    model.save_pretrained(folder)
    made = time.perf_counter()
    session = guarded("Packhorse", lambda: packhorse_session(folder, options))
    say(
        f"{shape}: {sum(one.numel() for one in model.parameters()) / 1e6:.0f} M parameters, made "
        f"and saved in {made - begin:.1f} s, loaded in {time.perf_counter() - made:.1f} s"
    )
    result: dict[str, Any] = {"shape": shape, "new": new, "rows": [], "steps": []}
    if session is not None and shape == "opus-mt":
        for count in (1, 64):
            found = guarded(
                f"step of {count}",
                partial(step, session, config, count, options.read_rate, options.rounds + 2),
            )
            result["steps"] += [] if found is None else [found]
    batch = sources(config)
    peer = Transformers(model, batch, device)
    runs: dict[str, Run] = {}
    if session is not None:
        runs["Packhorse"] = packhorse_run(session, config, batch)
    runs["transformers"] = peer.run
    beside = guarded(
        "CTranslate2", lambda: ctranslate2_run(model, parent / f"{shape}-ct2", batch, device)
    )
    if beside is not None:
        runs["CTranslate2"] = beside
    for beams in BEAMS:
        result["rows"].append(row(shape, runs, beams, options))
    if options.static and shape == "opus-mt":
        say("a static cache: transformers compiles its steps")
        static = guarded(
            "transformers, static cache", lambda: static_rate(peer, new, options.rounds, device)
        )
        result["static"] = static
    if session is not None:
        session.close()
    return result


def row(
    shape: str, runs: dict[str, Run], beams: int, options: argparse.Namespace
) -> dict[str, Any]:
    tokens: dict[str, int] = {}

    def counted(name: str, run: Run) -> None:
        tokens[name] = run(beams, options.new)
        synchronise(options.device)

    calls = {name: partial(counted, name, run) for name, run in runs.items()}
    times = take_turns(calls, 0, options.rounds)
    rates = {name: tokens[name] / seconds for name, seconds in medians(times).items()}
    label = f"{shape}, {'greedy' if beams == 1 else f'{beams} beams'}"
    for name, rate in rates.items():
        say(f"{label}, {name}: {rate:,.0f} tokens/s ({tokens[name]} tokens)")
    ratios = {}
    for name, mark in MARKS.items():
        factor = tokens.get("Packhorse", 0) / max(1, tokens.get(name, 1))
        found = ratio(times, name, "Packhorse", factor)
        if found is not None:
            ratios[name] = found
            say(f"{label}, beside {name}: {against_mark(found, mark)}")
    return {"beams": beams, "tokens_per_second": rates, "ratios": ratios, "seconds": times}


def static_rate(peer: Transformers, new: int, rounds: int, device: str) -> float:
    begin = time.perf_counter()
    peer.with_static_cache(new)
    peer.with_static_cache(new)
    say(f"compiled in {time.perf_counter() - begin:.0f} s")
    rates = []
    for _ in range(rounds):
        begin = time.perf_counter()
        tokens = peer.with_static_cache(new)
        synchronise(device)
        rates.append(tokens / (time.perf_counter() - begin))
    rate = statistics.median(rates)
    say(f"opus-mt, greedy, transformers with a static cache: {rate:,.0f} tokens/s")
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=110, help="seconds; no shape begins later")
    parser.add_argument("--static", action="store_true", help="transformers' static cache, too")
    parser.add_argument("--read-rate", type=float, default=READ_RATE, help="bytes a second")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="small models, to try it out")
    parser.add_argument("--out", type=Path, help="the result file")
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    say(f"{device_name(options.device)}; packhorse {packhorse.__version__}, {versions}")
    results: list[dict[str, Any]] = []
    with room() as parent:
        for shape in options.shapes:
            if elapsed() > options.limit:
                say(f"{shape} left out: {options.limit:g} seconds are over")
                continue
            found = guarded(shape, partial(measure, shape, Path(parent), options))
            results += [] if found is None else [found]
            write_json(
                options.out,
                {
                    "device": device_name(options.device),
                    "versions": {"packhorse": packhorse.__version__, "peers": versions},
                    "command": asked(),
                    "method": METHOD,
                    "shapes": results,
                },
            )
            forget(options.device)
    print("\n| tokens/s | engine | greedy | 4 beams |\n|---|---|---:|---:|")
    for one in results:
        names = dict.fromkeys(name for row in one["rows"] for name in row["tokens_per_second"])
        for name in names:
            cells = []
            for row in one["rows"]:
                rate, times = row["tokens_per_second"].get(name), row["ratios"].get(name)
                text = "-" if rate is None else f"{rate:,.0f}"
                cells.append(text + (f" ({times:.2f})" if times is not None else ""))
            print(f"| {one['shape']} | {name} | {' | '.join(cells)} |")
    print(f"\n{device_name(options.device)}. {METHOD}", flush=True)


if __name__ == "__main__":
    main()
