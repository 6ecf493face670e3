"""Transcribes many short audios with a tiny model, in all ways: arrays, files, broken files, lists,
streams that are left, windows at once. Every text is compared with the first one of its audio, and
memory, threads and open files may not grow.

    python tests/soak_speech.py [--audios 1000]   (`nox -s soak-speech`)

Prints a line of JSON. Exits with 1 where a text differed, a page of the cache is still in use, or
something grew.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from packhorse.audio import AudioModel

MODEL = Path(__file__).resolve().parent / "golden" / "speech" / "whisper"
KINDS = 25  # audios that differ
WARM = 200  # audios before memory is looked at
MOST_GROWTH = 8 << 20  # bytes
OPTIONS = {"beam_size": 2, "best_of": 2, "temperature": (0.0, 0.8), "max_new_tokens": 10}


def audio(number: int) -> np.ndarray:
    chance = np.random.default_rng(number)
    time = np.arange(int(chance.integers(0, 40_000))) / 16000
    heard = np.sin(2 * np.pi * chance.uniform(100, 2000) * time) * (time % 0.4 < 0.3)
    return (0.4 * heard + chance.normal(0, 0.01, time.size)).astype(np.float32)


def file_of(samples: np.ndarray, form: str) -> bytes:
    made = io.BytesIO()
    soundfile.write(made, samples, 16000, format=form, subtype="PCM_16")
    return made.getvalue()


def state() -> tuple[int, int, int]:
    """(resident bytes, threads, open files)"""
    gc.collect()
    resident = 4096 * int(Path("/proc/self/statm").read_text().split()[1])
    threads, files = (len(list(Path(f"/proc/self/{name}").iterdir())) for name in ("task", "fd"))
    return resident, threads, files


class Soak:
    def __init__(self, model: AudioModel) -> None:
        self._model = model
        self._audios = [audio(number) for number in range(KINDS)]
        self._known: dict[tuple[str, int], Any] = {}
        self.wrong: list[str] = []

    def _compare(self, way: str, number: int, found: Any) -> None:
        if self._known.setdefault((way, number), found) != found:
            self.wrong.append(f"{way} of audio {number}")

    def run(self, i: int) -> None:
        number, model = i % KINDS, self._model
        samples = self._audios[number]
        way = ("array", "file", "list", "chunked", "left", "broken")[i // KINDS % 6]
        if way == "array":
            self._compare(way, number, model.transcribe(samples, **OPTIONS))
        elif way == "file":
            data = file_of(samples, "FLAC" if i % 2 else "WAV")
            self._compare(way, number, model.transcribe(data, **OPTIONS).duration)
        elif way == "list":
            both = model.transcribe([samples, self._audios[0]], **OPTIONS)
            self._compare("array", number, both[0])
            self._compare("array", 0, both[1])
        elif way == "chunked":
            self._compare(way, number, model.transcribe(samples, mode="chunked", **OPTIONS))
        elif way == "left":
            events = model.stream(samples, **OPTIONS)
            next(events)
            events.close()  # type: ignore[attr-defined]
        else:
            data = file_of(samples, "FLAC")
            try:
                model.transcribe([samples, data[: len(data) // 2]], **OPTIONS)
                self.wrong.append(f"half a file of audio {number} was taken")
            except ValueError:
                pass


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--audios", type=int, default=1000)
    arguments = parser.parse_args()
    with AudioModel.load(MODEL, dtype="float32", kv_tokens=8192, threads=2) as model:
        soak = Soak(model)
        begin = state()
        for i in range(WARM + arguments.audios):
            if i == WARM:
                begin = state()
            soak.run(i)
        end = state()
        pages = model.session.stats["pages_used"]
    grew = [after - before for before, after in zip(begin, end, strict=True)]
    line = {
        "audios": arguments.audios,
        "bytes": grew[0],
        "threads": grew[1],
        "files": grew[2],
        "pages": pages,
        "wrong": soak.wrong[:5],
    }
    print(json.dumps(line))
    return int(bool(soak.wrong or pages or grew[0] > MOST_GROWTH or grew[1] or grew[2]))


if __name__ == "__main__":
    sys.exit(main())
