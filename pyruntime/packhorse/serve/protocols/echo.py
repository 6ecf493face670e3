"""Prompts that answers repeat before what goes on after them."""

from __future__ import annotations

from packhorse.generation.results import Generation, TokenText
from packhorse.packing import Int32Array
from packhorse.serve.protocols.openai_writing import Tokens
from packhorse.text.generation.calls import TextGeneration

_ALL = 2**62  # characters


class Echo:
    """A prompt as an answer repeats it: `text`, and what its tokens add to that."""

    def __init__(
        self, generation: TextGeneration, ids: Int32Array, given: str | None, *, tokens: bool
    ) -> None:
        """given   the text of the prompt, where it came as one: tokens that stand for no text are a
        part of it where they are spelled out there
        tokens  whether they are asked for
        """
        self._ids: list[int] = ids.tolist()
        self._tokens: Tokens | None = None
        if given is not None and not tokens:
            self.text = given
            return
        self._texts = generation.token_texts(ids)
        self._own: list[TokenText] = []
        self.text = ""
        for number, token in enumerate(self._ids):
            own = self._texts.added(number, _ALL)
            name = generation.special_names.get(token)
            if name and given is not None and given.startswith(name, len(self.text)):
                own = TokenText(name, name.encode())
            self._own.append(own)
            self.text += own.text

    def tokens_of(self, generation: Generation) -> Tokens:
        """Tokens of the prompt, with the log-probabilities that came with one of the texts after
        it: all have the same."""
        if self._tokens is None:
            found = generation.prompt_logprobs
            assert found is not None
            top_texts = [
                [
                    self._own[i] if token == self._ids[i] else self._texts.would_add(i, token)
                    for token, _ in row
                ]
                for i, row in enumerate(found.top, 1)
            ]
            logprobs = [None, *found.logprobs]
            self._tokens = Tokens(
                self._ids, self._own, logprobs, [[], *found.top], [[], *top_texts]
            )
        return self._tokens
