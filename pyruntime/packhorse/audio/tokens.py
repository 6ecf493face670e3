"""Tokens of models of speech: text, times, and those that say what is wanted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from packhorse.generation.sampling import TimestampRules

TASKS = ("transcribe", "translate")
SECONDS_PER_STEP = 0.02  # between tokens of time
# Marks that belong to the word behind them, and before them.
PREPENDED = "\"'“¿([{-"
APPENDED = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001
_MULTILINGUAL_VOCABULARY = 51865  # smallest vocabulary of a model that knows languages
# Signs that mark what is no speech, in brackets or by themselves. Those of several characters count
# where they are a single token.
_MARKS = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))"),
    *("(((", ")))", "[[", "]]", "{{", "}}", "♪♪", "♪♪♪"),
)
_NOTES = "♩♪♫♬♭♮♯"  # alike in their first token, which stands for all


class SpeechTokens:
    """Reads numbers of tokens from a tokenizer of the package `tokenizers`.

    vocab_size: entries of the model's table. multilingual: whether it knows languages; None: as
    follows from vocab_size. Raises ValueError for a tokenizer without the tokens of speech.
    """

    def __init__(
        self, tokenizer: Any, vocab_size: int, where: str, multilingual: bool | None = None
    ) -> None:
        self._tokenizer, self._where = tokenizer, where
        large = vocab_size >= _MULTILINGUAL_VOCABULARY
        self.multilingual = large if multilingual is None else multilingual
        self.end = self._required("<|endoftext|>")
        self.start = self._required("<|startoftranscript|>")
        self.start_of_previous = self._required("<|startofprev|>")
        self.no_timestamps = self._required("<|notimestamps|>")
        self.no_speech = self._first("<|nospeech|>", "<|nocaptions|>")
        self.tasks = {task: self._required(f"<|{task}|>") for task in TASKS}
        self.first_time = self.no_timestamps + 1
        self.vocab_size = vocab_size
        start_of_lm = tokenizer.token_to_id("<|startoflm|>")
        self.special = sorted(
            {
                *self.tasks.values(),
                self.start,
                self.start_of_previous,
                self.no_speech,
                *(() if start_of_lm is None else (start_of_lm,)),
            }
        )
        first_task = min(self.tasks.values())
        self.languages: dict[str, int] = {}
        if self.multilingual:
            for token in range(self.start + 1, first_task):
                name = tokenizer.id_to_token(token)
                if name is not None and name.startswith("<|") and name.endswith("|>"):
                    self.languages[name[2:-2]] = token

    def _required(self, name: str) -> int:
        token = self._tokenizer.token_to_id(name)
        if token is None:
            raise ValueError(f"{self._where}: the tokenizer has no {name}: it is none of speech")
        return int(token)

    def _first(self, *names: str) -> int:
        found = (self._tokenizer.token_to_id(name) for name in names)
        token = next((token for token in found if token is not None), None)
        return self._required(names[0]) if token is None else int(token)

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, without special ones."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens, of which those of time and special ones are left out."""
        return str(self._tokenizer.decode([token for token in tokens if token < self.end]))

    def sequence(self, language: str, task: str, timestamps: bool) -> list[int]:
        """Tokens that say what is wanted."""
        found = [self.start]
        if self.multilingual:
            found += [self.languages[language], self.tasks[task]]
        return found if timestamps else [*found, self.no_timestamps]

    def no_speech_marks(self) -> list[int]:
        """Tokens that stand for sounds and speakers, and hardly for words that were spoken."""
        # A hyphen and an apostrophe may stand within words, but not before one.
        found = {self.encode(" -")[0], self.encode(" '")[0]}
        for mark in (*_MARKS, *_NOTES):
            for tokens in (self.encode(mark), self.encode(f" {mark}")):
                if len(tokens) == 1 or mark in _NOTES:
                    found.add(tokens[0])
        return sorted(found)

    def suppressed(self, asked: Sequence[int]) -> list[int]:
        """Tokens that are never written: -1 stands for `no_speech_marks`."""
        marks = self.no_speech_marks() if -1 in asked else []
        given = {token for token in asked if token >= 0}
        return sorted({*given, *marks, *self.special})

    def rules(self, max_initial: float | None) -> TimestampRules:
        """The order of tokens of time. max_initial: seconds up to which the first may go."""
        steps = None if max_initial is None else round(max_initial / SECONDS_PER_STEP)
        return TimestampRules(
            begin=self.first_time,
            end_of_text=self.end,
            no_timestamps=self.no_timestamps,
            max_initial=steps,
        )
