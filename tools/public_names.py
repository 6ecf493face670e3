"""The public names of Packhorse: Python, settings of the server, commands and their options, C++.

    python tools/public_names.py            what differs from docs/public_names.txt
    python tools/public_names.py --write    writes that file

docs/api.md says what may become of a name once it is in the file. Needs packhorse on the path and
the extra `cli`.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import api_reference  # beside this file

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "public_names.txt"
HEADERS = ROOT / "runtime" / "include" / "packhorse"
MODULES = (*api_reference.MODULES, "packhorse.serve")
HEADING = """\
# The public names of Packhorse, made by `python tools/public_names.py --write`.
# docs/api.md says what they promise.
"""


def _parameters(function: Any) -> str:
    """The names of parameters: `*` stands before those that are given by name only, and `=` behind
    those that may be left out."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    words: list[str] = []
    for name, parameter in signature.parameters.items():
        if name in ("self", "cls"):
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            words.append(f"*{name}")
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not any(w.startswith("*") for w in words):
            words.append("*")
        mark = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        words.append(mark + name + ("=" if parameter.default is not parameter.empty else ""))
    return f"({', '.join(words)})"


def _members(where: str, value: type) -> list[str]:
    lines = []
    for name, member in inspect.getmembers(value):
        inherited = all(name not in vars(base) for base in value.__mro__ if _is_ours(base))
        if name.startswith("_") or inherited:
            continue
        is_call = callable(member) and not isinstance(member, property)
        lines.append(f"{where}.{name}{_parameters(member) if is_call else ''}")
    names = {line.removeprefix(f"{where}.").partition("(")[0] for line in lines}
    annotations = [getattr(base, "__annotations__", {}) for base in value.__mro__ if _is_ours(base)]
    for name in {name for one in annotations for name in one if not name.startswith("_")} - names:
        lines.append(f"{where}.{name}")
    return lines


def _is_ours(value: type) -> bool:
    return value.__module__.startswith("packhorse")


def python_names() -> list[str]:
    """Functions and classes with their parameters and public members."""
    lines = []
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in api_reference.public_names(module):
            # The server's functions need packages that its settings do not.
            late = module_name == "packhorse.serve" and name in ("create_app", "run")
            value = None if late else getattr(module, name)
            where = f"{module_name}.{name}"
            if inspect.isclass(value):
                # Other objects than data classes are made by functions.
                made = _parameters(value) if is_dataclass(value) else ""
                lines += [where + made, *_members(where, value)]
            else:
                lines.append(where + (_parameters(value) if callable(value) else ""))
    return lines


def serve_names() -> list[str]:
    """Settings, each of which is a flag, an environment variable and a line of TOML."""
    from packhorse.serve.settings import ModelSettings, Settings, settings_of

    return [f"setting {name}" for name in settings_of(Settings)] + [
        f"setting models.{name}" for name in settings_of(ModelSettings)
    ]


def command_names() -> list[str]:
    """Commands, their arguments and options."""
    import typer.main
    from packhorse.cli.app import app

    group: Any = typer.main.get_command(app)
    lines = []
    for name, command in group.commands.items():
        lines.append(f"command {name}")
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                lines.append(f"command {name} {parameter.name.upper()}")
            flags = (*parameter.opts, *parameter.secondary_opts)
            lines += [f"command {name} {flag}" for flag in flags if flag.startswith("-")]
    return lines


def _body(text: str, begin: int) -> tuple[str, int]:
    """The text between the brace at `begin` and the one that closes it, and the place of that
    one."""
    depth = 0
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin + 1 : at], at
    raise ValueError("a brace that nothing closes")


def _declared(statement: str) -> str:
    """The name that a declaration declares, or ""."""
    statement = re.sub(r"<[^<>]*>|<[^<>]*<[^<>]*>[^<>]*>|\bPACKHORSE_API\b", "", statement).strip()
    if re.match(r"(using|friend|public|private|template|static_assert|explicit|~|#)", statement):
        return ""
    head = re.split(r"[({=]", statement, maxsplit=1)[0]
    found = re.findall(r"~?\b[A-Za-z_]\w*\b", head)
    return found[-1] if len(found) > 1 else ""


def _statements(text: str) -> list[str]:
    """Declarations, the bodies of functions and initialisers left out."""
    flat, at = "", 0
    while at < len(text):
        if text[at] == "{":
            _, at = _body(text, at)
            flat += "{};"
        else:
            flat += text[at]
        at += 1
    return [one.strip() for one in flat.split(";") if one.strip()]


def _members_of(kind: str, name: str, body: str) -> list[str]:
    if kind.startswith("enum"):
        words = [re.split(r"[\s=]", one.strip(), maxsplit=1)[0] for one in body.split(",")]
        return [f"c++ {name}::{word}" for word in words if word]
    sections = re.split(r"\b(public|private|protected):", "public:" + body)
    if kind == "class":
        sections = re.split(r"\b(public|private|protected):", "private:" + body)
    public = "".join(
        text for word, text in zip(sections[1::2], sections[2::2], strict=True) if word == "public"
    )
    members = {_declared(one) for one in _statements(public)} - {"", name, "operator", "override"}
    return [f"c++ {name}::{member}" for member in members if not member.startswith("~")]


def cpp_names() -> list[str]:
    """Types with their public members and functions of the public headers, without signatures."""
    lines = []
    for path in sorted(HEADERS.glob("*.h")):
        text = re.sub(r"//[^\n]*|\\\n|^\s*#[^\n]*", "", path.read_text(), flags=re.MULTILINE)
        for space in re.finditer(r"\bnamespace packhorse \{", text):
            body, _ = _body(text, space.end() - 1)
            pattern = r"\b(enum class|class|struct)\s+(?:PACKHORSE_API\s+)?(\w+)([^;{]*)\{"
            while found := re.search(pattern, body):
                inside, end = _body(body, found.end() - 1)
                lines.append(f"c++ {found[2]}")
                lines += _members_of(found[1], found[2], inside)
                body = body[: found.start()] + body[end + 1 :]
            functions = {_declared(one) for one in _statements(body) if "(" in one or "=" in one}
            lines += [f"c++ {name}" for name in functions - {"", "operator", "detail"}]
    return lines


def public_names() -> list[str]:
    names = [*python_names(), *serve_names(), *command_names(), *cpp_names()]
    return sorted(set(names))


def frozen_names() -> list[str]:
    return [line for line in FILE.read_text().splitlines() if not line.startswith("#")]


def differences() -> str:
    """Advice to somebody who has changed public names; "" where nothing differs."""
    now, before = public_names(), frozen_names()
    gone, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
    text = ""
    if gone:
        text += (
            "Public names are gone, or have other parameters:\n  "
            + "\n  ".join(gone)
            + "\nWho uses them would be broken: docs/api.md says how a name is deprecated first. "
            "Parameters may be added at the end, with a default.\n"
        )
    if new:
        text += "Public names are new:\n  " + "\n  ".join(new) + "\n"
    if text:
        text += "If that is meant: python tools/public_names.py --write, and say it in CHANGELOG.md"
    return text


def main() -> int:
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(HEADING + "\n".join(public_names()) + "\n")
        return 0
    found = differences()
    print(found or "nothing differs")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
