"""Transcriptions and translations of audio, by OpenAI's schemas: forms with a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from packhorse.audio import Segment, Transcription
from packhorse.audio.subtitles import render
from packhorse.serve.errors import ServeError
from packhorse.serve.http.exchange import Exchange, Reply, json_reply
from packhorse.serve.http.multipart import Form, read_form
from packhorse.serve.http.streams import DONE, EventStream, event
from packhorse.serve.models.speech import Hearing

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
_KNOWN = (
    "model",
    "language",
    "prompt",
    "response_format",
    "temperature",
    "timestamp_granularities[]",
    "timestamp_granularities",
    "stream",
    "hotwords",
    "mode",
    "vad_filter",
    "beam_size",
    "seed",
)
# Fields that clients send and that change no answer.
_EFFECTLESS = ("chunking_strategy", "include", "include[]", "user")
_STEP = 0.2  # between the temperatures that are tried


def _check_names(form: Form) -> None:
    """Raises ServeError for fields that are not known, and for those of which a part of another
    kind is expected: the file has a filename, and nothing else does."""
    for name in (*form.texts, *form.files):
        if name not in ("file", *_KNOWN, *_EFFECTLESS):
            raise ServeError("unsupported", f"{name!r:.80} is not supported", parameter=name)
        if (name == "file") != (name in form.files):
            found = "no filename" if name == "file" else "a filename, as a file has"
            expected = "a part with one" if name == "file" else "a part without"
            raise ServeError(
                "validation", f"{name} has {found}, expected {expected}", parameter=name
            )


def _one(form: Form, name: str) -> str | None:
    values = form.texts.get(name)
    return None if not values or values[-1] == "" else values[-1]


def _number(form: Form, name: str, low: float, high: float) -> float | None:
    text = _one(form, name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise ServeError(
            "validation",
            f"{name} is {text!r:.40}, expected a number from {low:g} to {high:g}",
            parameter=name,
        )
    return value


def _whole(form: Form, name: str, low: int, high: int) -> int | None:
    value = _number(form, name, low, high)
    if value is not None and value != int(value):
        raise ServeError(
            "validation", f"{name} is {value}, expected a whole number", parameter=name
        )
    return None if value is None else int(value)


def _flag(form: Form, name: str) -> bool:
    text = (_one(form, name) or "false").lower()
    if text not in ("true", "false", "1", "0"):
        raise ServeError("validation", f"{name} is {text!r:.40}, expected true or false",
                         parameter=name)  # fmt: skip
    return text in ("true", "1")


def _temperatures(first: float | None) -> tuple[float, ...]:
    """The one that is asked for, then higher ones for windows that fail."""
    begin = 0.0 if first is None else first
    return tuple(round(begin + _STEP * i, 6) for i in range(6) if begin + _STEP * i <= 1.0 + 1e-6)


def _granularities(form: Form) -> tuple[str, ...]:
    """Parts of which times are asked for."""
    names = ("timestamp_granularities[]", "timestamp_granularities")
    return tuple(one for name in names for one in form.texts.get(name, ()))


def _check_granularities(form: Form, shape: str) -> None:
    for one in _granularities(form):
        if one not in ("segment", "word"):
            raise ServeError(
                "validation",
                f"timestamp_granularities has {one!r:.40}, expected segment or word",
                parameter="timestamp_granularities",
            )
    if "word" in _granularities(form) and shape != "verbose_json":
        raise ServeError(
            "validation",
            f"timestamp_granularities has word with response_format {shape}, expected verbose_json",
            parameter="timestamp_granularities",
        )


def _options(form: Form, task: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "task": task,
        "language": _one(form, "language"),
        "initial_prompt": _one(form, "prompt"),
        "hotwords": _one(form, "hotwords"),
        "temperature": _temperatures(_number(form, "temperature", 0.0, 1.0)),
        "mode": _one(form, "mode") or "sequential",
        "vad_filter": _flag(form, "vad_filter"),
    }
    if "word" in _granularities(form):
        found["word_timestamps"] = True
    for name, most in (("beam_size", 64), ("seed", (1 << 53) - 1)):
        value = _whole(form, name, 1 if name == "beam_size" else 0, most)
        if value is not None:
            found[name] = value
    return found


def _segment(one: Segment) -> dict[str, Any]:
    fields = one.as_dict()
    fields.pop("words", None)  # they stand beside the segments
    return fields


def _words(found: Transcription) -> list[dict[str, Any]]:
    return [
        {"word": word.word.strip(), "start": word.start, "end": word.end}
        for segment in found.segments
        for word in segment.words or ()
    ]


def _reply(found: Transcription, form: str, task: str, granularities: Sequence[str]) -> Reply:
    if form == "json":
        return json_reply({"text": found.text})
    if form == "verbose_json":
        fields = {
            "task": task,
            "language": found.language,
            "duration": found.duration,
            "text": found.text,
        }
        if "segment" in granularities or not granularities:
            fields["segments"] = [_segment(one) for one in found.segments]
        if "word" in granularities:
            fields["words"] = _words(found)
        return json_reply(fields)
    text = f"{found.text}\n" if form == "text" else render(found, form)
    kind = b"text/vtt" if form == "vtt" else b"text/plain"
    return Reply(text.encode(), content_type=kind + b"; charset=utf-8")


async def _stream(hearing: Hearing) -> AsyncIterator[bytes]:
    text = ""
    try:
        async for one in hearing.events():
            if isinstance(one, Segment):
                piece = one.text if text else one.text.lstrip()
                text += piece
                yield event({"type": "transcript.text.delta", "delta": piece})
        yield event({"type": "transcript.text.done", "text": text})
    except ServeError as error:
        yield event({"error": {"message": str(error), "type": "server_error"}})
    yield DONE


async def _answer(exchange: Exchange, task: str) -> Reply | EventStream:
    service = exchange.service
    body = await exchange.body(service.settings.audio_body_bytes)
    exchange.size = len(body)
    content_type = exchange.headers.get(b"content-type", b"").decode("latin-1")
    form = await asyncio.to_thread(read_form, body, content_type)
    _check_names(form)
    if "file" not in form.files:
        raise ServeError("validation", "there is no file", parameter="file")
    size, most = len(form.files["file"]), service.settings.max_audio_bytes
    if size > most:
        raise ServeError(
            "too_large", f"the file has {size} bytes, at most {most} are taken", parameter="file"
        )
    shape = _one(form, "response_format") or "json"
    if shape not in FORMATS:
        raise ServeError(
            "validation",
            f"response_format is {shape!r:.40}, expected one of {', '.join(FORMATS)}",
            parameter="response_format",
        )
    _check_granularities(form, shape)
    streams = _flag(form, "stream")
    if streams and shape not in ("json", "text"):
        raise ServeError(
            "validation",
            f"response_format is {shape} with stream, whose events are JSON: expected json",
            parameter="response_format",
        )
    options = _options(form, task)
    model = service.registry.speech(_one(form, "model"))
    exchange.model = model.name
    hearing = model.hear(form.files["file"], options, service.settings.generation_timeout_s)
    watch = asyncio.create_task(_leave_with_client(exchange, hearing))

    def end() -> None:
        watch.cancel()
        model.heard(hearing)

    if streams:
        return EventStream(_stream(hearing), end)
    try:
        return _reply(await hearing.whole(), shape, task, _granularities(form))
    finally:
        end()


async def _leave_with_client(exchange: Exchange, hearing: Hearing) -> None:
    await exchange.disconnected()
    hearing.leave()


async def transcriptions(exchange: Exchange) -> Reply | EventStream:
    """POST /v1/audio/transcriptions: what is said, in its language."""
    return await _answer(exchange, "transcribe")


async def translations(exchange: Exchange) -> Reply | EventStream:
    """POST /v1/audio/translations: what is said, in English."""
    return await _answer(exchange, "translate")
