"""Commands that generate text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from packhorse.cli.generation_options import Generating, LoadingGenerator
from packhorse.cli.options import Model, Reading


def generate(
    model: Model,
    generating: Generating,
    reading: Reading,
    loading: LoadingGenerator,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Beginning of the text; - is all of stdin."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="In place of PROMPT: a prompt in each line; prints a line of JSON for each.",
        ),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="The prompt is a message, put into the model's chat template."),
    ] = False,
) -> None:
    """Go on with a text, as it comes; tokens per second at the end."""
    from packhorse.cli import generating as work

    if (prompt is None) == (file is None):
        raise ValueError("give either a PROMPT or --file FILE")
    load, options = loading.arguments(), generating.arguments() | loading.of_requests()
    if file is not None:
        work.generate_lines(model, file, reading, load, options, chat=chat)
    else:
        if reading.text:
            raise ValueError("--text repeats the lines of --file, and there is none")
        work.generate_prompt(model, prompt or "", load, options, chat=chat)


def chat(
    model: Model,
    generating: Generating,
    loading: LoadingGenerator,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The message that the system begins with.")
    ] = None,
) -> None:
    """Talk with a model. /reset forgets what was said, /exit ends; Ctrl-C ends an answer."""
    from packhorse.cli.chatting import talk

    options = generating.arguments() | loading.of_requests()
    talk(model, system, loading.arguments(), options)


GENERATION_COMMANDS = (generate, chat)
