"""Long texts cut by sentences, and their translations put together again.

The rule: a text is cut at line ends; a line is cut into sentences, and neighbouring sentences stay
together as long as their tokens fit; a sentence that does not fit by itself is cut between words,
and a word between characters. White space between parts is kept as it stands, and what is white
space alone is given back.

A sentence ends with . ! ? or \N{HORIZONTAL ELLIPSIS}, and quotes or brackets that follow, before
white space; with an ideographic stop it needs none. After a full stop it does not end where a small
letter follows, nor behind a single capital letter or a usual abbreviation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

_LINES = re.compile(r"\s*[\n\r\u2028\u2029]\s*|\A\s+|\s+\Z")
_ENDS = re.compile(
    r"""[.!?\u2026]+["'\u201d\u2019\u00bb)\]]*\s+|[\u3002\uff01\uff1f]+[\u201d\u300d\u300f\uff09]*\s*"""
)
_SPACES = re.compile(r"\s+")
_SHORT = re.compile(r"(?:^|[\s(])([^\W\d_]|[A-Za-z]\.[A-Za-z])$")
_ABBREVIATIONS = frozenset(
    {
        *("mr", "mrs", "ms", "dr", "prof", "st", "vs", "etc", "inc", "jr", "sr", "no", "fig"),
        *("ca", "bzw", "usw", "nr", "hr", "fr", "z.b", "d.h", "cf", "p.ex", "sig", "sra", "e.g"),
    }
)
Count = Callable[[Sequence[str]], list[int]]  # tokens of texts


class CutText(NamedTuple):
    """A text in parts. between: white space before the first part, between parts, and after the
    last one; one entry more than parts."""

    parts: list[str]
    between: list[str]

    def join(self, parts: Sequence[str]) -> str:
        """The text with others in place of its parts."""
        pieces = [self.between[0]]
        for part, space in zip(parts, self.between[1:], strict=True):
            pieces += [part, space]
        return "".join(pieces)


def cut(text: str, most: int, count: Count, *, each: bool = False) -> CutText:
    """Cuts a text into parts of at most `most` tokens. each: each sentence is a part of its own,
    also of a text that fits."""
    if not text.strip():
        return CutText([], [text])
    if not each and count([text])[0] <= most:
        return CutText([text], ["", ""])
    parts: list[str] = []
    between = [""]
    at = 0
    for gap in _LINES.finditer(text):
        _add_line(text[at : gap.start()], most, count, each, parts, between)
        between[-1] += gap.group()
        at = gap.end()
    _add_line(text[at:], most, count, each, parts, between)
    return CutText(parts, between)


def _add_line(
    line: str, most: int, count: Count, each: bool, parts: list[str], between: list[str]
) -> None:
    sentences, spaces = split_sentences(line)
    sizes = count(sentences)
    held, size = "", 0
    for i, sentence in enumerate(sentences):
        space = spaces[i - 1] if i else ""
        if held and not each and size + sizes[i] <= most:
            held, size = held + space + sentence, size + sizes[i]
            continue
        if held:
            parts.append(held)
            between.append(space)
        held, size = sentence, sizes[i]
        if size > most:
            pieces, gaps = _cut_sentence(sentence, most, count)
            parts += pieces[:-1]
            between += gaps
            held, size = pieces[-1], most
    if held:
        parts.append(held)
        between.append("")


def split_sentences(line: str) -> tuple[list[str], list[str]]:
    """(the sentences of a line, the white space between them)"""
    sentences: list[str] = []
    spaces: list[str] = []
    begin = 0
    for end in _ENDS.finditer(line):
        mark = end.group().rstrip()
        stop, after = end.start() + len(mark), line[end.end() : end.end() + 1]
        if not after or (mark.startswith(".") and _goes_on(line[begin : end.start()], after)):
            continue
        sentences.append(line[begin:stop])
        spaces.append(line[stop : end.end()])
        begin = end.end()
    if begin < len(line):
        sentences.append(line[begin:])
    return sentences, spaces[: max(0, len(sentences) - 1)]


def _goes_on(before: str, after: str) -> bool:
    """True for a full stop that ends no sentence."""
    word = before.rpartition(" ")[2].lstrip("(\"'").lower()
    short = _SHORT.search(before)
    initial = short is not None and short.group(1)[0].isupper()
    return after.islower() or word in _ABBREVIATIONS or initial


def _cut_sentence(sentence: str, most: int, count: Count) -> tuple[list[str], list[str]]:
    """Parts of a sentence that does not fit, and the white space between them."""
    words = _SPACES.split(sentence)
    spaces = _SPACES.findall(sentence)
    parts: list[str] = []
    gaps: list[str] = []
    held, size = "", 0
    for i, (word, tokens) in enumerate(zip(words, count(words), strict=True)):
        space = spaces[i - 1] if i else ""
        if held and size + tokens <= most:
            held, size = held + space + word, size + tokens
            continue
        if held:
            parts.append(held)
            gaps.append(space)
        pieces = [word] if tokens <= most else _cut_word(word, most, count)
        parts += pieces[:-1]
        gaps += [""] * (len(pieces) - 1)
        held, size = pieces[-1], count([pieces[-1]])[0]
    return [*parts, held], gaps


def _cut_word(word: str, most: int, count: Count) -> list[str]:
    """Halves of a word, halved again where they do not fit. One character always does."""
    if len(word) < 2 or count([word])[0] <= most:
        return [word]
    half = len(word) // 2
    return [*_cut_word(word[:half], most, count), *_cut_word(word[half:], most, count)]
