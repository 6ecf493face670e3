"""Texts that go on: what becomes of the prompts and conversations of one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from packhorse.generation.results import Generation
from packhorse.generation.session import GenerationSession
from packhorse.packing import Int32Array
from packhorse.progress_bar import reporting
from packhorse.text.checks import as_texts, check_ids, check_text
from packhorse.text.generation.chat_template import ChatTemplates, Message
from packhorse.text.generation.detokenizer import Detokenizer
from packhorse.text.generation.generator import (
    FOREVER,
    Generator,
    Prompt,
    TextRequest,
    TextStreaming,
    as_asked,
)
from packhorse.text.generation.options import (
    CHAT_OPTIONS,
    FORMS,
    ChatCall,
    GenerateCall,
    RequestOptions,
    check_flag,
    check_options,
)
from packhorse.text.generation.source_attention import SourceAttention, take_attention
from packhorse.text.generation.structured import Grammars
from packhorse.text.generation.token_texts import TokenTexts
from packhorse.text.generation.tool_use import ToolChoice, ToolUse
from packhorse.text.runner import TextRunner
from packhorse.text.translation.sources import SourceTokenizer

if TYPE_CHECKING:
    from packhorse_weights.generation_files import GenerationFiles

Conversation = Sequence[Message]
# The limit of a text that neither the caller nor the model's files limit.
DEFAULT_NEW_TOKENS = 256


class TextGeneration:
    """A model that generates and what its files say, for any number of threads."""

    def __init__(self, runner: TextRunner, files: GenerationFiles) -> None:
        """`runner` has a `GenerationSession`."""
        session, tokenizer = runner.session, runner.tokenizer
        assert isinstance(session, GenerationSession)
        self._made_of = (runner, files)
        self._session, self._tokenizer = session, tokenizer
        self._vocab_size = session.vocab_size
        self._defaults = _in_vocabulary(files.defaults, session.vocab_size)
        # Tokens of the longest prompt; of a model with an encoder, of the longest source.
        self.most_tokens = session.max_source_tokens or session.max_context
        self.files = files
        self.sources = SourceTokenizer(tokenizer) if session.max_source_tokens else None
        self._begins = None if self.sources is None else _beginning(files)
        clean_up = tokenizer.config.cleans_up(tokenizer.kind)
        self._generator = Generator(session, Detokenizer(tokenizer.backend, clean_up=clean_up))
        # Special tokens, and how they are written.
        self.special_names = {i: tokenizer.token_of(i) for i in tokenizer.special_ids}
        self._grammars = Grammars(tokenizer, session.vocab_size, session.eos_ids)
        try:
            self.options(1, {})
        except ValueError as error:
            raise ValueError(f"the model's generation_config.json: {error}") from None
        self.templates = ChatTemplates(files.chat_templates, files.special_tokens)

    def __reduce__(self) -> tuple[type[TextGeneration], tuple[TextRunner, GenerationFiles]]:
        return type(self), self._made_of

    def __copy__(self) -> TextGeneration:
        return self

    def __deepcopy__(self, _memo: object) -> TextGeneration:
        return self

    def default_length(self, options: Mapping[str, Any]) -> int | None:
        """New tokens of a text where neither the caller nor the model's files say how many."""
        says = options.get("max_new_tokens") is not None
        if says or {"max_new_tokens", "max_length"} & self._defaults.keys():
            return None
        return DEFAULT_NEW_TOKENS

    def options(
        self,
        n: int,
        options: Mapping[str, Any],
        default_length: int | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> RequestOptions:
        """Options for all requests of one call. `defaults`: in place of the model's. Raises
        ValueError and TypeError."""
        chosen = self._defaults if defaults is None else defaults
        return RequestOptions(chosen, self._tokenizer, self._grammars, n, options, default_length)

    def stream_options(self, options: Mapping[str, Any]) -> RequestOptions:
        """Options of a text that is given as it comes: files that ask for beam search are not
        heeded. Raises as `options`."""
        defaults = {**self._defaults, "num_beams": 1}
        return self.options(1, options, self.default_length(options), defaults)

    def prompt(self, name: str, ids: Int32Array) -> Prompt:
        """A prompt of these tokens: of a model with an encoder, a source."""
        return Prompt(name, ids) if self._begins is None else Prompt(name, self._begins, ids)

    @property
    def continues(self) -> bool:
        """True if a text goes on with that of its prompt."""
        return self.sources is None

    def prompt_ids(self, prompt: Any, number: int) -> Int32Array:
        """Tokens of a prompt as it stands, with those that the tokenizer puts around a text."""
        check_text(prompt, number, "", False, "prompts")
        if self.sources is not None:
            plain = self.sources.direction(None, None, aims=False)
            return self.sources.encode([prompt], plain, first=number)[0]
        encode, table = self._tokenizer.encode, self._vocab_size
        return encode([prompt], None, first=number, pairs=False, table=table).ids[0]

    def chat_ids(self, messages: Conversation, options: Mapping[str, Any]) -> Int32Array:
        """Tokens of a conversation: the template writes all special tokens itself."""
        return self.plain_ids(self.templates.render(messages, **options))

    def plain_ids(self, text: str) -> Int32Array:
        """Tokens of a text, without those that the tokenizer puts around one."""
        if self.sources is not None:
            return self.sources.pieces([text])[0]
        ids = self._tokenizer.plain_ids(text)
        check_ids(self._tokenizer.backend, [ids], self._vocab_size, 0)
        return ids

    def refuse_longer(self, prompt: str, name: str) -> None:
        """Raises ValueError, which begins with a name, for a prompt that the context has no room
        for, before all of it is tokenized."""
        if self.sources is not None:
            return  # the session counts their tokens
        try:
            self._tokenizer.refuse_longer_prompt(prompt, self.most_tokens)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    def generate(
        self, prompt: str | Iterable[str], n: int, details: bool, options: Mapping[str, Any]
    ) -> Any:
        check_options("generate", options, GenerateCall)
        options = dict(options)
        attention = self.take_attention(options)
        if attention is not None:
            attention.require_details(details)
        prompts = as_texts(prompt, "prompts")
        named = (
            self.prompt(f"prompts[{i}]", self.prompt_ids(one, i)) for i, one in enumerate(prompts)
        )
        asked = self.options(n, options, self.default_length(options))
        total = len(prompts) if isinstance(prompts, Sized) else None
        with reporting(options.get("progress")) as report:
            if attention is None:
                found = self.run(named, asked, report, total, continues=self.continues)
            else:
                found = self.run_attended(list(named), asked, report, attention)
        results = [as_asked(one, n, details) for one in found]
        return results[0] if isinstance(prompt, str) else results

    def stream(
        self, prompt: object, options: Mapping[str, Any], timeout_s: float = FOREVER
    ) -> TextStreaming:
        """`timeout_s`: as of `GenerationSession.submit`."""
        check_options("generate", options, GenerateCall)
        options = dict(options)
        if (attention := self.take_attention(options)) is not None:
            attention.refuse_stream()
        asked = self.stream_options(options)
        _check_stream("prompt", prompt, isinstance(prompt, str), asked)
        made = self.prompt("prompt", self.prompt_ids(prompt, 0))
        return self._generator.stream(made, asked, self.continues, timeout_s)

    @property
    def run(self) -> Callable[..., list[list[Generation]]]:
        """`Generator.run`."""
        return self._generator.run

    def run_attended(
        self,
        prompts: Sequence[Prompt],
        options: RequestOptions,
        report: Callable[[int, int | None], object] | None,
        attention: SourceAttention,
        *,
        continues: bool = False,
    ) -> list[list[Generation]]:
        """`run`, and what the tokens attend to."""
        found = self.run(prompts, options, report, len(prompts), continues=continues)
        return attention.of(self._session, prompts, found, options)

    def take_attention(self, options: dict[str, Any]) -> SourceAttention | None:
        """Takes what asks for attention out of options. Raises ValueError."""
        return take_attention(options, self._session.config)

    @property
    def stream_of(self) -> Callable[..., TextStreaming]:
        """`Generator.stream`."""
        return self._generator.stream

    def token_texts(self, ids: Int32Array) -> TokenTexts:
        """The part of a text that each token adds, for all tokens of a whole text."""
        texts = self._generator.token_texts()
        for token in ids.tolist():
            texts.push(token)
        texts.finish()
        return texts

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Defaults of sampling in the model's files, by names of `Sampling`."""
        return self._defaults

    def submit(self, prompt: Prompt, options: RequestOptions, *, continues: bool) -> TextRequest:
        """Starts generating, without waiting for anything. Arguments as of `Generator.submit`."""
        continues = continues and self.continues
        return self._generator.submit(prompt, options, continues=continues, timeout_s=0)

    def tool_use(
        self,
        tools: Any,
        choice: ToolChoice | None,
        several: bool,
        chat_template: str | None = None,
        *,
        strict: bool = False,
    ) -> tuple[ToolUse, dict[str, Any]]:
        """(how the tools of a conversation are used, the options of `generate` for that). Arguments
        as of `ToolUse`. Raises ValueError."""
        template = self.templates.template_for(chat_template, tools) if tools else ""
        found = ToolUse(tools, choice, several, template, strict=strict)
        return found, found.options(self._tokenizer)

    def _of_chat(
        self, options: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any], ToolUse | None]:
        """(options of the chat template, those of requests, how tools are used)"""
        check_options("chat", options, ChatCall)
        of_template = {name: value for name, value in options.items() if name in CHAT_OPTIONS}
        rest = {name: options[name] for name in options.keys() - CHAT_OPTIONS}
        choice = rest.pop("tool_choice", None)
        parallel = rest.pop("parallel_tool_calls", None)
        several = parallel is None or check_flag("parallel_tool_calls", parallel)
        if of_template.get("tools") is None and choice is None:
            return of_template, rest, None
        tools, forced = self.tool_use(
            of_template.get("tools"), choice, several, of_template.get("chat_template")
        )
        if "grammar" in forced and (given := [one for one in FORMS if rest.get(one) is not None]):
            raise ValueError(f"tool_choice is {choice!r:.80}, and {given[0]} was given as well")
        return {**of_template, "tools": tools.schemas or None}, {**rest, **forced}, tools

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        n: int,
        details: bool,
        options: Mapping[str, Any],
    ) -> Any:
        of_template, rest, tools = self._of_chat(options)
        several = _are_several(messages)
        chats: Sequence[Any] = messages if several else [messages]
        named = (
            self.prompt(
                f"messages[{i}]" if several else "messages", self.chat_ids(chat, of_template)
            )
            for i, chat in enumerate(chats)
        )
        asked = self.options(n, rest, self.default_length(rest))
        with reporting(rest.get("progress")) as report:
            found = self._generator.run(named, asked, report, len(chats), continues=False)
        read = found if tools is None else [[tools.read(made) for made in one] for one in found]
        results = [as_asked(one, n, details) for one in read]
        return results if several else results[0]

    def stream_chat(
        self, messages: Any, options: Mapping[str, Any], timeout_s: float = FOREVER
    ) -> TextStreaming:
        """`timeout_s`: as of `GenerationSession.submit`."""
        of_template, rest, tools = self._of_chat(options)
        asked = self.stream_options(rest)
        _check_stream("conversation", messages, not _are_several(messages), asked)
        ids = self.chat_ids(messages, of_template)
        finish = (lambda made: made) if tools is None else tools.read
        made = self.prompt("messages", ids)
        return self._generator.stream(made, asked, False, timeout_s, finish)


def _beginning(files: GenerationFiles) -> Int32Array:
    """The token with which the decoder of a model with an encoder begins."""
    if files.decoder_start is None:
        raise ValueError(
            "the model's files name no decoder_start_token_id, with which its decoder begins"
        )
    return np.array([files.decoder_start], np.int32)


def _in_vocabulary(defaults: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Files may suppress tokens that the model does not have."""
    found = dict(defaults)
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        if isinstance(ids := found.get(name), list):
            found[name] = [one for one in ids if not (isinstance(one, int) and one >= size)]
    return found


def _are_several(messages: Any) -> bool:
    """True if it is a list of conversations rather than one."""
    return (
        isinstance(messages, Sequence)
        and not isinstance(messages, str)
        and len(messages) > 0
        and not isinstance(messages[0], Mapping)
        and isinstance(messages[0], Sequence)
    )


def _check_stream(name: str, value: object, is_one: bool, options: RequestOptions) -> None:
    if not is_one:
        raise ValueError(f"stream=True takes one {name}, found {value!r:.80}")
    if options.num_beams > 1:
        raise ValueError("stream=True gives a text as it comes: num_beams must be 1")
