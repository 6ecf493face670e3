"""Answers of OpenAI's /v1/responses: output items, and the events by which they come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packhorse.generation.results import Generation
from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import Fields
from packhorse.serve.http.json_parts import to_json
from packhorse.serve.protocols.openai_writing import reason_of, usage_of
from packhorse.text.generation.tool_use import NamedCall, ToolAnswer

Event = dict[str, Any]


def named_event(content: Event) -> bytes:
    """An event that is named by its type."""
    return b"event: %s\ndata: %s\n\n" % (content["type"].encode(), to_json(content))


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields but those that are null, which a request may have for ones that it leaves out."""
    return {name: value for name, value in fields.items() if value is not None}


class ResponseWriter:
    """One response, as it grows.

    response  all of it so far, as answers have it
    """

    def __init__(self, head: dict[str, Any], fields: Fields, answer: ToolAnswer) -> None:
        """`head`: id, created_at, model and temperature; `fields`: of the request; `answer` reads
        what is generated."""
        self._answer = answer
        self._number = 0  # events that have been sent
        self._message: dict[str, Any] | None = None  # the item that text is added to
        form = (fields.get("text") or {}).get("format") or {}
        top_p = fields.get("top_p")
        self.response: dict[str, Any] = {
            **head,
            "object": "response",
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": fields.get("instructions"),
            "max_output_tokens": fields.get("max_output_tokens"),
            "metadata": fields.get("metadata") or {},
            "output": [],
            "parallel_tool_calls": fields.flag("parallel_tool_calls", True),
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "text": {"format": {"type": "text", **_given(form)}},
            "tool_choice": fields.get("tool_choice") or "auto",
            "tools": fields.get("tools") or [],
            "top_p": 1.0 if top_p is None else top_p,
            "truncation": "disabled",
            "usage": None,
            "user": fields.get("user"),
        }

    def begin(self) -> list[Event]:
        return [self._of_response("created"), self._of_response("in_progress")]

    def push(self, text: str, ended: Generation | None) -> list[Event]:
        """The events of one more piece of text; `ended`: all of it, with the last piece."""
        events: list[Event] = []
        for part in self._answer.push(text, ended=ended is not None):
            if isinstance(part, str):
                events += self._text(part)
            else:
                events += [*self._end_message(), *self._call(part)]
        if ended is not None:
            if not self.response["output"]:
                events += self._text("")
            events += [*self._end_message(), self._end(ended)]
        return events

    def error(self, error: ServeError) -> Event:
        code = error.answer.openai_code or error.answer.openai_type
        return self._event("error", code=code, message=error.message, param=error.parameter)

    def _end(self, made: Generation) -> Event:
        used = usage_of([made])
        whole = reason_of(made) != "length"
        self.response |= {
            "status": "completed" if whole else "incomplete",
            "incomplete_details": None if whole else {"reason": "max_output_tokens"},
            "usage": {
                "input_tokens": used["prompt_tokens"],
                "input_tokens_details": used["prompt_tokens_details"],
                "output_tokens": used["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": used["total_tokens"],
            },
        }
        return self._of_response(self.response["status"])

    def _event(self, kind: str, **fields: Any) -> Event:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _of_response(self, kind: str) -> Event:
        output = [dict(item) for item in self.response["output"]]
        return self._event(f"response.{kind}", response={**self.response, "output": output})

    def _add(self, kind: str, **fields: Any) -> tuple[dict[str, Any], dict[str, Any], Event]:
        """(a new item, what events say of it, the event that it is there)"""
        output = self.response["output"]
        name = f"{kind}_{self.response['id'].removeprefix('resp_')}_{len(output)}"
        item = {"id": name, "status": "in_progress", **fields}
        where = {"output_index": len(output)}
        output.append(item)
        added = self._event("response.output_item.added", **where, item=dict(item))
        return item, {**where, "item_id": name}, added

    def _done(self, item: dict[str, Any], where: dict[str, Any]) -> Event:
        item["status"] = "completed"
        index = where["output_index"]
        return self._event("response.output_item.done", output_index=index, item=dict(item))

    def _text(self, text: str) -> Iterator[Event]:
        if self._message is None:
            item, where, added = self._add("msg", type="message", role="assistant", content=[])
            self._message, self._part = item, {**where, "content_index": 0}
            yield added
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item["content"] = [part]
            yield self._event("response.content_part.added", **self._part, part=dict(part))
        if text:
            self._message["content"][0]["text"] += text
            said = {"delta": text, "logprobs": []}
            yield self._event("response.output_text.delta", **self._part, **said)

    def _end_message(self) -> Iterator[Event]:
        item, self._message = self._message, None
        if item is not None:
            part = item["content"][0]
            said = {"text": part["text"], "logprobs": []}
            yield self._event("response.output_text.done", **self._part, **said)
            yield self._event("response.content_part.done", **self._part, part=dict(part))
            yield self._done(item, self._part)

    def _call(self, call: NamedCall) -> Iterator[Event]:
        said = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": ""}
        item, where, added = self._add("fc", **said)
        yield added
        yield self._event("response.function_call_arguments.delta", **where, delta=call.written)
        item["arguments"] = call.written
        done = {"name": call.name, "arguments": call.written}
        yield self._event("response.function_call_arguments.done", **where, **done)
        yield self._done(item, where)
