"""Writes subtitles of films and talks beside their files, several at a time.

python examples/subtitles.py talk.flac lecture.wav --model openai/whisper-base
python examples/subtitles.py film.mkv --language de --task translate --format vtt     (with PyAV)
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from packhorse.audio import AudioModel
from packhorse.audio.subtitles import FORMATS, render


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--model", default="openai/whisper-base")
    parser.add_argument("--language", help="such as de; by default it is detected")
    parser.add_argument("--task", default="transcribe", help="translate: into English")
    parser.add_argument("--format", default="srt", choices=FORMATS)
    arguments = parser.parse_args()

    with AudioModel.load(arguments.model) as model:
        start = time.perf_counter()
        found = model.transcribe(arguments.files, language=arguments.language, task=arguments.task)
        seconds = time.perf_counter() - start
    for file, one in zip(arguments.files, found, strict=True):
        target = file.with_suffix(f".{arguments.format}")
        target.write_text(render(one, arguments.format), encoding="utf-8")
        print(f"{target}: {len(one.segments)} segments in {one.language}")
    heard = sum(one.duration for one in found)
    print(f"{heard:.0f} s of audio in {seconds:.1f} s")


if __name__ == "__main__":
    main()
