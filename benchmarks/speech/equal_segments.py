"""Transcribes files by Packhorse, faster-whisper and openai-whisper with the same options, and says
which have equal tokens and times, and why others differ.

    python benchmarks/speech/voices.py FOLDER
    pip install faster-whisper openai-whisper
    python benchmarks/speech/equal_segments.py run MODEL FOLDER RESULTS --engine packhorse
    python benchmarks/speech/equal_segments.py run MODEL FOLDER RESULTS --engine together
    python benchmarks/speech/equal_segments.py run MODEL FOLDER RESULTS --engine faster-whisper
    python benchmarks/speech/equal_segments.py run MODEL FOLDER RESULTS --engine openai
    python benchmarks/speech/equal_segments.py compare RESULTS

MODEL: a folder of CTranslate2, which all load. RESULTS has a file for each engine, set of options
and audio: a run that was interrupted goes on where it was. `together`: Packhorse, all files in one
call. `openai`: the package openai-whisper, which has `default` and `cold`. Options: `default`;
`cold`, temperature 0 alone, where nothing is left to chance; `voiced`, with vad_filter; `chunked`,
beside the batched mode of faster-whisper.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FIELDS = (
    *("start", "end", "text", "tokens", "avg_logprob", "no_speech_prob", "compression_ratio"),
    *("temperature", "seek"),
)
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "cold": {"temperature": 0.0},
    "voiced": {"vad_filter": True},
    "chunked": {"vad_filter": True, "without_timestamps": True},
}
# Options that the batched mode of faster-whisper has without being asked.
BATCHED = {"mode": "chunked", "temperature": 0.0, "no_speech_threshold": None}
ENGINES = ("packhorse", "together", "faster-whisper", "openai")
NEAR = 0.011  # seconds: half a step of tokens of time, and what rounding adds


def fields(segment: Any) -> dict[str, Any]:
    found = {name: getattr(segment, name) for name in FIELDS}
    return {**found, "tokens": list(found["tokens"])}


def by_faster_whisper(arguments: argparse.Namespace) -> Callable[[list[str]], Iterator[Any]]:
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    model: Any = WhisperModel(
        arguments.model, device="cpu", compute_type=arguments.dtype, cpu_threads=arguments.threads
    )
    if arguments.options == "chunked":
        model = BatchedInferencePipeline(model)

    def transcribe(files: list[str]) -> Iterator[Any]:
        for file in files:
            yield list(model.transcribe(file, beam_size=5, **OPTIONS[arguments.options])[0])

    return transcribe


def by_packhorse(arguments: argparse.Namespace) -> Callable[[list[str]], Iterator[Any]]:
    from packhorse.audio import AudioModel

    model = AudioModel.load(
        arguments.model, dtype=arguments.dtype, threads=arguments.threads, kv_tokens=131_072
    )
    options = {"beam_size": 5, **OPTIONS[arguments.options]}
    if arguments.options == "chunked":
        options |= BATCHED

    def transcribe(files: list[str]) -> Iterator[Any]:
        if arguments.engine == "together":
            for found in model.transcribe(files, **options):
                yield found.segments
        else:
            for file in files:
                yield model.transcribe(file, **options).segments

    return transcribe


def by_openai(arguments: argparse.Namespace) -> Callable[[list[str]], Iterator[Any]]:
    import soundfile
    import torch
    import whisper
    from openai_model import load_openai

    torch.set_num_threads(arguments.threads)
    model = load_openai(arguments.model)
    options = {"beam_size": 5, "best_of": 5, **OPTIONS[arguments.options]}
    options.setdefault("temperature", (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))

    def transcribe(files: list[str]) -> Iterator[Any]:
        for file in files:
            torch.manual_seed(0)
            samples = soundfile.read(file, dtype="float32")[0]
            found = whisper.transcribe(model, samples, language="en", fp16=False, **options)
            yield [SimpleNamespace(**segment) for segment in found["segments"]]

    return transcribe


def run(arguments: argparse.Namespace) -> None:
    folder = arguments.results / f"{arguments.engine}-{arguments.options}"
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(arguments.folder.glob("*.wav"))
    left = [file for file in files if not (folder / f"{file.stem}.json").exists()]
    if not left:
        return
    makers = {"faster-whisper": by_faster_whisper, "openai": by_openai}
    transcribe = makers.get(arguments.engine, by_packhorse)(arguments)
    begin = time.perf_counter()
    for file, segments in zip(left, transcribe([str(file) for file in left]), strict=True):
        target = folder / f"{file.stem}.json"
        target.write_text(json.dumps([fields(one) for one in segments]), encoding="utf-8")
        print(f"{target}: {time.perf_counter() - begin:.1f} s", flush=True)


def load(results: Path, engine: str, options: str) -> dict[str, list[dict[str, Any]]]:
    folder = results / f"{engine}-{options}"
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def same_times(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(abs(one[name] - other[name]) < NEAR for name in ("start", "end"))


def reason(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> str:
    """Names what is different in the first window that differs."""
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one["tokens"] == other["tokens"] and same_times(one, other):
            continue
        place = f"segment {number} at {one['start']:.2f} s"
        if one["temperature"] > 0 or other["temperature"] > 0:
            hot = f"temperatures {one['temperature']:g} and {other['temperature']:g}"
            return f"{place}: {hot}: samples are drawn by chance"
        if one["tokens"] == other["tokens"]:
            return f"{place}: times {one['start']}-{one['end']}, {other['start']}-{other['end']}"
        values = f"{one['avg_logprob']:.5f}, {other['avg_logprob']:.5f}"
        return f"{place}: other tokens, mean log-probabilities {values}"
    most = max((ours, theirs), key=len)
    if len(ours) == len(theirs):
        return ""
    extra = most[min(len(ours), len(theirs))]
    who = "ours" if most is ours else "theirs"
    return (
        f"{len(ours)} and {len(theirs)} segments; the first that only {who} has is at "
        f"{extra['start']:.2f} s, temperature {extra['temperature']:g}"
    )


def compare(arguments: argparse.Namespace) -> None:
    for options in OPTIONS:
        ours = load(arguments.results, "packhorse", options)
        together = load(arguments.results, "together", options)
        if ours and together:
            both = ours.keys() & together.keys()
            equal = sum(ours[name] == together[name] for name in both)
            print(f"{options}: {equal} of {len(both)} files have the same bits alone and together")
        for engine in ("faster-whisper", "openai"):
            theirs = load(arguments.results, engine, options)
            if ours.keys() & theirs.keys():
                beside(f"{options}, {engine}", ours, theirs)


def beside(label: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Says what files of both have in common."""
    both = sorted(ours.keys() & theirs.keys())
    equal_tokens = equal_all = segments = same = words = 0
    for name in both:
        one, other = ours[name], theirs[name]
        tokens = [part["tokens"] for part in one] == [part["tokens"] for part in other]
        why = reason(one, other)
        said = ["".join(part["text"] for part in found).split() for found in (one, other)]
        equal_tokens += tokens
        equal_all += not why
        words += said[0] == said[1]
        segments += len(other)
        pairs = zip(one, other, strict=False)
        same += sum(a["tokens"] == b["tokens"] and same_times(a, b) for a, b in pairs)
        if why:
            print(f"  {name}: {why}")
    print(
        f"{label}: of {len(both)} files {equal_all} have equal segments (tokens and times), "
        f"{equal_tokens} equal tokens, {words} equal words; {same} of {segments} segments equal"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("model")
    one.add_argument("folder", type=Path)
    one.add_argument("results", type=Path)
    one.add_argument("--engine", choices=ENGINES, required=True)
    one.add_argument("--options", choices=tuple(OPTIONS), default="default")
    one.add_argument("--dtype", default="float32")
    one.add_argument("--threads", type=int, default=2)
    one.set_defaults(call=run)
    other = commands.add_parser("compare")
    other.add_argument("results", type=Path)
    other.set_defaults(call=compare)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
