"""Two-column tables on stdout."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def show_rows(title: str, rows: Iterable[tuple[str, str]], numbers: bool = False) -> None:
    """Prints a title and rows of (name, value); `numbers` aligns the values on the right."""
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right" if numbers else "left", overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(value))  # Text: brackets in a path are no markup
    console = Console()
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(table)
