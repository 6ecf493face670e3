"""Makes C++ for the host of device code.

Copies the sources of a folder. In a copy, an asm statement has become a call of emulated::run_asm
with the same text and operands, a variable in shared memory a reference into the emulated block's,
and `kernel<<<...>>>(...)` a call of emulated::launch_of. All else stays as it is, line by line.

Usage: translate.py OUT FOLDER. A file FOLDER/a/b.cuh becomes OUT/a/b.cuh, and a file of type .cu
becomes one of type .cu.cc. Files are written where they have changed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ENDINGS = (".h", ".hpp", ".cuh", ".cu", ".inl")
OPENING, CLOSING = "([{", ")]}"
ASM = re.compile(r"\b(?:asm|__asm__)\b\s*(?:volatile|__volatile__)?\s*\(")
ALIGNED = r"(?:(?:__align__|alignas)\(\s*(\w+)\s*\)\s*)?"
DYNAMIC = re.compile(r"extern\s+__shared__\s+" + ALIGNED + r"([\w:\s]+?)\s*(\w+)\[\];")
STATIC = re.compile(
    r"(?<!extern )__shared__\s+" + ALIGNED + r"([^;\[=]+?)\s*\b(\w+)\s*((?:\[[^\]]*\])*);"
)
COMMENT_OR_LITERAL = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL
)
LAUNCH = re.compile(r"\b(\w+)<<<(.*?)>>>\(", re.DOTALL)
OTHER_DEVICES = re.compile(r"sm1\d\d|_sparse\.hpp|_ext\.hpp")
PRAGMA = re.compile(r"(#\s*define\s+\w+\s+)#\s*pragma (.*)")


def blank_comments(text: str) -> str:
    """The text with spaces in place of comments, and literals as they are."""

    def blank(match: re.Match[str]) -> str:
        found = match.group(0)
        return re.sub(r"[^\n]", " ", found) if found.startswith("/") else found

    return COMMENT_OR_LITERAL.sub(blank, text)


def split(text: str, separators: str) -> list[str]:
    """The parts of the text between separators outside of brackets and literals."""
    parts, depth, begin, at = [], 0, 0, 0
    while at < len(text):
        c = text[at]
        if c == '"':
            at = text.index('"', at + 1)
            while text[at - 1] == "\\" and text[at - 2] != "\\":
                at = text.index('"', at + 1)
        elif c in OPENING:
            depth += 1
        elif c in CLOSING:
            depth -= 1
        elif c in separators and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
        at += 1
    return [*parts, text[begin:]]


def end_of_call(text: str, begin: int) -> int:
    """The place after the bracket that closes the one before `begin`."""
    depth, at = 1, begin
    while depth:
        c = text[at]
        if c == '"':
            at += 1
            while text[at] != '"':
                at += 2 if text[at] == "\\" else 1
        elif c in OPENING:
            depth += 1
        elif c in CLOSING:
            depth -= 1
        at += 1
    return at


def operands(section: str, call: str) -> list[str]:
    found = []
    for operand in split(section, ","):
        match = re.match(r"\s*(?:\[\w+\]\s*)?(\"[^\"]*\")\s*\((.*)\)\s*$", operand, re.DOTALL)
        if match:
            found.append(f"{call}({match.group(1)}, {match.group(2)})")
        elif operand.strip():
            raise ValueError(f"an operand that is none: {operand}")
    return found


def call_of(statement: str, place: str) -> str:
    sections = split(statement, ":")
    text = sections[0].strip()
    if not re.sub(r'[\s"]', "", text):
        return "(void)0"  # a barrier for the compiler alone
    made = operands(sections[1], "::emulated::out") if len(sections) > 1 else []
    made += operands(sections[2], "::emulated::in") if len(sections) > 2 else []
    return f'::emulated::run_asm("{place}", {", ".join([text, *made])})'


def translate_asm(text: str, plain: str, name: str) -> str:
    result, begin = [], 0
    for match in ASM.finditer(plain):
        line_begin = plain.rfind("\n", 0, match.start()) + 1
        if plain[line_begin:].lstrip().startswith("#") or match.start() < begin:
            continue
        end = end_of_call(plain, match.end())
        in_macro = "\\\n" in plain[match.end() : end]
        statement = plain[match.end() : end - 1].replace("\\\n", "\n")
        place = f"{name}:{plain.count(chr(10), 0, match.start()) + 1}"
        try:
            call = call_of(statement, place)
        except ValueError:  # directives between operands: refused when it is run
            call = f'::emulated::run_asm("{place}", "untranslated")'
        if in_macro:
            call = call.replace("\n", "\\\n")
        missing = plain.count("\n", match.start(), end) - call.count("\n")
        lines = ("\\\n" if in_macro else "\n") * max(0, missing)
        result += [text[begin : match.start()], call, lines]
        begin = end
    return "".join([*result, text[begin:]])


def dynamic_shared(match: re.Match[str]) -> str:
    alignment, kind, name = match.groups()
    made = f"::emulated::dynamic_shared({alignment or 16})"
    return f"auto* const {name} = static_cast<{kind}*>({made});"


def static_shared(match: re.Match[str]) -> str:
    alignment, kind, name, extents = match.groups()
    made = f"::emulated::shared_variable<{kind.strip()}{extents}>([] {{}}, {alignment or 0})"
    return f"auto& {name} = {made};"


def translate(text: str, name: str) -> str:
    """The text as the host compiler takes it."""
    if OTHER_DEVICES.search(name):
        return text
    plain = blank_comments(text)
    if ASM.search(plain):
        text = translate_asm(text, plain, name)
    text = DYNAMIC.sub(dynamic_shared, text)
    text = STATIC.sub(static_shared, text)
    text = LAUNCH.sub(r"::emulated::launch_of(\1, \2)(", text)
    return PRAGMA.sub(r'\1_Pragma("\2")', text)


def main() -> None:
    out, folder = map(Path, sys.argv[1:])
    for path in sorted(folder.rglob("*")):
        if path.suffix not in ENDINGS:
            continue
        name = path.relative_to(folder).as_posix()
        text = translate(path.read_text(encoding="utf-8", errors="replace"), name)
        to = out / (name + ".cc" if path.suffix == ".cu" else name)
        if to.exists() and to.read_text(encoding="utf-8", errors="replace") == text:
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
