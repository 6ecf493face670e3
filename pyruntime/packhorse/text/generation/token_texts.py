"""The part of a text that each token adds: the texts of all tokens, joined, are the text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from packhorse.generation.results import TokenText
from packhorse.text.generation.detokenizer import Detokenizer, TextStream


class TokenTexts:
    """The text of one sequence as it grows, and what each of its tokens adds to it.

    A token adds what would be given if the text ended with it, as far as later tokens leave that as
    it is: a character that several tokens make is the last one's.
    """

    def __init__(self, detokenizer: Detokenizer, before: Sequence[int] = ()) -> None:
        """`before`: tokens that the text goes on after."""
        self._detokenizer = detokenizer
        self._stream = detokenizer.stream(before)
        self._ids: list[int] = []
        self._text = ""  # the text so far as it is certain
        self._ends: list[int] = []  # where tokens end in it, the first ones of all
        self._guesses: list[tuple[int, str]] = []  # the others': (certain characters, more of them)
        # Streams before tokens to which it matters what came before; None for all others.
        self._befores: list[TextStream | None] = []
        self._any_before: TextStream | None = None  # one before a token to which it does not
        self._known: dict[int, TokenText] = {}  # texts that other tokens would add there

    def push(self, token: int) -> str:
        """The part of the text that becomes certain when one more token has come."""
        self._keep(token)
        piece = self._stream.push(token)
        self._text += piece
        self._guess()
        self._settle(ended=False)
        return piece

    def push_silent(self, token: int) -> None:
        """A token that ends the text, and adds nothing to it."""
        self._keep(token)
        self._guess()

    def finish(self, cut: bool = False) -> str:
        """The rest of the text, when nothing comes any more. `cut`: as of `TextStream.finish`."""
        rest = self._stream.finish(cut)
        self._text += rest
        self._settle(ended=True)
        return rest

    def _keep(self, token: int) -> None:
        self._ids.append(token)
        if self._text and not (self._guesses and self._guesses[-1][1]):
            self._any_before = self._any_before or self._stream.fork()
            self._befores.append(None)
        else:
            self._befores.append(self._stream.fork())

    def _guess(self) -> None:
        self._guesses.append((len(self._text), self._stream.fork().finish()))

    def _settle(self, *, ended: bool) -> None:
        settled = 0
        for begin, rest in self._guesses:
            if not ended and begin + len(rest) > len(self._text):
                break
            end = begin + shared(rest, self._text[begin : begin + len(rest)])
            self._ends.append(max(self._begin(len(self._ends)), end))
            settled += 1
        del self._guesses[:settled]

    def _begin(self, number: int) -> int:
        return self._ends[number - 1] if number else 0

    def stop(self) -> None:
        """The text has ended before its last token, as at a stop string."""
        self._settle(ended=True)

    def count(self, characters: int) -> int:
        """Counts the tokens that are certain and have all their text within so many characters."""
        return bisect_right(self._ends, characters)

    def added(self, number: int, characters: int) -> TokenText:
        """The part that a token adds to a text that has so many characters."""
        begin, end = self._begin(number), self._ends[number]
        text = self._text[begin : min(end, characters)]
        if end > characters:
            return TokenText(text, text.encode())
        data = self._detokenizer.bytes_of(self._ids[number])
        if data is None or (is_text(data) and "\ufffd" not in text):
            data = text.encode()
        return TokenText(text, data)

    def would_add(self, number: int, token: int) -> TokenText:
        """The part that another token would have added in the place of one. A part of a
        character, and a special token, are written out: they have no text."""
        before = self._befores[number]
        if before is not None:
            return self._after(before, token)
        assert self._any_before is not None
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._after(self._any_before, token)
        return found

    def _after(self, before: TextStream, token: int) -> TokenText:
        data = self._detokenizer.bytes_of(token)
        if data is not None and not is_text(data):
            return TokenText("bytes:" + "".join(f"\\x{byte:02x}" for byte in data), data)
        if self._detokenizer.token(token) is None:
            name = self._detokenizer.name(token)
            return TokenText(name, name.encode())
        with_token = before.fork()
        old, new = before.fork().finish(), with_token.push(token) + with_token.finish()
        text = new[shared(old, new) :]
        return TokenText(text, text.encode())


def shared(one: str, other: str) -> int:
    """Counts the characters that two texts begin with alike."""
    pairs = zip(one, other, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    return min(len(one), len(other)) if same is None else same


def is_text(data: bytes) -> bool:
    """True where bytes are whole characters of UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
