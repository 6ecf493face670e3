"""Commands for speech."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from packhorse.cli.options import Load, LoadBundle, Model
from packhorse.load_options import GENERATION, MACHINE


def transcribe(
    model: Model,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Audio: WAV, FLAC, others with PyAV.")
    ],
    load: Annotated[Load, LoadBundle(MACHINE, GENERATION, plans=True)],
    format: Annotated[
        str,
        typer.Option("--format", "-f", metavar="txt|srt|vtt|tsv|json", help="Form of the text."),
    ] = "txt",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder for a file of each audio, by its name; by default all go to stdout.",
        ),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Language, such as en; by default it is detected."),
    ] = None,
    task: Annotated[
        str, typer.Option(metavar="transcribe|translate", help="translate: into English.")
    ] = "transcribe",
    beam_size: Annotated[
        int, typer.Option(min=1, metavar="N", help="Beams; 1: the most probable token each time.")
    ] = 5,
    initial_prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text that stands before the first words.")
    ] = None,
    hotwords: Annotated[
        str | None, typer.Option(metavar="WORDS", help="Words that are likely to be said.")
    ] = None,
    previous_text: Annotated[
        bool,
        typer.Option(
            "--previous-text/--no-previous-text", help="Each window knows the text before it."
        ),
    ] = True,
    word_timestamps: Annotated[
        bool, typer.Option("--word-timestamps", help="Times of single words, which json has.")
    ] = False,
    hallucination_silence_threshold: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="Leave out text that was hardly said, between longer pauses; with word times.",
        ),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            metavar="sequential|chunked",
            help="chunked: windows of 30 seconds that know nothing of each other, all at once.",
        ),
    ] = "sequential",
    vad: Annotated[
        bool, typer.Option("--vad/--no-vad", help="Leave out parts in which nobody speaks.")
    ] = False,
    vad_model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Silero's network; by default that of the package faster-whisper."
        ),
    ] = None,
) -> None:
    """Write down what is said in files of audio; several run side by side."""
    from packhorse.cli.transcribing import transcribe_files

    options = {
        "language": language,
        "task": task,
        "beam_size": beam_size,
        "initial_prompt": initial_prompt,
        "hotwords": hotwords,
        "condition_on_previous_text": previous_text,
        "mode": mode,
        "vad_filter": vad,
        "vad_model": vad_model,
        "word_timestamps": word_timestamps or hallucination_silence_threshold is not None,
        "hallucination_silence_threshold": hallucination_silence_threshold,
    }
    transcribe_files(model, files, load, format, output, options)


SPEECH_COMMANDS = (transcribe,)
