"""The application: all commands under one name."""

from __future__ import annotations

from typing import Annotated

import typer

from packhorse import __version__
from packhorse.cli.generation_commands import GENERATION_COMMANDS
from packhorse.cli.image_commands import IMAGE_COMMANDS
from packhorse.cli.model_commands import MODEL_COMMANDS
from packhorse.cli.serving import SERVE_COMMANDS
from packhorse.cli.speech_commands import SPEECH_COMMANDS
from packhorse.cli.text_commands import TEXT_COMMANDS
from packhorse.cli.unbundle import unbundle

app = typer.Typer(
    help="Transformer inference that never computes on padding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"packhorse {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


for panel, commands in (
    ("For each line of a text", TEXT_COMMANDS),
    ("For each image", IMAGE_COMMANDS),
    ("Generating text", GENERATION_COMMANDS),
    ("Speech", SPEECH_COMMANDS),
    ("For other programs", SERVE_COMMANDS),
    ("About a model", MODEL_COMMANDS),
):
    for command in commands:
        app.command(rich_help_panel=panel)(unbundle(command))
