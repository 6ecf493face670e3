"""OpenAI's /v1/completions and /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

from packhorse.generation.results import Generation
from packhorse.packing import Int32Array
from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import Fields
from packhorse.serve.http.endpoint import openai_style
from packhorse.serve.http.exchange import Exchange, json_reply
from packhorse.serve.http.limits import check_sequences
from packhorse.serve.http.streams import DONE, EventStream, event
from packhorse.serve.models.generating import Engine, Prompt, Running
from packhorse.serve.models.registry import Generator
from packhorse.serve.openapi.effectless import COMPLETION, GENERATION
from packhorse.serve.protocols.messages import read_messages
from packhorse.serve.protocols.openai_options import Asked, read_options
from packhorse.serve.protocols.openai_writing import (
    chat_logprobs,
    completion_logprobs,
    new_tokens,
    reason_of,
    usage_of,
)
from packhorse.serve.protocols.prompts import PromptReader, Prompts
from packhorse.serve.protocols.tools import read_tools, written_calls
from packhorse.text.generation.calls import TextGeneration
from packhorse.text.generation.options import RequestOptions
from packhorse.text.generation.tool_use import NamedCall, ToolAnswer, ToolUse, content_of

GENERATES = "a model that generates"
# Names that decide how a template is used, or whose values come by other fields.
_NOT_OF_TEMPLATES = {"chat_template", "continue_final_message", "messages", "tokenize", "tools"}


class Call:
    """One request to generate: its prompts, all of which run at once, and how it is answered."""

    def __init__(
        self,
        exchange: Exchange,
        generator: Generator,
        asked: Asked,
        prompts: Sequence[Prompt],
        compile_options: Callable[[dict[str, Any]], RequestOptions] | None = None,
    ) -> None:
        """compile_options: makes the options of all requests; None: the engine does."""
        self._compile = compile_options
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
            "cache_salt": self.exchange.cache_salt,
            "deadline_s": service.settings.generation_timeout_s,
        }
        try:
            compile_options = self._compile or partial(self._engine.options, self.asked.n)
            compiled = await self.exchange.on_thread(partial(compile_options, options))
            for prompt in self._prompts:
                submit = partial(self._engine.submit, prompt, compiled)
                request = await self.exchange.on_thread(submit)
                self.running.append(Running(request, self._engine.news, self.asked.n))
        except ServeError as error:
            self.end()
            raise self.asked.in_fields(error) from error.__cause__
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
        token_s = [running.token_s for running in self.running]
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
            [seconds for seconds in token_s if seconds is not None],
        )

    async def whole(self) -> list[list[Generation]]:
        """All texts of all prompts, when they have ended. The texts of single tokens, of which one
        request may ask for thousands, are found on a thread."""
        async with aclosing(self.pieces()) as pieces:
            async for _ in pieces:
                pass
        return await self.exchange.service.on_thread(
            lambda: [[one.so_far(i) for i in range(one.n)] for one in self.running]
        )

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


class Piece(NamedTuple):
    """The new part of one text of an answer.

    prompt      number of the prompt
    choice      number of the text, of those of all prompts
    generation  the text so far
    text        its new characters
    tokens      how many of its tokens were written before
    offset      how many characters these have
    begins      whether nothing was
    ends        whether nothing comes after it
    """

    prompt: int
    choice: int
    generation: Generation
    text: str
    tokens: int
    offset: int
    begins: bool
    ends: bool


async def _answer(
    call: Call,
    head: dict[str, Any],
    kind: str,
    whole: Callable[[Piece], dict[str, Any]],
    part: Callable[[Piece | None], dict[str, Any] | None],
) -> Any:
    """`whole` writes a choice, and `part` one of a stream, which begins with that of None, or gives
    None where there is nothing to write; `kind` is the object of a whole answer."""
    await call.start()
    if call.asked.stream:
        return EventStream(_events(call, head, part), call.end)
    try:
        texts = await call.whole()
    finally:
        call.end()
    n = call.asked.n
    pieces = [
        Piece(number, number * n + i, one, one.text, 0, 0, True, True)
        for number, of_prompt in enumerate(texts)
        for i, one in enumerate(of_prompt)
    ]
    choices = await call.exchange.service.on_thread(
        lambda: [{"index": i, **whole(piece)} for i, piece in enumerate(pieces)]
    )
    usage = usage_of([of_prompt[0] for of_prompt in texts])
    return json_reply({**head, "object": kind, "choices": choices, "usage": usage})


async def _events(call: Call, head: dict[str, Any], part: Any) -> AsyncGenerator[bytes, None]:
    n = call.asked.n
    written: dict[int, tuple[int, int]] = {}  # choice -> tokens that were sent, their characters
    ended: set[int] = set()
    tail = {"usage": None} if call.asked.usage else {}
    try:
        first = part(None)
        for i in range(len(call.running) * n) if first is not None else ():
            yield event({**head, "choices": [{"index": i, **first}], **tail})
        async with aclosing(call.pieces()) as pieces:
            async for number, running, i, text in pieces:
                index = number * n + i
                over = running.has_ended(i)
                if index in ended or not (text or over):
                    continue
                begins = index not in written
                tokens, offset = written.get(index, (0, 0))
                one = running.so_far(i)
                choice = part(Piece(number, index, one, text, tokens, offset, begins, over))
                sent = (one.token_texts or [])[tokens:]
                written[index] = tokens + len(sent), offset + sum(len(one.text) for one in sent)
                if over:
                    ended.add(index)
                if choice is not None:
                    yield event({**head, "choices": [{"index": index, **choice}], **tail})
        if call.asked.usage:
            usage = usage_of([running.so_far(0) for running in call.running])
            yield event({**head, "choices": [], "usage": usage})
    except ServeError as error:  # the status has been sent: the error is an event
        yield b"data: " + openai_style(error).body + b"\n\n"
    yield DONE


async def completions(exchange: Exchange) -> Any:
    """POST /v1/completions."""
    fields = Fields(await exchange.json())
    service = exchange.service
    generator = service.registry.generator(fields.optional_text("model"), GENERATES)
    model = generator.model
    asked = read_options(exchange, fields, model, chat=False)
    echo = fields.flag("echo", False)
    if echo and asked.logprobs:
        if not model.engines[0].generation.continues:
            raise ServeError(
                "validation",
                f"echo is true with logprobs, but {generator.name!r} reads the prompt in its "
                "encoder, which gives no log-probabilities",
                parameter="echo",
            )
        asked.options["prompt_logprobs"] = asked.options["logprobs"]
    reader = PromptReader(fields, model, asked, special=True)
    most = service.settings.max_client_batch_size
    prompts = Prompts(fields, most, reader, echo=echo, logprobs=asked.logprobs)
    fields.refuse_rest(COMPLETION)
    check_sequences(len(prompts.echoed), asked.n, service.settings.max_client_sequences)
    head = {
        "id": f"cmpl-{exchange.request_id}",
        "object": "text_completion",
        "created": exchange.created,
        "model": generator.name,
    }

    def write(piece: Piece) -> dict[str, Any]:
        one, echoed = piece.generation, prompts.echoed[piece.prompt]
        text, offset, tokens = piece.text, piece.offset, new_tokens(one, piece.tokens)
        if echoed is not None and piece.begins:
            text = echoed.text + text
            tokens = None if tokens is None else echoed.tokens_of(one).then(tokens)
        elif echoed is not None:
            offset += len(echoed.text)
        return {
            "text": text,
            "logprobs": completion_logprobs(tokens, offset, asked.as_ids),
            "finish_reason": reason_of(one) if piece.ends else None,
        }

    call = Call(exchange, generator, asked, prompts.all())
    return await _answer(
        call, head, "text_completion", write, lambda piece: None if piece is None else write(piece)
    )


def _reader(tools: ToolUse | None) -> ToolAnswer:
    return ToolAnswer(None, True) if tools is None else tools.answer()


async def chat(exchange: Exchange) -> Any:
    """POST /v1/chat/completions."""
    fields = Fields(await exchange.json())
    service = exchange.service
    generator = service.registry.generator(fields.optional_text("model"), GENERATES)
    model = generator.model
    plain = read_options(exchange, fields, model, chat=True)
    check_sequences(1, plain.n, service.settings.max_client_sequences)
    messages, (tools, asked) = await exchange.on_thread(
        lambda: (read_messages(fields), read_tools(fields, model, plain))
    )
    template_args = fields.get("chat_template_kwargs")
    if template_args is not None and not isinstance(template_args, dict):
        fields.wrong("chat_template_kwargs", "an object")
    for name in _NOT_OF_TEMPLATES & (template_args or {}).keys():
        fields.wrong("chat_template_kwargs", f"variables of the template, and {name} is none")
    of_template: dict[str, Any] = {
        "add_generation_prompt": fields.flag("add_generation_prompt", True),
        "continue_final_message": fields.flag("continue_final_message", False),
        "template_args": template_args,
        "tools": None if tools is None else tools.schemas or None,
    }
    reader = PromptReader(fields, model, asked, special=False)
    fields.refuse_rest(GENERATION)
    head = {
        "id": f"chatcmpl-{exchange.request_id}",
        "object": "chat.completion.chunk",
        "created": exchange.created,
        "model": generator.name,
        "system_fingerprint": None,
    }

    def ids(of: TextGeneration) -> Int32Array:
        return reader.read(of, of.templates.render(messages, **of_template), 0)

    def logprobs(piece: Piece) -> dict[str, Any] | None:
        return chat_logprobs(new_tokens(piece.generation, piece.tokens), asked.as_ids)

    def reason(piece: Piece, calls: Sequence[NamedCall]) -> str:
        found = reason_of(piece.generation)
        return "tool_calls" if calls and found == "stop" else found

    def whole(piece: Piece) -> dict[str, Any]:
        answer = _reader(tools)
        content = content_of(answer.push(piece.text, ended=True))
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if answer.calls:
            message |= {"content": content or None, "tool_calls": written_calls(answer.calls)}
        return {
            "message": message,
            "logprobs": logprobs(piece),
            "finish_reason": reason(piece, answer.calls),
        }

    answers: dict[int, ToolAnswer] = {}  # the reader of each choice of a stream

    def part(piece: Piece | None) -> dict[str, Any] | None:
        if piece is None:
            first = {"role": "assistant", "content": ""}
            return {"delta": first, "logprobs": None, "finish_reason": None}
        answer = answers.setdefault(piece.choice, _reader(tools))
        before = len(answer.calls)
        content = content_of(answer.push(piece.text, ended=piece.ends))
        delta: dict[str, Any] = {"content": content} if content else {}
        if fresh := written_calls(answer.calls[before:]):
            delta["tool_calls"] = [{"index": i, **one} for i, one in enumerate(fresh, before)]
        known = logprobs(piece)
        if not (delta or known or piece.ends):
            return None
        return {
            "delta": delta,
            "logprobs": known,
            "finish_reason": reason(piece, answer.calls) if piece.ends else None,
        }

    call = Call(exchange, generator, asked, [Prompt(ids, "messages", False)])
    return await _answer(call, head, "chat.completion", whole, part)
