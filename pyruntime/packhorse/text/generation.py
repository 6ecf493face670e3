"""Texts that go on: generation from prompts and conversations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from packhorse.generation.results import Generation
from packhorse.heads import methods_for
from packhorse.packing import Int32Array
from packhorse.text.chat_template import ChatTemplates, Message
from packhorse.text.checks import check_ids
from packhorse.text.detokenizer import Detokenizer
from packhorse.text.generation_options import (
    CHAT_OPTIONS,
    ChatCall,
    GenerateCall,
    RequestOptions,
    check_options,
)
from packhorse.text.generator import FOREVER, Generator, TextStreaming, as_asked
from packhorse.text.structured import Grammars

if TYPE_CHECKING:
    from packhorse_weights.generation_files import GenerationFiles
    from typing_extensions import Unpack

    from packhorse.session import Session
    from packhorse.text.tokenizer import TextTokenizer

Conversation = Sequence[Message]


class TextGeneration:
    """A session that generates, the tokenizer of its model and what its files say, for any number
    of threads."""

    def __init__(self, session: Session, tokenizer: TextTokenizer, files: GenerationFiles) -> None:
        from packhorse.generation.session import GenerationSession

        assert isinstance(session, GenerationSession)
        self._made_of = (session, tokenizer, files)
        self._tokenizer = tokenizer
        self._vocab_size = session.vocab_size
        self._defaults = files.defaults
        clean_up = tokenizer.config.clean_up_spaces
        self._generator = Generator(session, Detokenizer(tokenizer.backend, clean_up=clean_up))
        self._grammars = Grammars(tokenizer, session.vocab_size, session.eos_ids)
        self.templates = ChatTemplates(files.chat_templates, files.special_tokens)

    def __reduce__(self) -> tuple[type[TextGeneration], tuple[Any, ...]]:
        return type(self), self._made_of

    def __copy__(self) -> TextGeneration:
        return self

    def __deepcopy__(self, _memo: object) -> TextGeneration:
        return self

    def _options(self, n: int, options: Mapping[str, Any]) -> RequestOptions:
        return RequestOptions(self._defaults, self._tokenizer, self._grammars, n, options)

    def prompt_ids(self, prompt: Any, number: int) -> Int32Array:
        """Of a prompt as it stands, with the tokens that the tokenizer puts around a text."""
        encode, table = self._tokenizer.encode, self._vocab_size
        return encode([prompt], None, first=number, pairs=False, table=table).ids[0]

    def chat_ids(self, messages: Conversation, options: Mapping[str, Any]) -> Int32Array:
        """Of a conversation: the template writes all special tokens itself."""
        ids = self._tokenizer.plain_ids(self.templates.render(messages, **options))
        check_ids(self._tokenizer.backend, [ids], self._vocab_size, 0)
        return ids

    def generate(
        self, prompt: str | Iterable[str], n: int, details: bool, options: Mapping[str, Any]
    ) -> Any:
        check_options("generate", options, GenerateCall)
        prompts = [prompt] if isinstance(prompt, str) else prompt
        named = ((f"prompts[{i}]", self.prompt_ids(one, i)) for i, one in enumerate(prompts))
        found = self._generator.run(named, self._options(n, options), continues=True)
        results = [as_asked(one, n, details) for one in found]
        return results[0] if isinstance(prompt, str) else results

    def stream(
        self, prompt: object, options: Mapping[str, Any], timeout_s: float = FOREVER
    ) -> TextStreaming:
        """`timeout_s`: as of `Session.submit`."""
        check_options("generate", options, GenerateCall)
        asked = self._options(1, options)
        _check_stream("prompt", prompt, isinstance(prompt, str), asked)
        return self._generator.stream("prompt", self.prompt_ids(prompt, 0), asked, True, timeout_s)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        n: int,
        details: bool,
        options: Mapping[str, Any],
    ) -> Any:
        of_template, rest = _split(options)
        several = _are_several(messages)
        chats: Sequence[Any] = messages if several else [messages]
        named = (
            (f"messages[{i}]" if several else "messages", self.chat_ids(chat, of_template))
            for i, chat in enumerate(chats)
        )
        found = self._generator.run(named, self._options(n, rest), continues=False)
        results = [as_asked(one, n, details) for one in found]
        return results if several else results[0]

    def stream_chat(
        self, messages: Any, options: Mapping[str, Any], timeout_s: float = FOREVER
    ) -> TextStreaming:
        """`timeout_s`: as of `Session.submit`."""
        of_template, rest = _split(options)
        asked = self._options(1, rest)
        _check_stream("conversation", messages, not _are_several(messages), asked)
        ids = self.chat_ids(messages, of_template)
        return self._generator.stream("messages", ids, asked, False, timeout_s)


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(those of the chat template, those of requests)"""
    check_options("chat", options, ChatCall)
    of_template = {name: value for name, value in options.items() if name in CHAT_OPTIONS}
    return of_template, {name: options[name] for name in options.keys() - CHAT_OPTIONS}


def _are_several(messages: Any) -> bool:
    """Whether it is a list of conversations rather than one."""
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
    if options.sampling().num_beams > 1:
        raise ValueError("stream=True gives a text as it comes: num_beams must be 1")


def _check_plain(n: int, details: bool) -> None:
    if n != 1:
        raise ValueError(f"stream=True gives one text: n is {n!r:.80}, expected 1")
    if details:
        raise ValueError(
            "stream=True gives pieces of text, details=True a Generation: when the stream has "
            "ended, its `result` is one"
        )


class GeneratingText:
    """The methods of `TextModel` that generate."""

    session: Session
    _generation: TextGeneration | None

    def _generating(self, method: str) -> TextGeneration:
        """Raises ValueError where the model does not generate."""
        if self._generation is None:
            methods = " or ".join(methods_for(self.session.config))
            raise ValueError(
                f"{method}: this model was not loaded for generation: use {methods}, or load a "
                "causal language model, with kv_tokens over 0 where its files say otherwise"
            )
        return self._generation

    @overload
    def generate(
        self, prompt: str, *, stream: Literal[True], **options: Unpack[GenerateCall]
    ) -> TextStreaming: ...
    @overload
    def generate(
        self,
        prompt: str,
        *,
        n: Literal[1] = ...,
        stream: Literal[False] = ...,
        details: Literal[False] = ...,
        **options: Unpack[GenerateCall],
    ) -> str: ...
    @overload
    def generate(
        self,
        prompt: str,
        *,
        n: int,
        stream: Literal[False] = ...,
        details: Literal[False] = ...,
        **options: Unpack[GenerateCall],
    ) -> list[str]: ...
    @overload
    def generate(
        self,
        prompt: str,
        *,
        n: Literal[1] = ...,
        stream: Literal[False] = ...,
        details: Literal[True],
        **options: Unpack[GenerateCall],
    ) -> Generation: ...
    @overload
    def generate(
        self,
        prompt: str,
        *,
        n: int,
        stream: Literal[False] = ...,
        details: Literal[True],
        **options: Unpack[GenerateCall],
    ) -> list[Generation]: ...
    @overload
    def generate(
        self,
        prompt: Iterable[str],
        *,
        n: Literal[1] = ...,
        stream: Literal[False] = ...,
        details: Literal[False] = ...,
        **options: Unpack[GenerateCall],
    ) -> list[str]: ...
    @overload
    def generate(
        self,
        prompt: Iterable[str],
        *,
        n: int,
        stream: Literal[False] = ...,
        details: Literal[False] = ...,
        **options: Unpack[GenerateCall],
    ) -> list[list[str]]: ...
    @overload
    def generate(
        self,
        prompt: Iterable[str],
        *,
        n: Literal[1] = ...,
        stream: Literal[False] = ...,
        details: Literal[True],
        **options: Unpack[GenerateCall],
    ) -> list[Generation]: ...
    @overload
    def generate(
        self,
        prompt: Iterable[str],
        *,
        n: int,
        stream: Literal[False] = ...,
        details: Literal[True],
        **options: Unpack[GenerateCall],
    ) -> list[list[Generation]]: ...
    def generate(
        self,
        prompt: str | Iterable[str],
        *,
        n: int = 1,
        stream: bool = False,
        details: bool = False,
        **options: Unpack[GenerateCall],
    ) -> Any:
        """The text with which the model goes on after a prompt; a list of texts, in order, for
        several prompts, and for each a list of n for n over 1.

        stream   of one prompt: gives the pieces of the text as they come (`TextStreaming`). They
                 never end within a character, and joined they are the text
        details  gives `Generation` objects: text, ids, finish_reason, logprobs, usage
        stop     a text, or several, before the first of which the text ends, whatever tokens it is
                 made of
        schema, regex, choices
                 at most one of them: the output is JSON of this schema (a dict, its text, a class
                 of pydantic, or True for any JSON), matches a regular expression as a whole, or is
                 one of some texts. Needs the extra `structured`

        The other options are those of `Sampling`. What is left out, or None, is as
        generation_config.json or the GGUF file says, else as in `Sampling`: the most probable token
        each time, up to the end of the context.

        Raises ValueError: a model that does not generate; a prompt beyond the context (the message
        has both numbers); options that are not acceptable. RuntimeError: the session was closed, or
        a request failed. An error or Ctrl-C cancels what still runs.
        """
        generation = self._generating("generate")
        if stream:
            _check_plain(n, details)
            return generation.stream(prompt, options)
        return generation.generate(prompt, n, details, options)

    @overload
    def chat(
        self, messages: Conversation, *, stream: Literal[True], **options: Unpack[ChatCall]
    ) -> TextStreaming: ...
    @overload
    def chat(
        self,
        messages: Conversation,
        *,
        n: Literal[1] = ...,
        stream: Literal[False] = ...,
        details: Literal[False] = ...,
        **options: Unpack[ChatCall],
    ) -> str: ...
    @overload
    def chat(
        self,
        messages: Conversation,
        *,
        n: int,
        stream: Literal[False] = ...,
        details: Literal[False] = ...,
        **options: Unpack[ChatCall],
    ) -> list[str]: ...
    @overload
    def chat(
        self,
        messages: Conversation,
        *,
        n: Literal[1] = ...,
        stream: Literal[False] = ...,
        details: Literal[True],
        **options: Unpack[ChatCall],
    ) -> Generation: ...
    @overload
    def chat(
        self,
        messages: Conversation,
        *,
        n: int,
        stream: Literal[False] = ...,
        details: Literal[True],
        **options: Unpack[ChatCall],
    ) -> list[Generation]: ...
    @overload
    def chat(
        self, messages: Sequence[Conversation], *, n: int = ..., **options: Unpack[ChatCall]
    ) -> list[Any]: ...
    @overload
    def chat(
        self,
        messages: Sequence[Conversation],
        *,
        n: int = ...,
        details: bool,
        **options: Unpack[ChatCall],
    ) -> list[Any]: ...
    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        *,
        n: int = 1,
        stream: bool = False,
        details: bool = False,
        **options: Unpack[ChatCall],
    ) -> Any:
        """The model's answer in a conversation, a list of {"role": ..., "content": ...}; a list of
        answers for a list of conversations.

        The prompt is what the model's chat template writes, as in transformers.

        tools                   functions that the model may call, each as a JSON schema of the form
                                {"type": "function", "function": {...}}
        documents               for templates that have a place for them
        chat_template           the name of one of the model's templates, or a template (Jinja)
        add_generation_prompt   whether the template begins the answer; default True
        continue_final_message  the last message is the beginning of the answer, which is continued;
                                with add_generation_prompt=False
        template_args           what else the template knows, such as {"enable_thinking": False}

        The other arguments, results and errors are those of `generate`; ValueError also for a model
        without a chat template, and for what the template refuses.
        """
        generation = self._generating("chat")
        if stream:
            _check_plain(n, details)
            return generation.stream_chat(messages, options)
        return generation.chat(messages, n, details, options)

    def generate_async(self, prompt: str, **options: Unpack[GenerateCall]) -> AsyncIterator[str]:
        """The pieces of one text, for `async for`: as `generate(prompt, stream=True)`. Whoever ends
        the iteration early, or is cancelled, cancels the request. No thread waits meanwhile."""
        return self._generating("generate_async").stream(prompt, options, timeout_s=0).pieces()

    def chat_async(self, messages: Conversation, **options: Unpack[ChatCall]) -> AsyncIterator[str]:
        """The pieces of one answer, for `async for`: as `chat(messages, stream=True)`."""
        generation = self._generating("chat_async")
        return generation.stream_chat(messages, options, timeout_s=0).pieces()

    def apply_chat_template(self, messages: Conversation, **options: Any) -> str:
        """The prompt that `chat` makes of a conversation; its options are those of the template."""
        return self._generating("apply_chat_template").templates.render(messages, **options)
