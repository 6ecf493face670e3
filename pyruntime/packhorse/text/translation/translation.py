"""Translation and summaries: texts to texts, of any length, by a model with an encoder."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from packhorse.generation.results import FinishReason, Generation, Usage
from packhorse.packing import Int32Array
from packhorse.progress_bar import Progress, reporting
from packhorse.result import FloatArray
from packhorse.text.checks import as_texts, check_characters, check_text
from packhorse.text.generation.calls import TextGeneration
from packhorse.text.generation.generator import FOREVER, Prompt, TextStreaming, as_asked
from packhorse.text.generation.options import (
    RequestCall,
    RequestOptions,
    check_options,
)
from packhorse.text.generation.source_attention import SourceAttention
from packhorse.text.runner import TextRunner
from packhorse.text.translation.sentences import CutText, cut
from packhorse.text.translation.sources import Direction, SourceTokenizer

Split = Literal["long", "sentences", "never"]
SPLITS = ("long", "sentences", "never")


_TASK = re.compile(r"translation_(.+)_to_(.+)")  # names of T5's tasks


class LanguageSide(NamedTuple):
    """Languages that a call may name for one side of a translation.

    codes     as the model's files write them, sorted
    default   that of a call which names none; None: there is no such one
    required  whether a call must name one
    """

    codes: list[str]
    default: str | None
    required: bool


class Job(NamedTuple):
    """One text of a call, in parts, and the prompts of these."""

    text: CutText
    prompts: list[Prompt]


class TextToText:
    """A model with an encoder and a decoder, for any number of threads."""

    def __init__(self, generation: TextGeneration, runner: TextRunner) -> None:
        assert generation.sources is not None
        self._generation = generation
        self._sources: SourceTokenizer = generation.sources
        self._runner = runner

    def translation(
        self,
        source: str | None,
        target: str | None,
        *,
        n: int = 1,
        target_prefix: str = "",
        split: Split = "long",
        options: Mapping[str, Any],
    ) -> Conversion:
        """A translation into `target`. Models that are told no languages, as T5, have a task for
        each pair of them that they were trained with."""
        for name, code in (("source", source), ("target", target)):
            if code is not None and not isinstance(code, str):
                raise ValueError(
                    f"{name} is {code!r:.80}, expected the code of a language, or None"
                )
        sources = self._sources
        if sources.names is not None:
            direction = sources.direction(source, target)
            return self._conversion(
                "translate", direction, "", {}, n, target_prefix, split, options
            )
        begin, defaults = "", dict[str, Any]()
        if source is not None or target is not None:
            begin, defaults = self._task(source, target)
        direction = sources.direction(None, None)
        return self._conversion(
            "translate", direction, begin, defaults, n, target_prefix, split, options
        )

    def languages(self) -> tuple[LanguageSide, LanguageSide]:
        """Source and target languages. A model of one direction has those that its files name."""
        found = self._sources.sides()
        if found is not None:
            own, names = found
            many = sorted(names.ids)
            source = many if own.of_source is not None else _known(own.source)
            return (
                LanguageSide(source, own.source, False),
                LanguageSide(
                    many or _known(own.target), own.target, bool(many) and own.target is None
                ),
            )
        pairs = [_TASK.fullmatch(name) for name in self._generation.files.tasks]
        sides = zip(*(pair.groups() for pair in pairs if pair is not None), strict=True)
        source, target = [sorted(set(side)) for side in sides] or ([], [])
        return LanguageSide(source, None, False), LanguageSide(target, None, False)

    def summary(
        self, *, n: int = 1, split: Split = "long", options: Mapping[str, Any]
    ) -> Conversion:
        """A summary, with what the model's files say about that task."""
        begin, defaults = self._generation.files.task_settings("summarization")
        direction = self._sources.direction(None, None, aims=False)
        return self._conversion("summarize", direction, begin, defaults, n, "", split, options)

    def _task(self, source: str | None, target: str | None) -> tuple[str, dict[str, Any]]:
        tasks = self._generation.files.tasks
        codes = f"{source}_to_{target}".lower()
        name = next((one for one in tasks if one.lower() == f"translation_{codes}"), None)
        if name is None or source is None or target is None:
            known = ", ".join(sorted(one for one in tasks if one.startswith("translation")))
            raise ValueError(
                f"source is {source!r:.40} and target {target!r:.40}, but this model is told no "
                f"languages, and its files name no such task (they have "
                f"{known or 'none of translation'}): begin the text with what the model was "
                'trained with, such as "translate English to German: "'
            )
        return self._generation.files.task_settings(name)

    def _conversion(
        self,
        method: str,
        direction: Direction,
        begin: str,
        defaults: Mapping[str, Any],
        n: int,
        target_prefix: str,
        split: Split,
        options: Mapping[str, Any],
    ) -> Conversion:
        if "use_vmap" in options:
            raise ValueError(
                "use_vmap: maps of vocabularies (vmap.txt of CTranslate2) are not read, all tokens "
                "compete; leave it out, or name the tokens that may be chosen by allowed_ids"
            )
        options = dict(options)
        attention = self._generation.take_attention(options)
        check_options(method, options, RequestCall)
        if split not in SPLITS:
            raise ValueError(f"split {split!r:.80} is not one of {', '.join(SPLITS)}")
        if not isinstance(target_prefix, str):
            raise ValueError(f"target_prefix is {target_prefix!r:.80}, expected a text")
        check_characters(target_prefix, "target_prefix")
        return Conversion(
            self._generation,
            self._runner,
            self._sources,
            direction,
            begin,
            dict(defaults),
            n,
            target_prefix,
            split,
            options,
            attention,
        )


def _known(code: str | None) -> list[str]:
    return [] if code is None else [code]


class Conversion:
    """One way of turning texts into others, with its options."""

    def __init__(
        self,
        generation: TextGeneration,
        runner: TextRunner,
        sources: SourceTokenizer,
        direction: Direction,
        begin: str,
        defaults: dict[str, Any],
        n: int,
        target_prefix: str,
        split: Split,
        options: dict[str, Any],
        attention: SourceAttention | None = None,
    ) -> None:
        """`begin`: comes before each part of a text. `defaults`: before those of the model.
        `attention`: what results tell of the weights by which their tokens attend."""
        self._attention = attention
        self._generation, self._sources, self._direction = generation, sources, direction
        self._begin, self._split, self._prefix = begin, split, target_prefix
        self.n = n
        self._options = options
        if direction.target.first is not None and not target_prefix:
            options.setdefault("forced_bos_token_id", direction.target.first)
        self._defaults = {**generation.defaults, **defaults}
        self._start = self._first_ids()
        longest = min(runner.max_length, generation.most_tokens)
        self._room = longest - direction.before.size - direction.after.size
        if self._room < 1:
            raise ValueError(f"max_length {longest} leaves no room beside the tokens around a text")
        self._begin_size = self._count([begin])[0] if begin else 0
        self.asked = self.request_options(n)

    def request_options(self, n: int, *, beams: bool = True) -> RequestOptions:
        """Options of the requests. beams: False: files that ask for beam search are not heeded."""
        defaults, options = self._defaults, self._options
        if not beams:
            defaults = {**defaults, "num_beams": 1}
        length = self._generation.default_length({**defaults, **options})
        if {"max_new_tokens", "max_length"} & defaults.keys():
            length = None
        return self._generation.options(n, options, length, defaults)

    def _first_ids(self) -> Int32Array:
        """Tokens with which the decoder begins."""
        begins = self._generation.prompt("", np.empty(0, np.int32)).ids
        target = self._direction.target
        ids = [int(begins[0]) if target.start is None else target.start]
        if not self._prefix:
            return np.array(ids, np.int32)
        ids += [] if target.first is None else [target.first]
        return np.array([*ids, *self._sources.pieces([self._prefix], target=True)[0]], np.int32)

    def _count(self, texts: Sequence[str]) -> list[int]:
        return [row.size for row in self._sources.pieces(texts)]

    def job(self, text: Any, number: int, name: str) -> Job:
        """A text cut into parts, and their prompts. Raises ValueError naming the text."""
        check_text(text, number, "", False)
        if self._split == "never" or self._prefix:
            parts = CutText([text], ["", ""]) if text.strip() else CutText([], [text])
        else:
            room = max(1, self._room - self._begin_size)
            parts = cut(text, room, self._count, each=self._split == "sentences")
        texts = [self._begin + part for part in parts.parts]
        rows = self._sources.encode(texts, self._direction, first=number)
        return Job(parts, [Prompt(name, self._start, row) for row in rows])

    def run(self, texts: str | Iterable[str], details: bool, progress: Progress | None) -> Any:
        """The texts that these become, in order; of one text, its own."""
        attention = self._attention
        if attention is not None:
            attention.require_details(details)
        chosen = as_texts(texts)
        jobs = [self.job(text, i, f"texts[{i}]") for i, text in enumerate(chosen)]
        prompts = [prompt for job in jobs for prompt in job.prompts]
        with reporting(progress) as report:
            continues = bool(self._prefix)
            if attention is None:
                found = self._generation.run(
                    prompts, self.asked, report, len(prompts), continues=continues
                )
            else:
                found = self._generation.run_attended(
                    prompts, self.asked, report, attention, continues=continues
                )
        results = []
        at = 0
        for job in jobs:
            made = self.joined(job, found[at : at + len(job.prompts)])
            results.append(as_asked(made, self.n, details))
            at += len(job.prompts)
        return results[0] if isinstance(texts, str) else results

    def joined(self, job: Job, made: Sequence[Sequence[Generation]]) -> list[Generation]:
        """The results of a text's parts as those of the text, `n` of them."""
        if not made:
            return [self._of_nothing(job.text)] * self.n
        return [join_parts(job.text, [one[i] for one in made], self._prefix) for i in range(self.n)]

    def _of_nothing(self, text: CutText) -> Generation:
        """The result of a text that is white space alone: it has all that was asked for."""
        attends = self._attention is not None
        count = self.asked.logprobs
        return replace(
            join_parts(text, []),
            logprobs=None if count is None else [],
            top_logprobs=[] if count else None,
            attention=np.empty((0, 0), np.float32) if attends else None,
            source_ids=[] if attends else None,
        )

    def stream(self, text: Any, timeout_s: float = FOREVER) -> PartsStreaming:
        """The pieces of one text as they come. Raises ValueError."""
        if self._attention is not None:
            self._attention.refuse_stream()
        if not isinstance(text, str):
            raise ValueError(f"stream=True takes one text, found {text!r:.80}")
        asked = self.request_options(1, beams=False)
        if asked.num_beams > 1:
            raise ValueError("stream=True gives a text as it comes: num_beams must be 1")
        job = self.job(text, 0, "text")
        streams: list[TextStreaming] = []
        try:
            for prompt in job.prompts:
                streams.append(
                    self._generation.stream_of(prompt, asked, bool(self._prefix), timeout_s)
                )
        except BaseException:
            for one in streams:
                one.close()
            raise
        return PartsStreaming(job.text, streams, self._prefix)


def join_parts(text: CutText, made: Sequence[Generation], prefix: str = "") -> Generation:
    """The results of a text's parts as one. Its finish_reason is that of the first part that did
    not end by itself; a score is that of all tokens only where there is one part."""
    whole = text.join([prefix + one.text for one in made])
    if len(made) == 1:
        return replace(made[0], text=whole)
    usage = Usage(
        *(
            sum(getattr(one.usage, name) for one in made)
            for name in (
                "prompt_tokens",
                "cached_prompt_tokens",
                "new_tokens",
                "drafted_tokens",
                "accepted_tokens",
            )
        )
    )
    reason: FinishReason = next(
        (one.finish_reason for one in made if one.finish_reason != "stop"), "stop"
    )
    return Generation(
        ids=[token for one in made for token in one.ids],
        finish_reason=reason,
        logprobs=_all(made, "logprobs"),
        top_logprobs=_all(made, "top_logprobs"),
        score=sum((one.score for one in made), 0.0),
        prompt_logprobs=None,
        usage=usage,
        text=whole,
        attention=_blocks([one.attention for one in made]),
        source_ids=_all(made, "source_ids"),
    )


def _blocks(made: Sequence[FloatArray | None]) -> FloatArray | None:
    """Matrices of parts, each of which has rows and columns of its own, as one."""
    parts = [one for one in made if one is not None]
    if not parts or len(parts) < len(made):
        return None
    whole = np.zeros(tuple(map(sum, zip(*(one.shape for one in parts), strict=True))), np.float32)
    row = column = 0
    for one in parts:
        whole[row : row + one.shape[0], column : column + one.shape[1]] = one
        row, column = row + one.shape[0], column + one.shape[1]
    return whole


def _all(made: Sequence[Generation], name: str) -> list[Any] | None:
    """The entries of all parts; None where parts have none."""
    rows = [getattr(one, name) for one in made]
    if not rows or any(row is None for row in rows):
        return None
    return [entry for row in rows for entry in row]


class PartsStreaming(Iterator[str]):
    """The pieces of one text as they come, part by part, which are computed side by side.

    When it has ended, `result` is the `Generation`. `close`, or the end of a `with` block, cancels
    what still runs.
    """

    def __init__(self, text: CutText, streams: list[TextStreaming], prefix: str) -> None:
        self._text, self._streams, self._prefix = text, streams, prefix
        self._at = 0  # the part that is read
        self._waiting = [one for one in (text.between[0] + prefix * bool(streams),) if one]

    def __iter__(self) -> PartsStreaming:
        return self

    def __next__(self) -> str:
        while not self._waiting and self._at < len(self._streams):
            try:
                return next(self._streams[self._at])
            except StopIteration:
                self._end_part()
            except BaseException:
                self.close()
                raise
        if self._waiting:
            return self._waiting.pop(0)
        raise StopIteration

    def _end_part(self) -> None:
        self._at += 1
        space = self._text.between[self._at]
        if space:
            self._waiting.append(space)

    async def pieces(self) -> AsyncIterator[str]:
        """Yields the pieces for `async for`; the event loop runs meanwhile."""
        try:
            while self._waiting:
                yield self._waiting.pop(0)
            while self._at < len(self._streams):
                async for piece in self._streams[self._at].pieces():
                    yield piece
                self._end_part()
                while self._waiting:
                    yield self._waiting.pop(0)
        finally:
            self.close()

    @property
    def result(self) -> Generation:
        """The text and its tokens, when it has ended. Raises RuntimeError before."""
        return join_parts(self._text, [one.result for one in self._streams], self._prefix)

    def close(self) -> None:
        """Cancels the parts that have not ended."""
        for one in self._streams:
            one.close()

    def __enter__(self) -> PartsStreaming:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
