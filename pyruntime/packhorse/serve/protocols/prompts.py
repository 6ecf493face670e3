"""Prompts of OpenAI's routes: how they become tokens, and whether answers repeat them."""

from __future__ import annotations

from functools import partial

import numpy as np

from packhorse.packing import Int32Array
from packhorse.serve.http.checks import Fields, are_ids, check_count
from packhorse.serve.models.generating import Prompt
from packhorse.serve.models.model import ServedModel
from packhorse.serve.protocols.cut import tokens_kept
from packhorse.serve.protocols.echo import Echo
from packhorse.serve.protocols.openai_options import Asked
from packhorse.text.generation.calls import TextGeneration


class PromptReader:
    """Makes the tokens of prompts, as a request says.

    context  most tokens of a prompt and the text after it
    """

    def __init__(self, fields: Fields, model: ServedModel, asked: Asked, *, special: bool) -> None:
        """`special`: whether the tokenizer's own special tokens are put around texts, where the
        request does not say."""
        self._special = fields.flag("add_special_tokens", special)
        self.context: int = model.engines[0].generation.most_tokens
        kept = tokens_kept(fields, "truncate_prompt_tokens", self.context)
        if (
            kept == self.context and model.engines[0].generation.continues
        ):  # there is to be room for the text that is asked for
            kept = max(1, kept - (asked.options.get("max_new_tokens") or 1))
        self._kept = kept

    def read(self, generation: TextGeneration, text: str, number: int) -> Int32Array:
        """`number`: of the prompt, for messages."""
        if self._kept is None:
            generation.refuse_longer(text, f"prompt[{number}]" if self._special else "messages")
        if self._special:
            return self.cut(generation.prompt_ids(text, number))
        return self.cut(generation.plain_ids(text))

    def cut(self, ids: Int32Array) -> Int32Array:
        """The last tokens, as many as are kept."""
        return ids if self._kept is None else ids[-self._kept :]


class Prompts:
    """The prompts of a request: a text, several, the ids of one, or those of several.

    echoed  of each prompt, where answers are to repeat it, when its tokens have been made
    """

    def __init__(
        self, fields: Fields, most: int, reader: PromptReader, *, echo: bool, logprobs: bool
    ) -> None:
        self._reader = reader
        self._echo, self._logprobs = echo, logprobs
        value = fields.get("prompt")
        if isinstance(value, str) or (isinstance(value, list) and value and are_ids(value)):
            value = [value]
        if not isinstance(value, list) or not all(map(_is_prompt, value)):
            fields.wrong("prompt", "a text, a list of texts, ids, or a list of lists of ids")
        check_count("prompt", len(value), most)
        self._given: list[str | list[int]] = value
        self.echoed: list[Echo | None] = [None] * len(value)

    def all(self) -> list[Prompt]:
        count = len(self._given)
        return [Prompt(partial(self._ids, i), f"prompt[{i}]", True) for i in range(count)]

    def _ids(self, number: int, generation: TextGeneration) -> Int32Array:
        given = self._given[number]
        if isinstance(given, str):
            ids = self._reader.read(generation, given, number)
        else:
            ids = self._reader.cut(np.array(given, np.int32))
        if self._echo and ids.size <= self._reader.context:  # a longer one is refused
            text = given if isinstance(given, str) else None
            self.echoed[number] = Echo(generation, ids, text, tokens=self._logprobs)
        return ids


def _is_prompt(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and are_ids(value))
