"""The decoders of the package tokenizers, as steps that take tokens one by one.

A tokenizer's decoder is a chain: each step makes a list of strings of a list of strings, and the
last list is joined. A step here gives what it makes of the strings so far as soon as nothing that
comes later can change it, so that the texts of all calls, joined, are what the chain makes of all.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tokenizers.decoders import Decoder

_BYTES = {f"<0x{i:02X}>": i for i in range(256)} | {f"<0x{i:02x}>": i for i in range(256)}
_BY_TOKEN = ("Replace", "Strip", "Metaspace", "WordPiece")


class Step(Protocol):
    """One step of a chain. A shallow copy goes on by itself."""

    def push(self, text: str) -> Sequence[str]:
        """Takes one more string. Returns the strings that are certain now."""
        ...

    def finish(self) -> Sequence[str]:
        """The rest, when nothing comes any more."""
        ...


def drop_incomplete(step: Step) -> None:
    """Forgets a character of which some bytes are missing at the end."""
    if isinstance(step, _Bytes | _ByteLevel):
        step.drop_incomplete()


class _ByToken:
    """A step that looks at a string by itself, and at whether it is the first one."""

    def __init__(self, step: Mapping[str, Any]) -> None:
        self._decoder = _decoder(step)
        self._first = True
        self._known: dict[str, str] = {}

    def push(self, text: str) -> Sequence[str]:
        if self._first:
            self._first = False
            return (self._decoder.decode([text]),)
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self._decoder.decode(["", text])
        return (found,)

    def finish(self) -> Sequence[str]:
        return ()


class _Bytes:
    """ByteFallback: a run of tokens such as <0xE4> is the text of these bytes or, where all of it
    is none, as many U+FFFD. Nothing is certain of a run before it ends."""

    def __init__(self) -> None:
        self._run = b""

    def push(self, text: str) -> Sequence[str]:
        byte = _BYTES.get(text)
        if byte is not None:
            self._run += bytes([byte])
            return ()
        return (*self.finish(), text)

    def finish(self) -> Sequence[str]:
        run, self._run = self._run, b""
        try:
            return (run.decode(),) if run else ()
        except UnicodeDecodeError:
            return ("\ufffd",) * len(run)

    def drop_incomplete(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        decoder.decode(self._run)
        missing, _ = decoder.getstate()
        self._run = self._run[: len(self._run) - len(missing)]


class _EndsOfWords:
    """BPEDecoder: what marks the end of a word becomes a space, except in the last token."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._last: str | None = None

    def push(self, text: str) -> Sequence[str]:
        last, self._last = self._last, text
        return () if last is None else (last.replace(self._suffix, " "),)

    def finish(self) -> Sequence[str]:
        return () if self._last is None else (self._last.replace(self._suffix, ""),)


class _Spaces:
    """Puts a space between tokens, for a tokenizer without a decoder."""

    def __init__(self) -> None:
        self._first = True

    def push(self, text: str) -> Sequence[str]:
        first, self._first = self._first, False
        return (text if first else f" {text}",)

    def finish(self) -> Sequence[str]:
        return ()


def _byte_characters() -> dict[str, int]:
    """The characters that byte-level vocabularies write bytes as (Radford et al., GPT-2, 2019):
    printable Latin-1 stands for itself, the others are counted from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    found = {chr(byte): byte for byte in printable}
    return found | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_characters()


class _ByteLevel:
    """All tokens are the bytes of one text. A token with a character that stands for no byte is
    itself."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def __copy__(self) -> _ByteLevel:
        made = _ByteLevel()
        made._decoder.setstate(self._decoder.getstate())
        return made

    def push(self, text: str) -> Sequence[str]:
        return (self._decoder.decode(_byte_level(text)),)

    def finish(self) -> Sequence[str]:
        return (self._decoder.decode(b"", final=True),)

    def drop_incomplete(self) -> None:
        self._decoder.reset()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()


def bytes_of_tokens(decoder: Mapping[str, Any] | None) -> Callable[[str], bytes | None]:
    """A function that gives the bytes of an entry of the vocabulary which stands for bytes; None
    for one that stands for text, by what `decoder` of a tokenizer.json says."""
    kinds = [] if decoder is None else [step["type"] for step in chain_of(decoder)]
    if "ByteLevel" in kinds:
        return _byte_level
    if "ByteFallback" in kinds:
        return lambda token: bytes([_BYTES[token]]) if token in _BYTES else None
    return lambda _token: None


class Replacement:
    """Every `old` of a text becomes `new`, wherever the text is cut."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new
        self._held = ""

    def push(self, text: str) -> Sequence[str]:
        *done, rest = (self._held + text).split(self._old)
        kept = held_back(rest, self._old)
        self._held = rest[len(rest) - kept :]
        return (self._new.join([*done, rest[: len(rest) - kept]]),)

    def finish(self) -> Sequence[str]:
        held, self._held = self._held, ""
        return (held,)


def held_back(text: str, pattern: str) -> int:
    """Number of characters at the end of `text` that may begin a `pattern` that is not all
    there."""
    for size in range(min(len(text), len(pattern) - 1), 0, -1):
        if text.endswith(pattern[:size]):
            return size
    return 0


class _LeftStrip:
    """Up to `count` times `character` is taken off the beginning of a text."""

    def __init__(self, character: str, count: int) -> None:
        self._character, self._left = character, count

    def push(self, text: str) -> Sequence[str]:
        while self._left and text:
            if text[0] != self._character:
                self._left = 0
                break
            text, self._left = text[1:], self._left - 1
        return (text,)

    def finish(self) -> Sequence[str]:
        return ()


def _decoder(step: Mapping[str, Any]) -> Decoder:
    from tokenizers import Tokenizer

    model = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    made = Tokenizer.from_str(json.dumps({"version": "1.0", "model": model, "decoder": step}))
    decoder: Decoder = made.decoder
    return decoder


def _is_text(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.get("String"))


def chain_of(decoder: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The steps of a decoder, one by one."""
    found: Sequence[Mapping[str, Any]] = decoder.get("decoders", (decoder,))
    return found


def make_steps(decoder: Mapping[str, Any] | None) -> list[Step] | None:
    """Fresh steps for `decoder` of a tokenizer.json; None where it has one that cannot say anything
    before the end, or is not known."""
    if decoder is None:
        return [_Spaces()]
    steps: list[Step] = []
    joined = False  # whether what comes is one text, rather than a list of tokens
    for step in chain_of(decoder):
        kind = step["type"]
        if kind == "Fuse":
            joined = True
        elif joined and kind == "Replace" and _is_text(step["pattern"]):
            steps.append(Replacement(step["pattern"]["String"], step["content"]))
        elif joined and kind == "Strip" and step["stop"] == 0:
            steps.append(_LeftStrip(step["content"], step["start"]))
        elif joined:
            return None
        elif kind in _BY_TOKEN and not (kind == "Strip" and step["stop"]):
            steps.append(_ByToken(step))
        elif kind == "ByteFallback":
            steps.append(_Bytes())
        elif kind == "BPEDecoder":
            steps.append(_EndsOfWords(step["suffix"]))
        elif kind == "ByteLevel":
            steps.append(_ByteLevel())
            joined = True
        else:
            return None
    return steps
