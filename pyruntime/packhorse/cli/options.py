"""The arguments and options of all commands, each declared once.

Options that belong together are fields of a dataclass, a bundle, which `unbundle` turns into
options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

_MACHINE = "Model and machine"  # heading of these options in the help
_POOLING = "Pooling (by default as the model's files say)"
_READING = ("revision", "pooling", "normalize", "reranker")

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
CacheDtype = Annotated[
    str | None,
    typer.Option(
        "--kv-cache-dtype",
        metavar="DTYPE",
        help="Keys and values of a model that generates: float8; by default as its activations.",
    ),
]
Reranker = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="Template of a generative reranker: qwen3, or a JSON file with its fields.",
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Most tokens of a text; by default as the model's files say.",
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=_MACHINE,
        help="Branch, tag or commit, for a model given by its name on the hub.",
    ),
]
Stride = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="N", help="Tokens that neighbouring windows over a long line share."
    ),
]
TopK = Annotated[
    int, typer.Option(min=1, metavar="N", help="Number of results for each, best first.")
]


def read_template(reranker: str | None) -> Any:
    """Returns the name of a template, or the fields in a file. Raises ValueError or
    FileNotFoundError."""
    if reranker is None or not reranker.endswith(".json"):
        return reranker
    from packhorse_weights.files import read_json

    return read_json(Path(reranker), named=True)


def split_options(load: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits the options of `Session.load` into (those that decide what the model is, those that
    decide how it runs). The former are options of `inspect_checkpoint`."""
    read = {name: value for name, value in load.items() if name in _READING}
    return read, {name: value for name, value in load.items() if name not in _READING}


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class Planning:
    """Options that decide which model is meant, and what a session of it takes on which device."""

    revision: Revision = None
    device: Annotated[
        str,
        typer.Option(
            metavar="cpu|cuda", rich_help_panel=_MACHINE, help="cuda needs a build with CUDA."
        ),
    ] = "cpu"
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE",
            rich_help_panel=_MACHINE,
            help="What to compute in: float32 (fp32), bfloat16 (bf16) or int8 on the CPU, "
            "float16 (fp16), bfloat16, int8 or float8 (Hopper) on a GPU, stored on both "
            "(quantised weights stay as they are); by default (auto) what suits the folder.",
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            rich_help_panel=_MACHINE,
            help="CPU threads; by default one for each core.",
        ),
    ] = None
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            rich_help_panel=_MACHINE,
            help="Most memory of weights, buffers and cache together: bytes, 1GB, 512MiB.",
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """The given options under the names of `Session.load`. Raises ValueError for one that has
        no effect."""
        if self.threads is not None and self.device != "cpu":
            raise ValueError(f"--threads is for the CPU, but the device is {self.device}")
        return _given(vars(self))


@dataclass(frozen=True)
class Running(Planning):
    pin_threads: Annotated[
        bool,
        typer.Option(
            "--pin-threads",
            rich_help_panel=_MACHINE,
            help="Keep each CPU thread on a core of its own.",
        ),
    ] = False

    def arguments(self) -> dict[str, Any]:
        if self.pin_threads and self.device != "cpu":
            raise ValueError(f"--pin-threads is for the CPU, but the device is {self.device}")
        return super().arguments()


@dataclass(frozen=True)
class Loading(Running):
    """All options that `TextModel.load` takes for any model."""

    max_length: MaxLength = None
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            rich_help_panel=_MACHINE,
            help="Tokens of the largest batch; by default 8192, or more if a text may be longer.",
        ),
    ] = None


@dataclass(frozen=True)
class Pooling:
    """Options that decide how a text becomes one vector, if the files shall not."""

    pooling: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_POOLING,
            help="cls, mean, max, last, mean_sqrt, weighted_mean; or several with commas between.",
        ),
    ] = None
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            rich_help_panel=_POOLING,
            help="Bring vectors to length 1, or leave them as they are.",
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        names = [name for given in self.pooling or () for name in given.split(",")]
        pooling = names[0] if len(names) == 1 else names or None
        return _given({"pooling": pooling, "normalize": self.normalize})


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
