"""Makes files of speech by flite, festival and espeak-ng: several voices, noise, and silences
between sentences, of 10 seconds to 20 minutes.

    apt-get install flite festival espeak-ng
    python benchmarks/speech/voices.py FOLDER

A file is made of its number alone, so a second call makes the same words, noise and silences; files
that are there already are kept.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import soundfile
import soxr

RATE = 16000
LENGTHS = (
    *(10, 12, 14, 16, 18, 20, 22, 25, 28, 29, 30, 31, 33, 35, 38, 40, 43, 45, 48, 50),
    *(52, 55, 57, 58, 60, 61, 64, 70, 75, 80, 85, 90, 95, 110, 120, 150, 180, 240, 300, 1200),
)
VOICES = (
    ("espeak-ng", "-v", "en-us", "-s", "150", "-w", "{file}"),
    ("flite", "-voice", "slt", "-o", "{file}"),
    ("flite", "-voice", "rms", "-o", "{file}"),
    ("espeak-ng", "-v", "en-gb", "-s", "165", "-w", "{file}"),
    ("flite", "-voice", "kal16", "-o", "{file}"),
    ("flite", "-voice", "awb", "-o", "{file}"),
    ("text2wave", "-o", "{file}"),
)
WHO = (
    "The old sailor", "My neighbour", "Every second visitor", "The woman with the red umbrella",
    "A tired committee", "Our youngest teacher", "The doctor from the valley", "Nobody in town",
    "The second violin", "Their grandmother", "One of the engineers", "The new mayor",
)  # fmt: skip
DID = (
    "carried", "forgot", "counted", "painted", "sold", "described", "repaired", "remembered",
    "photographed", "promised to return", "asked for", "could not find",
)  # fmt: skip
WHAT = (
    "seventeen wooden boxes", "the letter about the bridge", "a basket of green apples",
    "the keys of the lighthouse", "two small boats", "an expensive piano", "the map of the harbour",
    "all the windows of the school", "a song about winter", "the clock above the station",
    "her brother's bicycle", "thirty pages of the report",
)  # fmt: skip
WHEN = (
    "before the snow came", "in the middle of the night", "on a Thursday in March",
    "while the others were asleep", "without saying a word", "after the second concert",
    "because the train was late", "as soon as the rain stopped", "for the third time this year",
    "although it was forbidden", "between breakfast and noon", "when the lights went out",
)  # fmt: skip


def sentence(chance: random.Random) -> str:
    said = " ".join(chance.choice(words) for words in (WHO, DID, WHAT, WHEN))
    if chance.random() < 0.3:
        said += f", and {chance.choice(WHO).lower()} {chance.choice(DID)} {chance.choice(WHAT)}"
    return f"{said}."


def say(voice: tuple[str, ...], text: str, folder: Path) -> np.ndarray:
    """Samples of a sentence, float32 at 16 kHz, with a largest one of 1."""
    file, script = folder / "one.wav", folder / "one.txt"
    script.write_text(text, encoding="utf-8")
    command = [part.format(file=file) for part in voice]
    command += {"flite": [str(script)], "espeak-ng": ["-f", str(script)]}.get(voice[0], [])
    subprocess.run(command, input=text if voice[0] == "text2wave" else None, text=True, check=True)
    heard, rate = soundfile.read(file, dtype="float32")
    return soxr.resample(heard, rate, RATE) / max(0.05, np.abs(heard).max())


def make(number: int, seconds: float, folder: Path) -> np.ndarray:
    chance, noise = random.Random(number), np.random.default_rng(number)
    voice = VOICES[number % len(VOICES)]
    parts: list[np.ndarray] = []
    size = 0
    while size < seconds * RATE:
        gap = (
            chance.choice((4, 12, 35)) if chance.random() < 0.07 else chance.choice((0.2, 0.4, 0.8))
        )
        spoken = say(voice, sentence(chance), folder) * chance.uniform(0.4, 0.9)
        parts += [spoken, np.zeros(int(gap * RATE))]
        size += spoken.size + parts[-1].size
    heard = np.concatenate(parts)
    loudness = {1: 0.003, 2: 0.02 if number % 2 else 0.0}.get(number % 3, 0.0)
    return np.clip(heard + noise.normal(0, 1, heard.size) * loudness, -1, 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=len(LENGTHS))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as room:
        for number, seconds in enumerate(LENGTHS[: arguments.files]):
            target = arguments.folder / f"{number:02d}.wav"
            if not target.exists():
                heard = make(number, seconds, Path(room))
                soundfile.write(target, heard, RATE, subtype="PCM_16")
                print(f"{target}: {heard.size / RATE:.1f} s", flush=True)


if __name__ == "__main__":
    main()
