"""Tokens to text, piece by piece: the pieces, joined, are the text of all tokens.

`tokenizers.decoders.DecodeStream` does not promise that: of <0x41> <0x80> it gives "A", raises for
the token after it, since the text of both bytes is two U+FFFD, and never gives a last incomplete
character, for it has no end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, Protocol

from packhorse.text.checks import errors_of_tokenizers
from packhorse.text.generation.token_decoding import (
    Replacement,
    Step,
    bytes_of_tokens,
    drop_incomplete,
    make_steps,
)

# Ending with a space before it -> the ending alone, as transformers cleans up a text.
CLEANED_UP = {
    " .": ".",
    " ?": "?",
    " !": "!",
    " ,": ",",
    " ' ": "'",
    " n't": "n't",
    " 'm": "'m",
    " 's": "'s",
    " 've": "'ve",
    " 're": "'re",
}

_CONTEXT = 16  # tokens before the first one of a stream that may change its text


class TextStream(Protocol):
    """The text of one sequence, as it grows."""

    def push(self, token: int) -> str:
        """Takes one more token. Returns the text that is certain now."""
        ...

    def finish(self, cut: bool = False) -> str:
        """The rest, when nothing comes any more. `cut`: the text was ended from outside, so that
        its last character may lack bytes; it is left out then."""
        ...

    def fork(self) -> TextStream:
        """A stream that goes on from here by itself."""
        ...


class Detokenizer:
    """Makes streams of text for one tokenizer, of the package tokenizers.

    clean_up  whether spaces before punctuation are taken out, as transformers does where
              tokenizer_config.json says `clean_up_tokenization_spaces`
    """

    def __init__(self, tokenizer: Any, *, clean_up: bool = False) -> None:
        self._tokenizer = tokenizer
        self._clean_up = clean_up
        decoder = tokenizer.decoder
        self._decoder = None if decoder is None else json.loads(decoder.__getstate__())
        added = tokenizer.get_added_tokens_decoder()
        self._showing: dict[frozenset[str], Detokenizer] = {}
        self._special = {token.content for token in added.values() if token.special}
        self._tokens: dict[int, str | None] = {}
        self._bytes_of = bytes_of_tokens(self._decoder)

    def showing(self, special: frozenset[str]) -> Detokenizer:
        """One that gives the texts of some special tokens, too. A decoder that gives texts as a
        whole gives none."""
        if not special:
            return self
        if special not in self._showing:
            made = copy(self)
            made._special, made._tokens = self._special - special, {}
            self._showing[special] = made
        return self._showing[special]

    def token(self, token_id: int) -> str | None:
        """The entry of the vocabulary; None where it stands for no text."""
        if token_id not in self._tokens:
            token = self._tokenizer.id_to_token(token_id)
            self._tokens[token_id] = None if token in self._special else token
        return self._tokens[token_id]

    def name(self, token_id: int) -> str:
        """The entry of the vocabulary, also of a special token; "" where there is none."""
        return self._tokenizer.id_to_token(token_id) or ""

    def bytes_of(self, token_id: int) -> bytes | None:
        """The bytes of a token that stands for some, rather than for text."""
        token = self.token(token_id)
        return None if token is None else self._bytes_of(token)

    def stream(self, before: Sequence[int] = ()) -> TextStream:
        """A stream for tokens that come after those of `before`, whose text it does not give."""
        known = [token for token in before if self.token(token) is not None][-_CONTEXT:]
        stream = self._stream(known)
        if stream is None:
            return _Whole(self, list(before))
        # Text before that is not certain yet would be given with the first tokens after it.
        ends = self._stream(known)
        return stream if ends is None else _Without(stream, len(ends.finish()))

    def _stream(self, before: Iterable[int]) -> _Stream | None:
        steps = make_steps(self._decoder)
        if steps is None:
            return None
        if self._clean_up:
            steps += [Replacement(old, new) for old, new in CLEANED_UP.items()]
        stream = _Stream(self, steps)
        for token in before:
            stream.push(token)
        return stream

    def decode(self, ids: Sequence[int]) -> str:
        """The text of all tokens."""
        with errors_of_tokenizers("token ids"):
            text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        for old, new in CLEANED_UP.items() if self._clean_up else ():
            text = text.replace(old, new)
        return text


class _Stream:
    """A chain of steps."""

    def __init__(self, detokenizer: Detokenizer, steps: Sequence[Step]) -> None:
        self._token = detokenizer.token
        self._steps = steps

    def push(self, token: int) -> str:
        text = self._token(token)
        return "" if text is None else self._through([text], 0)

    def _through(self, texts: Iterable[str], first: int) -> str:
        for step in self._steps[first:]:
            texts = [made for text in texts for made in step.push(text)]
        return "".join(texts)

    def finish(self, cut: bool = False) -> str:
        rest = []
        for i, step in enumerate(self._steps):
            if cut:
                drop_incomplete(step)
            rest.append(self._through(step.finish(), i + 1))
        return "".join(rest)

    def fork(self) -> _Stream:
        made = copy(self)
        made._steps = [copy(step) for step in self._steps]
        return made


class _Without:
    """A stream without its first characters."""

    def __init__(self, stream: _Stream, count: int) -> None:
        self._stream, self._left = stream, count

    def _cut(self, text: str) -> str:
        cut = min(self._left, len(text))
        self._left -= cut
        return text[cut:]

    def push(self, token: int) -> str:
        return self._cut(self._stream.push(token))

    def finish(self, cut: bool = False) -> str:
        return self._cut(self._stream.finish(cut))

    def fork(self) -> _Without:
        return _Without(self._stream.fork(), self._left)


class _Whole:
    """Text of a sequence for decoders of which nothing is certain before the end."""

    def __init__(self, detokenizer: Detokenizer, before: list[int]) -> None:
        self._detokenizer = detokenizer
        self._before = before
        self._ids: list[int] = []

    def push(self, token: int) -> str:
        self._ids.append(token)
        return ""

    def finish(self, cut: bool = False) -> str:
        known = self._detokenizer.decode(self._before)
        text = self._detokenizer.decode([*self._before, *self._ids])[len(known) :]
        return text.rstrip("\ufffd") if cut else text

    def fork(self) -> _Whole:
        made = _Whole(self._detokenizer, self._before)
        made._ids = list(self._ids)
        return made
