"""The arguments and options of all commands, each declared once.

Options that belong together are a bundle, which `unbundle` turns into options: a dataclass, or a
`LoadBundle` of fields of `TextLoadOptions`.
"""

from __future__ import annotations

import inspect
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from packhorse.load_options import BATCH, MACHINE, LoadOptions, TextLoadOptions
from packhorse.option_fields import hints_of, kind_of, said, takes_several

Load = dict[str, Any]  # options of `TextModel.load` that were given

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A model folder, or a model's name on the Hugging Face hub."
    ),
]
File = Annotated[
    Path, typer.Argument(metavar="FILE", help="Text, one per line, UTF-8; - is stdin.")
]
Errors = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="Lines that are not UTF-8. strict: stop there. replace: put U+FFFD for what is wrong. "
        "skip: leave them out; the others keep their numbers.",
    ),
]
VectorFormat = Annotated[
    str | None,
    typer.Option(
        metavar="npy|jsonl", help="Format of the output; by default what its name says, or jsonl."
    ),
]
Dimensions = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Keep only the first N dimensions (Matryoshka)."),
]
VectorDtype = Annotated[
    str,
    typer.Option(
        metavar="DTYPE",
        help="Dtype of the vectors: float32, float16, int8, uint8; packed: binary, ubinary.",
    ),
]
Stride = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="N", help="Tokens that neighbouring windows over a long line share."
    ),
]
Activation = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Function of the logits, in place of the checkpoint's: sigmoid, softmax, or none.",
    ),
]
TopK = Annotated[
    int, typer.Option(min=1, metavar="N", help="Number of results for each, best first.")
]


class LoadBundle:
    """Options of loading that a command has: those of some groups of `LoadOptions`, and some named
    one by one. With `plans` no others than those of a session, which a plan has use for."""

    def __init__(self, *groups_and_names: str, plans: bool = False) -> None:
        base = LoadOptions if plans else TextLoadOptions
        self._fields = [
            one
            for one in fields(base)
            if said(one).help and {one.name, said(one).group} & {*groups_and_names}
        ]

    def parameters(self) -> list[inspect.Parameter]:
        """The parameters of the command, as Typer reads them."""
        return [_parameter(one) for one in self._fields]

    def collect(self, values: dict[str, Any]) -> Load:
        """The options that are not as by default, taken out of the values of a command. Raises
        ValueError for one that has no effect, and for what cannot be read."""
        taken = {one.name: values.pop(one.name) for one in self._fields}
        device = taken.get("device", "cpu")
        for name in ("threads", "pin_threads"):
            if taken.get(name) and device != "cpu":
                flag = name.replace("_", "-")
                raise ValueError(f"--{flag} is for the CPU, but the device is {device}")
        return {
            one.name: said(one).from_text(taken[one.name])
            for one in self._fields
            if taken[one.name] not in (one.default, None, [])
        }


def _parameter(one: Field[Any]) -> inspect.Parameter:
    hint, about = hints_of(TextLoadOptions)[one.name], said(one)
    flag = f"--{one.name.replace('_', '-')}"
    may_be_on = kind_of(hint) is bool and one.default is not False
    shown = typer.Option(
        f"{flag}/--no-{flag[2:]}" if may_be_on else flag,
        min=about.least,
        metavar=about.metavar,
        help=about.help,
        rich_help_panel=about.group or None,
    )
    kind: Any = list[str] if takes_several(hint) else kind_of(hint)
    optional = kind | None if one.default is None else kind
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(
        one.name, keyword, default=one.default, annotation=Annotated[optional, shown]
    )


LoadForTexts = Annotated[Load, LoadBundle(MACHINE, BATCH)]


@dataclass(frozen=True)
class Prompts:
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text to put before every line.")
    ] = None
    prompt_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's prompt of this name.")
    ] = None

    def arguments(self) -> dict[str, Any]:
        return vars(self)


@dataclass(frozen=True)
class Reading:
    """Options of commands that print a line of JSON for each line of text."""

    errors: Errors = "strict"
    text: Annotated[bool, typer.Option("--text", help="Repeat the line beside its result.")] = False
