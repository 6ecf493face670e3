"""Options of the commands that generate: of `TextModel.generate` and of loading for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from packhorse.cli.options import Load, LoadBundle
from packhorse.load_options import GENERATION, MACHINE

ADAPTER = "adapter"  # name of the one that --adapter adds

_FORM = "Form of the output (needs the extra structured)"


LoadGenerator = Annotated[Load, LoadBundle(MACHINE, GENERATION)]
Adapter = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        rich_help_panel=GENERATION,
        help="A LoRA adapter of the model, as PEFT saved it.",
    ),
]


@dataclass(frozen=True)
class Generating:
    """Options of how texts are generated; by default as the model's files say."""

    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Most tokens of the text; by default 256."),
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(min=0, metavar="T", help="0: the most probable token each time."),
    ] = None
    top_k: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only the N most probable tokens.")
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(metavar="P", help="Only the tokens that have this probability together."),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(metavar="P", help="Only tokens with this share of the best one's chance."),
    ] = None
    repetition_penalty: Annotated[
        float | None, typer.Option(metavar="X", help="Above 1: what was said becomes less likely.")
    ] = None
    no_repeat_ngram_size: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="No N tokens come twice; 0: they may."),
    ] = None
    num_beams: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Sequences that beam search follows.")
    ] = None
    length_penalty: Annotated[
        float | None, typer.Option(metavar="X", help="Of beam search: above 0 for longer texts.")
    ] = None
    min_new_tokens: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Fewest tokens of the text.")
    ] = None
    bad_words: Annotated[
        list[str] | None,
        typer.Option("--bad-word", metavar="TEXT", help="Is not written; may be repeated."),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Number that gives a text again."),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Ends the text, and is not in it; may be repeated."),
    ] = None
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the tokens that end a text.")
    ] = False
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel=_FORM, help="The output is JSON of this JSON schema."
        ),
    ] = None
    regex: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            rich_help_panel=_FORM,
            help="The output matches this regular expression as a whole.",
        ),
    ] = None
    grammar: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_FORM,
            help="The output follows this grammar: llama.cpp's GBNF, or Lark.",
        ),
    ] = None
    choice: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", rich_help_panel=_FORM, help="The output is one of these; repeated."
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """The options that were given, as keyword arguments of `TextModel.generate`."""
        given = {
            **vars(self),
            "choices": self.choice or None,
            "stop": self.stop or None,
            "bad_words": self.bad_words or None,
            **{
                name: None if file is None else file.read_text("utf-8")
                for name, file in (("schema", self.schema), ("grammar", self.grammar))
            },
            "ignore_eos": self.ignore_eos or None,
        }
        del given["choice"]
        return {name: value for name, value in given.items() if value is not None}
