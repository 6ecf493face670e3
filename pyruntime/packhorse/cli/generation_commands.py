"""Commands that generate text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from packhorse.cli.generation_options import ADAPTER, Adapter, Generating, LoadGenerator
from packhorse.cli.options import Errors, Model, Reading


def generate(
    model: Model,
    generating: Generating,
    reading: Reading,
    load: LoadGenerator,
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
    adapter: Adapter = None,
) -> None:
    """Go on with a text, as it comes; tokens per second at the end."""
    from packhorse.cli import generating as work

    if (prompt is None) == (file is None):
        raise ValueError("give either a PROMPT or --file FILE")
    options = generating.arguments() | _of_requests(adapter)
    if file is not None:
        work.generate_lines(model, file, reading, load, adapter, options, chat=chat)
    else:
        if reading.text:
            raise ValueError("--text repeats the lines of --file, and there is none")
        work.generate_prompt(model, prompt or "", load, adapter, options, chat=chat)


def chat(
    model: Model,
    generating: Generating,
    load: LoadGenerator,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The message that the system begins with.")
    ] = None,
    adapter: Adapter = None,
) -> None:
    """Talk with a model. /reset forgets what was said, /exit ends; Ctrl-C ends an answer."""
    from packhorse.cli.chatting import talk

    talk(model, system, load, adapter, generating.arguments() | _of_requests(adapter))


File = Annotated[
    Path, typer.Argument(metavar="FILE", help="Text, one per line, UTF-8; - is stdin.")
]
Whole = Annotated[bool, typer.Option("--whole", help="The whole file is one text.")]
Split = Annotated[
    str | None,
    typer.Option(
        metavar="long|sentences|never",
        help="Texts that are cut by sentences: those that are too long, all, or none.",
    ),
]


def translate(
    model: Model,
    file: File,
    generating: Generating,
    load: LoadGenerator,
    source: Annotated[
        str | None, typer.Option("--from", metavar="LANGUAGE", help="Language of the texts.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--to", metavar="LANGUAGE", help="Language that is wanted.")
    ] = None,
    adapter: Adapter = None,
    whole: Whole = False,
    split: Split = None,
    errors: Errors = "strict",
) -> None:
    """Translate each line of a text: a line for each, in order."""
    from packhorse.cli.converting import print_texts

    asked = {"source": source, "target": target, "split": split}
    options = {**generating.arguments(), **asked, **_of_requests(adapter)}
    print_texts("translate", model, file, load, options, errors, adapter=adapter, whole=whole)


def summarize(
    model: Model,
    file: File,
    generating: Generating,
    load: LoadGenerator,
    adapter: Adapter = None,
    whole: Whole = False,
    split: Split = None,
    errors: Errors = "strict",
) -> None:
    """Summarize each line of a text: a line for each, in order."""
    from packhorse.cli.converting import print_texts

    options = {**generating.arguments(), "split": split, **_of_requests(adapter)}
    print_texts("summarize", model, file, load, options, errors, adapter=adapter, whole=whole)


def _of_requests(adapter: Path | None) -> dict[str, str]:
    """The options of each request that has the adapter."""
    return {} if adapter is None else {"adapter": ADAPTER}


GENERATION_COMMANDS = (generate, chat, translate, summarize)
