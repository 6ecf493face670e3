"""Transcribes files by Packhorse and by faster-whisper, in a process of its own each, and compares
times, texts and tokens.

    pip install faster-whisper
    python benchmarks/speech/beside_faster_whisper.py MODEL talk.wav lecture.flac ... --threads 2

MODEL: a folder of CTranslate2, which both load. Seconds are those of transcription without loading;
files go one after the other, and by Packhorse all at once besides. The batched mode of
faster-whisper and `mode="chunked"` cut a file where nobody speaks. CPU seconds are those of the
process, which other work on the machine hardly changes.

A model of random weights (random_whisper.py) is run with --fixed N, which makes N tokens for each
window at temperature 0, so that both do the same work. CTranslate2 ends a text at half of the
length that it is given, and gets twice as much.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

ENGINES = (
    "packhorse, all at once",
    "packhorse",
    "packhorse, chunked",
    "faster-whisper",
    "faster-whisper, batched",
)


def used() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


def segments(found: Any) -> list[Any]:
    return [
        [one.start, one.end, one.text, list(one.tokens)]
        + [[word.word, word.start, word.end, word.probability] for word in one.words or ()]
        for one in found
    ]


def compare_words(ours: list[Any], theirs: list[Any]) -> None:
    """Prints how far times and probabilities of words are apart, in files of equal tokens."""
    count = near = files = 0
    most = apart = 0.0
    for one, other in zip(ours, theirs, strict=True):
        if [segment[3] for segment in one] != [segment[3] for segment in other]:
            continue
        files += 1
        pairs = [
            pair
            for own, their in zip(one, other, strict=True)
            for pair in zip(own[4:], their[4:], strict=True)
        ]
        for word, their_word in pairs:
            if word[0] != their_word[0]:
                print(f"{word[0]!r} is {their_word[0]!r} there")
            times = max(abs(word[i] - their_word[i]) for i in (1, 2))
            count += 1
            near += times <= 0.0201
            most, apart = max(most, times), max(apart, abs(word[3] - their_word[3]))
    print(
        f"{near} of {count} words of {files} files within 20 ms, largest difference {most:.2f} s; "
        f"probabilities within {apart:.1e}"
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """The texts of an engine, its seconds and CPU seconds."""
    options = {
        "beam_size": arguments.beams,
        "language": arguments.language,
        "word_timestamps": arguments.words,
    }
    if arguments.silence is not None:
        options["hallucination_silence_threshold"] = arguments.silence
    if arguments.fixed is not None:
        options |= {"temperature": 0.0, "max_new_tokens": arguments.fixed}
        options |= {"without_timestamps": True, "condition_on_previous_text": False}
        options |= {"log_prob_threshold": None, "no_speech_threshold": None}
    if arguments.engine.startswith("faster-whisper"):
        from faster_whisper import BatchedInferencePipeline, WhisperModel

        model: Any = WhisperModel(
            arguments.model, device="cpu", compute_type=arguments.dtype,
            cpu_threads=arguments.threads,
        )  # fmt: skip
        if arguments.fixed is not None:
            prompt = 4 if model.model.is_multilingual else 2
            options["max_new_tokens"] = 2 * arguments.fixed - prompt

        if arguments.engine == "faster-whisper, batched":
            model = BatchedInferencePipeline(model)
            options["without_timestamps"] = True

        def transcribe() -> list[Any]:
            return [segments(model.transcribe(file, **options)[0]) for file in arguments.files]
    else:
        from packhorse.audio import AudioModel

        model = AudioModel.load(
            arguments.model, dtype=arguments.dtype, threads=arguments.threads, kv_tokens=65536
        )

        if arguments.engine == "packhorse, chunked":
            options |= {"mode": "chunked", "vad_filter": True, "without_timestamps": True}

        def transcribe() -> list[Any]:
            if arguments.engine != "packhorse":
                found = model.transcribe(arguments.files, **options)
            else:
                found = [model.transcribe(file, **options) for file in arguments.files]
            return [segments(one.segments) for one in found]

    begin, cpu = time.perf_counter(), used()
    texts = transcribe()
    return {"texts": texts, "seconds": time.perf_counter() - begin, "cpu": used() - cpu}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--language")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--words", action="store_true", help="times of words, too")
    parser.add_argument("--silence", type=float, help="hallucination_silence_threshold")
    parser.add_argument("--fixed", type=int, metavar="N")
    parser.add_argument("--engine", choices=ENGINES, help="runs this one, and prints its JSON")
    arguments = parser.parse_args()
    if arguments.engine is not None:
        print(json.dumps(run(arguments)))
        return
    found = {}
    for engine in ENGINES:
        command = [sys.executable, *sys.argv, "--engine", engine]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[engine] = json.loads(output.splitlines()[-1])
        seconds, cpu = found[engine]["seconds"], found[engine]["cpu"]
        print(f"{engine}: {seconds:.1f} s, {cpu:.1f} CPU s", flush=True)
    pairs = zip(found["packhorse"]["texts"], found["faster-whisper"]["texts"], strict=True)
    equal = [
        [segment[:4] for segment in one] == [segment[:4] for segment in other]
        for one, other in pairs
    ]
    print(f"{sum(equal)} of {len(equal)} files have equal tokens and times")
    if arguments.words:
        compare_words(found["packhorse"]["texts"], found["faster-whisper"]["texts"])
    if arguments.fixed is not None:
        for engine, one in found.items():
            tokens = sum(len(segment[3]) for text in one["texts"] for segment in text)
            print(f"{engine}: {tokens} tokens")
    same = found["packhorse"]["texts"] == found["packhorse, all at once"]["texts"]
    print(f"all at once {'equals' if same else 'differs from'} one by one")


if __name__ == "__main__":
    main()
