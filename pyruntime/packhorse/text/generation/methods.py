"""The methods of `TextModel` that generate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from packhorse.generation.results import Generation
from packhorse.heads import methods_for
from packhorse.text.generation.calls import Conversation, TextGeneration
from packhorse.text.generation.chat_template import ChatTemplates
from packhorse.text.generation.generator import TextStreaming
from packhorse.text.generation.options import ChatCall, GenerateCall, TemplateCall
from packhorse.text.loaded import LoadedText
from packhorse.text.signatures import shows_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from packhorse.generation.session import GenerationSession


def _check_plain(n: int, details: bool) -> None:
    if n != 1:
        raise ValueError(f"stream=True gives one text: n is {n!r:.80}, expected 1")
    if details:
        raise ValueError(
            "stream=True gives pieces of text, details=True a Generation: when the stream has "
            "ended, its `result` is one"
        )


class GeneratingText(LoadedText):
    """The methods of `TextModel` that generate."""

    def _generating(self, method: str) -> TextGeneration:
        """Raises ValueError where the model does not generate."""
        if self._generation is None:
            methods = " or ".join(methods_for(self.session.config))
            raise ValueError(
                f"{method}: this model was not loaded for generation: use {methods}, or load a "
                "causal language model, with kv_tokens over 0 where its files say otherwise"
            )
        return self._generation

    @property
    def generation_session(self) -> GenerationSession:
        """`session`, of a model that generates, with its cache, adapters and statistics. Raises
        ValueError for a model that does not."""
        from packhorse.generation.session import GenerationSession

        self._generating("generation_session")
        assert isinstance(self.session, GenerationSession)
        return self.session

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
    @shows_options(GenerateCall)
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
        progress of several prompts, as of the methods of `TextModel` that take texts
        details  gives `Generation` objects: text, ids, finish_reason, logprobs, usage
        stop     a text, or several, before the first of which the text ends, whatever tokens it is
                 made of
        include_stop
                 whether what ends the text, by `stop` or `stop_ids`, is a part of it
        bad_words
                 a text, or several, that may not be written: `bad_words_ids` of their tokens, at
                 the beginning of a text and after a space
        schema, regex, choices, grammar
                 at most one of them: the output is JSON of this schema (a dict, its text, a class
                 of pydantic, or True for any JSON), matches a regular expression as a whole, is
                 one of some texts, or follows a grammar (llama.cpp's GBNF, or Lark). Needs the
                 extra `structured`

        The other options are those of `Sampling`. What is left out, or None, is as
        generation_config.json or the GGUF file says, else as in `Sampling`: the most probable token
        each time. `max_new_tokens` is 256 where neither says it; what goes beyond the context or
        the cache ends there, with the finish reason "length".

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
    @shows_options(ChatCall, ChatTemplates.render)
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

        tools                   functions that the model may call: Python functions with type hints
                                and a docstring, or JSON schemas of the form {"type": "function",
                                "function": {...}}. With details=True the calls that are found in an
                                answer are its `tool_calls`
        tool_choice             "auto", "none", "required" (some call must come; needs the extra
                                `structured`), or {"function": {"name": ...}}, which must be called
        parallel_tool_calls     whether an answer may have several calls; default True
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

    @shows_options(GenerateCall)
    def generate_async(self, prompt: str, **options: Unpack[GenerateCall]) -> AsyncIterator[str]:
        """The pieces of one text, for `async for`: as `generate(prompt, stream=True)`. Whoever ends
        the iteration early, or is cancelled, cancels the request. No thread waits meanwhile."""
        return self._generating("generate_async").stream(prompt, options, timeout_s=0).pieces()

    @shows_options(ChatCall, ChatTemplates.render)
    def chat_async(self, messages: Conversation, **options: Unpack[ChatCall]) -> AsyncIterator[str]:
        """The pieces of one answer, for `async for`: as `chat(messages, stream=True)`."""
        generation = self._generating("chat_async")
        return generation.stream_chat(messages, options, timeout_s=0).pieces()

    @shows_options(TemplateCall, ChatTemplates.render)
    def apply_chat_template(self, messages: Conversation, **options: Unpack[TemplateCall]) -> str:
        """The prompt that `chat` makes of a conversation; its options are those of the template."""
        return self._generating("apply_chat_template").templates.render(messages, **options)
