"""The table of load options in docs/sessions.md, made from the fields of `TextLoadOptions`.

    python tools/load_options.py            fails if the page has another table
    python tools/load_options.py --write    writes it

Needs packhorse on the path.
"""

from __future__ import annotations

import sys
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from packhorse.load_options import TextLoadOptions
from packhorse.option_fields import said

FILE = Path(__file__).resolve().parents[1] / "docs" / "sessions.md"
BEGIN, END = "<!-- made by tools/load_options.py --write -->\n", "<!-- end -->\n"
HEADING = "| option | default | unit | what it says |\n|---|---|---|---|\n"


def _row(one: Field[Any]) -> str:
    about = said(one)
    meaning = (about.help or f"{about.doc[0].upper()}{about.doc[1:]}.").replace("|", "\\|")
    if about.setting:
        meaning += f" The server calls it `{about.setting}`."
    if not about.help:
        meaning += " Python only."
    return f"| `{one.name}` | {one.default} | {about.unit} | {meaning} |\n"


def table() -> str:
    return HEADING + "".join(map(_row, fields(TextLoadOptions)))


def page() -> str:
    """The page as it should be."""
    before, _, rest = FILE.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(page(), encoding="utf-8")
    elif page() != FILE.read_text(encoding="utf-8"):
        sys.exit(f"{FILE} has another table: run with --write")
