"""Prints names and values to stdout, in sections."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

_WIDE = 160  # columns if stdout is no terminal, so that lines in a pipe are not broken early

Rows = Mapping[str, str]


def show_rows(title: str, rows: Rows) -> None:
    """Prints a title, and a line for each name and value."""
    show_sections(title, {"": rows})


def show_sections(title: str, sections: Mapping[str, Rows]) -> None:
    """Prints a title, and the rows of each section under its heading, all aligned with each other.

    A value that is too wide for the terminal continues on the next line, indented.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, _WIDE))
    console.print(Text(title, style="bold"), soft_wrap=True)
    column = 6 + max(len(name) for rows in sections.values() for name in rows)
    for heading, rows in sections.items():
        console.print()
        if heading:
            console.print(Text(f"  {heading}", style="bold"))
        for name, value in rows.items():
            # A Text object is used because brackets in a path are no markup.
            lines = Text(value).wrap(console, max(20, console.width - column), overflow="fold")
            for line in lines:
                line.rstrip()
                console.print(Text(f"    {name}".ljust(column)) + line, soft_wrap=True)
                name = ""
