"""The command that serves models over HTTP."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import Field
from pathlib import Path
from typing import Annotated, Any

import typer

from packhorse.load_options import MACHINE
from packhorse.option_fields import kind_of, said
from packhorse.serve.settings import ENVIRONMENT, Settings, settings_of


def _option(name: str, one: Field[Any], hint: Any) -> inspect.Parameter:
    """The flag of a setting. Its default is None, so that what was not given is known."""
    kind: Any = kind_of(hint)
    default: Any = one.default_factory() if callable(one.default_factory) else one.default
    several = isinstance(default, tuple)
    flag = f"--{name.replace('_', '-')}"
    shown = ", ".join(default) if several else default
    info = typer.Option(
        f"{flag}/--no-{flag[2:]}" if kind is bool else flag,
        help=said(one).help,
        metavar=None if kind is bool else said(one).metavar or ("N" if kind is int else "NAME"),
        rich_help_panel=said(one).group or MACHINE,
        envvar=f"{ENVIRONMENT}{name.upper()}",
        show_default=str(shown) if shown not in (None, "", False) else False,
    )
    annotation: Any = Annotated[(list[str] if several else kind) | None, info]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=None, annotation=annotation)


Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL]...",
        help="A model folder, a GGUF file, or a model's name on the Hugging Face hub; NAME=MODEL "
        "serves it under another name.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar=f"{ENVIRONMENT}CONFIG",
        help="Settings as TOML: each flag by its name with underscores, and models as tables.",
    ),
]


def _command() -> Callable[..., None]:
    settings = settings_of(Settings).items()
    options = [_option(name, *about) for name, about in settings if name != "models"]

    def serve(
        context: typer.Context, models: list[str] | None, config: Path | None, **given: Any
    ) -> None:
        def is_flag(name: str) -> bool:
            source: Any = context.get_parameter_source(name)
            return source is not None and source.name == "COMMANDLINE"

        # `Settings.load` reads the environment's values as they are: typer takes texts apart.
        given = {name: value for name, value in given.items() if is_flag(name)}
        settings = Settings.load(models or (), config, **given)
        if not settings.models:
            raise ValueError("there is no model to serve: name one, or list some in --config")
        _run(settings)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("context", keyword, annotation=typer.Context),
        inspect.Parameter("models", keyword, default=None, annotation=Models),
        inspect.Parameter("config", keyword, default=None, annotation=Config),
        *options,
    ]
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {one.name: one.annotation for one in parameters}
    serve.__doc__ = """Serve models over HTTP, by the protocols of text-embeddings-inference, OpenAI
    and Cohere. Stops on SIGTERM or Ctrl-C, when what runs has finished."""
    return serve


def _run(settings: Settings) -> None:
    try:
        from packhorse.serve.server import run
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "packhorse":
            raise
        from packhorse_weights.extras import missing_package

        raise missing_package("serve", package, "serving") from None
    run(settings)


SERVE_COMMANDS = (_command(),)
