"""Files of audio that become texts and subtitles."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packhorse.audio import AudioModel
from packhorse.audio.subtitles import FORMATS, render
from packhorse.cli.progress import seconds_progress


def transcribe_files(
    model: str,
    files: Sequence[Path],
    load: Mapping[str, Any],
    form: str,
    output: Path | None,
    options: Mapping[str, Any],
) -> None:
    """Prints the text of each file, or writes it to `output`/NAME.FORM. Raises ValueError."""
    if form not in FORMATS:
        raise ValueError(f"--format is {form!r:.40}, expected one of {', '.join(FORMATS)}")
    targets = [] if output is None else [output / f"{file.stem}.{form}" for file in files]
    if len({*targets}) < len(targets):
        raise ValueError("two files have one name, so that their texts would go to the same file")
    if output is not None and not output.is_dir():
        raise ValueError(f"{output} is no folder")
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"there is no file {file}")
    with AudioModel.load(model, **load) as audio_model:
        begin = time.perf_counter()
        done = [0.0] * len(files)
        total = [0.0] * len(files)
        with seconds_progress("transcribing") as report:

            def note(number: int, seconds: float, all_seconds: float) -> None:
                done[number], total[number] = seconds, all_seconds
                report(round(sum(done)), round(sum(total)))

            found = audio_model.transcribe(list(files), report=note, **options)
        took = time.perf_counter() - begin
    for i, one in enumerate(found):
        text = render(one, form)
        if targets:
            targets[i].write_text(text, encoding="utf-8")
        else:
            sys.stdout.write(text)
    heard = sum(total)
    if heard > 0:
        print(f"[{heard:,.1f} s of audio in {took:,.1f} s, {heard / took:,.1f} x]", file=sys.stderr)
