"""Places where a long text may be cut so that its parts have the tokens that the whole text has.

A tokenizer looks at a word and at what stands right beside it: where every step of it does, a part
of a text has the tokens of the whole, but for those near its two ends. That holds for the steps
named here, all that published encoders use; a tokenizer with another one gets its texts whole.
"""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from packhorse.text.foreign_errors import raised_in
from packhorse.text.giving_up import checkpoint

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PIECE = 1 << 16  # characters that are tokenized at once
MARGIN = 256  # characters beside a cut whose tokens are not used, and as many more as a token has

# Steps that look at a character and its neighbours, and those that also part words at a space.
_LOCAL_NORMALIZERS = {
    *("BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents"),
    *("Precompiled", "Strip", "Prepend", "ByteLevel"),
}
_LOCAL = {"Punctuation", "Digits"}
_PARTING = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+"
_SPACES = r"\s+(?!\S)|\s+"
# Regular expressions of GPT-2, Qwen2 and Llama 3: a match has a space at its beginning or is one.
_PARTING_PATTERNS = {
    rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{_SYMBOLS}|{_SPACES}",
    *(
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{number}|{_SYMBOLS}[\r\n]*|\s*[\r\n]+|"
        + _SPACES
        for number in (r"\p{N}", r"\p{N}{1,3}")
    ),
}
_AT_SPACE = r"(?<=[^\W_])(?= [^\W_])"
_AT_IDEOGRAPH = "(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])"


def steps_of(component: Any, children: str) -> list[dict[str, Any]]:
    """The steps of a part of a tokenizer, as tokenizer.json has them."""
    if component is None:
        return []
    try:
        step = json.loads(component.__getstate__())
    except Exception as error:  # a step written in Python
        if not raised_in(error, "tokenizers"):
            raise
        return [{"type": None}]
    found, rest = [], [step]
    while rest:
        step = rest.pop(0)
        if step["type"] == "Sequence":
            rest = [*step[children], *rest]
        else:
            found.append(step)
    return found


def _is_local_normalizer(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        kind, pattern = next(iter(step["pattern"].items()))
        if kind == "String":
            return pattern == " " or not re.search(r"[\w\s]", pattern)
        return bool(pattern == " {2,}")
    return step["type"] in _LOCAL_NORMALIZERS


def _space_after(step: dict[str, Any], space: str) -> str:
    """The string for a space of the text after a step, where it is `space` before it."""
    if space != " ":
        return space
    if step["type"] == "ByteLevel":
        return "\u0120"
    if step["type"] == "Metaspace":
        return str(step["replacement"])
    if step["type"] == "Replace" and step["pattern"] == {"String": " "}:
        return str(step["content"])
    return space


def _parts_at_spaces(step: dict[str, Any], space: str) -> bool | None:
    """True if a step of a pre-tokenizer, which finds `space` in place of a space, parts words
    there; None: it looks farther."""
    kind = step["type"]
    if kind == "Metaspace":
        return step.get("split", True) and space in (" ", step["replacement"])
    if kind in _PARTING or kind in _LOCAL:
        return kind in _PARTING and space == " "
    if kind == "ByteLevel":
        return bool(step.get("use_regex", True)) if space == " " else None
    if kind == "Split" and not step.get("invert"):
        pattern = step["pattern"]
        if pattern == {"String": " "} and space != " ":
            return False
        # Other behaviours join what stands beside a space with it, or words with each other.
        if step["behavior"] in ("Isolated", "Removed", "MergedWithNext") and (
            pattern == {"String": " "} or pattern.get("Regex") in _PARTING_PATTERNS
        ):
            return True if space == " " else None
    return None


def _all_parts(
    normalizers: list[dict[str, Any]], splitters: list[dict[str, Any]]
) -> list[bool | None]:
    """`_parts_at_spaces` of each step of a pre-tokenizer."""
    space = " "
    for step in normalizers:
        space = _space_after(step, space)
    found = []
    for step in splitters:
        found.append(_parts_at_spaces(step, space))
        space = _space_after(step, space)
    return found


def _joins_no_words(tokenizer: Tokenizer, steps: list[dict[str, Any]]) -> bool:
    """True if the merges of a tokenizer that reads a text as one word never cross a space."""
    space = "\u2581"
    written = any(
        (step["type"] == "Metaspace" and step["replacement"] == space)
        or (step["type"] == "Replace" and step["content"] == space)
        for step in steps
    )
    if not written or type(tokenizer.model).__name__ != "BPE":
        return False
    return not any(re.search(f"[^{space}]{space}", token) for token in tokenizer.get_vocab())


class Cutter:
    """Cuts texts for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        self._margin = MARGIN + 4 * max(map(len, added), default=0)
        normalizers = steps_of(tokenizer.normalizer, "normalizers")
        splitters = steps_of(tokenizer.pre_tokenizer, "pretokenizers")
        self._parts = _all_parts(normalizers, splitters)
        self._boundary = self._find_boundary(added, normalizers, splitters)

    def _find_boundary(
        self,
        added: list[str],
        normalizers: list[dict[str, Any]],
        splitters: list[dict[str, Any]],
    ) -> re.Pattern[str] | None:
        tokenizer = self._tokenizer
        parts = self._parts
        if (
            not all(_is_local_normalizer(step) for step in normalizers)
            or None in parts
            or getattr(tokenizer.model, "dropout", None)
            or any(re.search(r"\w\s+\w|^ $", token) for token in added)
            or not (any(parts) or _joins_no_words(tokenizer, normalizers + splitters))
        ):
            return None
        # A normalizer puts spaces around ideographs: they must not become tokens of their own.
        drops_spaces = bool(parts and parts[0]) and splitters[0]["type"] in _PARTING
        chinese = drops_spaces and any(step.get("handle_chinese_chars") for step in normalizers)
        return re.compile(f"{_AT_SPACE}|{_AT_IDEOGRAPH}" if chinese else _AT_SPACE)

    def _before(self, text: str, end: int) -> int:
        """The last place up to `end` where words part; 0: there is none nearby."""
        assert self._boundary is not None
        found = 0
        for match in self._boundary.finditer(text, max(0, end - PIECE // 4), end + 1):
            if match.start() <= end:
                found = match.start()
        return found

    def _after(self, text: str, begin: int) -> int:
        """The first place from `begin` on where words part, or the end."""
        assert self._boundary is not None
        for first in range(begin, len(text), PIECE):
            checkpoint(first - begin)
            # Searches the piece, and the two characters after it that a match looks at.
            if match := self._boundary.search(text, first, first + PIECE + 2):
                return match.start()
        return len(text)

    def _plain(self, text: str) -> Any:
        checkpoint(len(text))
        # `encode_batch` lets other threads run meanwhile, `encode` does not.
        return self._tokenizer.encode_batch([text], add_special_tokens=False)[0]

    def shorten(self, text: str, count: int, side: str) -> str:
        """A beginning of `text` (side "right") or an end ("left") that has, on the other side, the
        `count` tokens that the whole text has there, and at least one more. Or `text`."""
        size = 8 * count + 2 * self._margin
        while self._boundary is not None and 4 * size < len(text):
            part = (
                self._beginning(text, size, count)
                if side == "right"
                else (self._ending(text, len(text) - size, count))
            )
            if part is not None:
                return part
            size *= 4
        return text

    def _beginning(self, text: str, size: int, count: int) -> str | None:
        end = self._before(text, size)
        safe = self._before(text, end - self._margin)
        if safe <= 0:
            return None
        ends = [stop for _, stop in self._plain(text[:end]).offsets]
        sure = next((i for i, stop in enumerate(ends) if stop > safe), len(ends))
        return text[:end] if sure > count else None

    def _ending(self, text: str, begin: int, count: int) -> str | None:
        begin = self._after(text, begin)
        safe = self._after(text, begin + self._margin)
        if safe == len(text):
            return None
        starts = [begin + start for start, _ in reversed(self._plain(text[begin:]).offsets)]
        sure = next((i for i, start in enumerate(starts) if start < safe), len(starts))
        return text[begin:] if sure > count else None

    @property
    def keeps_words(self) -> bool:
        """True if pieces of a text also have its words."""
        return any(self._parts)

    def pieces(self, text: str) -> Iterator[tuple[Any, slice, int]]:
        """Yields (encoding of a part of the text, which of its tokens count, where the part begins
        in the text); the tokens that count are together those of the text, without special ones.
        """
        previous = begin = 0
        while begin < len(text):
            end = len(text)
            if self._boundary is not None and end - begin > 2 * PIECE:
                end = self._after(text, begin + PIECE)
            first = self._before(text, begin - self._margin) or previous
            last = self._after(text, end + self._margin) if end < len(text) else end
            encoding = self._plain(text[first:last])
            if begin == 0 and end == len(text):
                yield encoding, slice(0, len(encoding)), 0
                return
            starts = [first + start for start, _ in encoding.offsets]
            own = slice(
                bisect_left(starts, begin) if begin else 0,
                bisect_left(starts, end) if end < len(text) else len(starts),
            )
            yield encoding, own, first
            previous, begin = begin, end

    def count(self, text: str, most: int = sys.maxsize) -> int:
        """Counts the tokens of the text, without special ones, no further than beyond
        `most`."""
        found = 0
        for _, own, _ in self.pieces(text):
            found += own.stop - own.start
            if found > most:
                break
        return found
