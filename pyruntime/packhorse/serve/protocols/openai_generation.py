"""OpenAI's /v1/completions and /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import numpy as np

from packhorse.generation.results import Generation
from packhorse.serve.checks import Fields, are_ids, check_count
from packhorse.serve.endpoint import openai_style
from packhorse.serve.errors import ServeError
from packhorse.serve.exchange import Exchange, json_reply
from packhorse.serve.generating import Engine, Prompt, Running
from packhorse.serve.limits import check_sequences
from packhorse.serve.protocols.openai_options import Asked, read_options
from packhorse.serve.protocols.openai_writing import (
    chat_logprobs,
    completion_logprobs,
    reason_of,
    usage_of,
)
from packhorse.serve.registry import Generator
from packhorse.serve.streams import DONE, EventStream, event
from packhorse.text.generation import TextGeneration

GENERATES = "a model that generates"
_MOST_MESSAGES = 10_000


class Call:
    """One request to generate: its prompts, all of which run at once, and how it is answered."""

    def __init__(
        self, exchange: Exchange, generator: Generator, asked: Asked, prompts: Sequence[Prompt]
    ) -> None:
        self.exchange = exchange
        self._generator = generator
        self.asked = asked
        self._prompts = prompts
        self._engine: Engine = generator.model.engine()
        self.running: list[Running] = []
        self._watch: asyncio.Task[None] | None = None
        self._open = False

    async def start(self) -> None:
        """Submits all prompts. Raises ServeError, and nothing runs."""
        self.exchange.model = self._generator.name
        self._engine.active += 1
        self._open = True
        service = self.exchange.service
        options = {
            **self.asked.options,
            "adapter": self._generator.adapter,
            "deadline_s": service.settings.generation_timeout_s,
        }
        try:
            compile_options = partial(self._engine.options, self.asked.n, options)
            compiled = await self.exchange.on_thread(compile_options)
            for prompt in self._prompts:
                submit = partial(self._engine.submit, prompt, compiled)
                request = await self.exchange.on_thread(submit)
                self.running.append(Running(request, self._engine.news, self.asked.n))
        except BaseException:
            self.end()
            raise
        self._watch = asyncio.get_running_loop().create_task(self._leave_with_client())

    async def _leave_with_client(self) -> None:
        await self.exchange.disconnected()
        for running in self.running:
            running.leave()

    def end(self) -> None:
        """Frees everything. May be called twice."""
        if not self._open:
            return
        self._open = False
        self._engine.active -= 1
        if self._watch is not None:
            self._watch.cancel()
        generations = [running.so_far(0) for running in self.running]
        for running in self.running:
            running.close()
        used = usage_of(generations)
        self.exchange.usage = {
            "prompt_tokens": used["prompt_tokens"],
            "new_tokens": used["completion_tokens"],
        }
        first = [one.first_at for one in self.running if one.first_at is not None]
        self.exchange.service.metrics.generated(
            self._generator.name,
            used["completion_tokens"],
            min(first) - self.exchange.started if first else None,
        )

    async def whole(self) -> list[list[Generation]]:
        """All texts of all prompts, when they have ended."""
        for running in self.running:
            async with aclosing(running.pieces()) as pieces:
                async for _ in pieces:
                    pass
        return [[one.so_far(i) for i in range(one.n)] for one in self.running]

    async def pieces(self) -> AsyncGenerator[tuple[int, Running, int, str], None]:
        """(number of a prompt, its request, number of a text of it, a piece of that), as they come;
        the last piece of a text is given when it has ended."""
        queue: asyncio.Queue[tuple[int, list[str]] | Exception | None] = asyncio.Queue()

        async def read(number: int, running: Running) -> None:
            try:
                async with aclosing(running.pieces()) as pieces:
                    async for texts in pieces:
                        queue.put_nowait((number, texts))
                queue.put_nowait(None)
            except Exception as error:
                queue.put_nowait(error)

        if len(self.running) == 1:  # no task between
            async with aclosing(self.running[0].pieces()) as only:
                async for texts in only:
                    for i, text in enumerate(texts):
                        yield 0, self.running[0], i, text
            return
        tasks = [asyncio.create_task(read(i, one)) for i, one in enumerate(self.running)]
        try:
            left = len(tasks)
            while left:
                found = await queue.get()
                if isinstance(found, Exception):
                    raise found
                if found is None:
                    left -= 1
                    continue
                for i, text in enumerate(found[1]):
                    yield found[0], self.running[found[0]], i, text
        finally:
            for task in tasks:
                task.cancel()


Choice = Callable[[Generation, str, int, int, bool], dict[str, Any]]


async def _answer(call: Call, head: dict[str, Any], kind: str, whole: Any, part: Any) -> Any:
    """whole(generation) and part(generation, text, first token, characters before, ended) write a
    choice; `kind` is the object of a whole answer."""
    await call.start()
    if call.asked.stream:
        return EventStream(_events(call, head, part), call.end)
    try:
        texts = await call.whole()
    finally:
        call.end()
    flat = [one for of_prompt in texts for one in of_prompt]
    choices = await call.exchange.service.on_thread(
        lambda: [{"index": i, **whole(one)} for i, one in enumerate(flat)]
    )
    usage = usage_of([of_prompt[0] for of_prompt in texts])
    return json_reply({**head, "object": kind, "choices": choices, "usage": usage})


async def _events(call: Call, head: dict[str, Any], part: Any) -> AsyncGenerator[bytes, None]:
    n = call.asked.n
    written: dict[int, tuple[int, int]] = {}  # choice -> (tokens, characters) that were sent
    ended: set[int] = set()
    tail = {"usage": None} if call.asked.usage else {}
    try:
        for i in range(len(call.running) * n):
            first = part(None, "", 0, 0, False)
            if first is not None:
                yield event({**head, "choices": [{"index": i, **first}], **tail})
        async with aclosing(call.pieces()) as pieces:
            async for number, running, i, text in pieces:
                index = number * n + i
                over = running.has_ended(i)
                if index in ended or not (text or over):
                    continue
                tokens, characters = written.get(index, (0, 0))
                generation = running.so_far(i)
                choice = part(generation, text, tokens, characters, over)
                written[index] = len(generation.ids), characters + len(text)
                if over:
                    ended.add(index)
                yield event({**head, "choices": [{"index": index, **choice}], **tail})
        if call.asked.usage:
            usage = usage_of([running.so_far(0) for running in call.running])
            yield event({**head, "choices": [], "usage": usage})
    except ServeError as error:  # the status has been sent: the error is an event
        yield b"data: " + openai_style(error).body + b"\n\n"
    yield DONE


def _prompts(fields: Fields, most: int) -> list[Prompt]:
    """A text, several, the ids of one, or those of several."""
    value = fields.get("prompt")
    expected = "a text, a list of texts, ids, or a list of lists of ids"
    if isinstance(value, str) or (isinstance(value, list) and value and are_ids(value)):
        value = [value]
    if not isinstance(value, list):
        fields.wrong("prompt", expected)
    check_count("prompt", len(value), most)
    found = []
    for i, one in enumerate(value):
        if isinstance(one, str):
            found.append(Prompt(_of_text(one, i), f"prompt[{i}]", True))
        elif isinstance(one, list) and are_ids(one):
            found.append(Prompt(_of_ids(one), f"prompt[{i}]", True))
        else:
            fields.wrong("prompt", expected)
    return found


def _of_text(text: str, number: int) -> Callable[[TextGeneration], Any]:
    return lambda generation: generation.prompt_ids(text, number)


def _of_ids(ids: list[int]) -> Callable[[TextGeneration], Any]:
    return lambda _generation: np.array(ids, np.int32)


async def completions(exchange: Exchange) -> Any:
    """POST /v1/completions."""
    fields = Fields(await exchange.json())
    service = exchange.service
    generator = service.registry.generator(fields.optional_text("model"), GENERATES)
    model = generator.model
    fields.refuse("echo")
    asked = read_options(exchange, fields, model, chat=False)
    prompts = _prompts(fields, service.settings.max_client_batch_size)
    check_sequences(len(prompts), asked.n, service.settings.max_client_sequences)
    tokenizer = model.text.tokenizer
    head = {
        "id": f"cmpl-{exchange.request_id}",
        "object": "text_completion",
        "created": exchange.created,
        "model": generator.name,
    }

    def whole(one: Generation) -> dict[str, Any]:
        logprobs = completion_logprobs(tokenizer, one, 0, 0)
        return {"text": one.text, "logprobs": logprobs, "finish_reason": reason_of(one)}

    def part(
        one: Generation | None, text: str, first: int, characters: int, over: bool
    ) -> dict[str, Any] | None:
        if one is None:
            return None
        logprobs = completion_logprobs(tokenizer, one, first, characters)
        reason = reason_of(one) if over else None
        return {"text": text, "logprobs": logprobs, "finish_reason": reason}

    call = Call(exchange, generator, asked, prompts)
    return await _answer(call, head, "text_completion", whole, part)


def _messages(fields: Fields) -> list[dict[str, Any]]:
    value = fields.get("messages")
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        fields.wrong("messages", 'a list of {"role": ..., "content": ...}')
    check_count("messages", len(value), _MOST_MESSAGES)
    found = []
    for i, message in enumerate(value):
        for name in ("tool_calls", "function_call", "audio"):
            if message.get(name):
                raise ServeError("unsupported", f"messages[{i}].{name} is not supported")
        if message.get("role") in ("tool", "function"):
            raise ServeError("unsupported", f"messages[{i}] of a tool: tools are not supported")
        found.append({**message, "content": _content(message.get("content"), i)})
    return found


def _content(content: Any, number: int) -> str:
    """The text of a message, which may come in parts."""
    if isinstance(content, str):
        return content
    expected = f"messages[{number}].content is {content!r:.80}, expected a text or parts of text"
    if not isinstance(content, list):
        raise ServeError("validation", expected, parameter="messages")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in (None, "text"):
            raise ServeError(
                "unsupported",
                f"messages[{number}]: content of type {kind!r:.40} is not supported",
                parameter="messages",
            )
        if kind is None or not isinstance(part.get("text"), str):
            raise ServeError("validation", expected, parameter="messages")
        texts.append(part["text"])
    return "".join(texts)


async def chat(exchange: Exchange) -> Any:
    """POST /v1/chat/completions."""
    fields = Fields(await exchange.json())
    service = exchange.service
    generator = service.registry.generator(fields.optional_text("model"), GENERATES)
    model = generator.model
    asked = read_options(exchange, fields, model, chat=True)
    check_sequences(1, asked.n, service.settings.max_client_sequences)
    messages = _messages(fields)
    template_args = fields.get("chat_template_kwargs")
    if template_args is not None and not isinstance(template_args, dict):
        fields.wrong("chat_template_kwargs", "an object")
    of_template = {
        "add_generation_prompt": fields.flag("add_generation_prompt", True),
        "continue_final_message": fields.flag("continue_final_message", False),
        "template_args": template_args,
    }
    tokenizer = model.text.tokenizer
    head = {
        "id": f"chatcmpl-{exchange.request_id}",
        "object": "chat.completion.chunk",
        "created": exchange.created,
        "model": generator.name,
        "system_fingerprint": None,
    }

    def whole(one: Generation) -> dict[str, Any]:
        return {
            "message": {"role": "assistant", "content": one.text, "refusal": None},
            "logprobs": chat_logprobs(tokenizer, one, 0),
            "finish_reason": reason_of(one),
        }

    def part(
        one: Generation | None, text: str, first: int, _characters: int, over: bool
    ) -> dict[str, Any]:
        if one is None:
            delta = {"role": "assistant", "content": ""}
            return {"delta": delta, "logprobs": None, "finish_reason": None}
        return {
            "delta": {"content": text} if text else {},
            "logprobs": chat_logprobs(tokenizer, one, first),
            "finish_reason": reason_of(one) if over else None,
        }

    prompt = Prompt(lambda of: of.chat_ids(messages, of_template), "messages", False)
    call = Call(exchange, generator, asked, [prompt])
    return await _answer(call, head, "chat.completion", whole, part)
