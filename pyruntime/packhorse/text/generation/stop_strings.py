"""Texts that end a generated text, wherever tokens and pieces are cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from packhorse.text.generation.token_decoding import held_back


class StopStrings:
    """Cuts a text before the first of some stop strings, or after it.

    include  whether the stop string is a part of the text

    The first one is that which is complete first; of two that are complete with the same character,
    the longer one. So it does not matter in which pieces the text comes. What may become a stop
    string is held back until it is certain that it does not.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._include = include
        self._stops = sorted(stops, key=len, reverse=True)
        self._held = ""
        self.found: str | None = None  # the stop string that the text has come to

    def push(self, piece: str) -> str:
        """Takes one more piece. Returns the text that is certain now: none after `found`."""
        if self.found is not None:
            return ""
        text = self._held + piece
        ends = [(text.find(stop) + len(stop), stop) for stop in self._stops if stop in text]
        if ends:
            end, self.found = min(ends, key=lambda one: one[0])
            self._held = ""
            return text[: end if self._include else end - len(self.found)]
        kept = max((held_back(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def finish(self) -> str:
        """The rest, when nothing comes any more."""
        held, self._held = self._held, ""
        return held


def check_stops(stop: str | Sequence[str] | None) -> list[str]:
    """The stop strings as a list. Raises ValueError for what is no stop string."""
    if stop is not None and not isinstance(stop, Iterable):
        raise ValueError(f"stop is {stop!r:.80}, expected a text or a list of texts")
    stops = [] if stop is None else [stop] if isinstance(stop, str) else list(stop)
    for i, text in enumerate(stops):
        if not isinstance(text, str) or not text:
            raise ValueError(f"stop[{i}] is {text!r:.80}, expected a text that is not empty")
    return stops
