"""The command `packhorse`: results for each line of a text, and commands about a model.

Typer and rich are an optional extra: the library itself never imports this package.
"""

from __future__ import annotations

import sys
from typing import NoReturn

EXIT_FAILURE = 1  # the command was valid but failed
EXIT_USAGE = 2  # wrong arguments, or a package that the command needs is missing


def _fail(message: str, status: int) -> NoReturn:
    print(f"packhorse: {message}", file=sys.stderr)
    sys.exit(status)


def main() -> None:
    """The entry point. Every failure is one line on stderr and an exit status, never a
    traceback."""
    try:
        from packhorse.cli.app import app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("typer", "rich"):
            raise
        from packhorse_weights.extras import missing_package

        _fail(str(missing_package("cli", package, "the command line")), EXIT_USAGE)
    try:
        app()
    except ModuleNotFoundError as error:
        if "(extra " not in str(error):  # it is not the message of `missing_package`
            raise
        _fail(str(error), EXIT_USAGE)
    except OSError as error:
        named = error.filename is not None
        _fail(f"{error.filename}: {error.strerror}" if named else str(error), EXIT_FAILURE)
    except (ValueError, RuntimeError, MemoryError) as error:
        _fail(str(error) or type(error).__name__, EXIT_FAILURE)
