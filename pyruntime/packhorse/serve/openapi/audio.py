"""Schemas of transcriptions of audio, by OpenAI's protocol."""

from __future__ import annotations

from packhorse.serve.openapi.parts import (
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    TOKEN_ID,
    Schema,
    array,
    closed,
    constant,
    one_of,
)

_FORM: dict[str, Schema] = {
    "file": {"type": "string", "format": "binary"},
    "model": TEXT,
    "prompt": TEXT,
    "hotwords": TEXT,
    "response_format": constant("json", "text", "srt", "verbose_json", "vtt"),
    "temperature": {"type": "number", "minimum": 0, "maximum": 1},
    "timestamp_granularities[]": array(constant("segment", "word")),
    "stream": FLAG,
    "mode": constant("sequential", "chunked"),
    "vad_filter": FLAG,
    "beam_size": {"type": "integer", "minimum": 1, "maximum": 64},
    "seed": {"type": "integer", "minimum": 0},
}


def _form(more: dict[str, Schema]) -> Schema:
    return {"type": "object", "required": ["file"], "properties": {**_FORM, **more}}


_SEGMENT = closed(
    {
        "id": COUNT,
        "start": NUMBER,
        "end": NUMBER,
        "text": TEXT,
        "tokens": array(TOKEN_ID),
        "avg_logprob": NUMBER,
        "no_speech_prob": NUMBER,
        "compression_ratio": NUMBER,
        "temperature": NUMBER,
        "seek": COUNT,
    }
)
SCHEMAS: dict[str, Schema] = {
    "TranscriptionForm": _form({"language": TEXT}),
    "TranslationForm": _form({"language": TEXT}),
    "TranscriptionResponse": one_of(
        closed({"text": TEXT}),
        closed(
            {
                "task": constant("transcribe", "translate"),
                "language": TEXT,
                "duration": NUMBER,
                "text": TEXT,
            },
            {
                "segments": array(_SEGMENT),
                "words": array(closed({"word": TEXT, "start": NUMBER, "end": NUMBER})),
            },
        ),
    ),
    "TranscriptionEvent": one_of(
        closed({"type": constant("transcript.text.delta"), "delta": TEXT}),
        closed({"type": constant("transcript.text.done"), "text": TEXT}),
    ),
}
