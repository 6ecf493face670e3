"""Schemas of OpenAI's protocol."""

from __future__ import annotations

from packhorse.serve.openapi.parts import (
    COUNT,
    FLAG,
    INPUTS,
    INTEGER,
    MODEL,
    NULL,
    NUMBER,
    TEXT,
    VECTOR,
    Schema,
    array,
    closed,
    constant,
    one_of,
    optional,
    ref,
    thing,
)

_SAMPLING: dict[str, Schema] = {
    "model": MODEL,
    "temperature": optional({"type": "number", "minimum": 0, "maximum": 100}),
    "top_p": optional({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
    "top_k": optional({"type": "integer", "minimum": -1}),
    "min_p": optional({"type": "number", "minimum": 0, "maximum": 1}),
    "presence_penalty": optional({"type": "number", "minimum": -2, "maximum": 2}),
    "frequency_penalty": optional({"type": "number", "minimum": -2, "maximum": 2}),
    "repetition_penalty": optional({"type": "number", "exclusiveMinimum": 0, "maximum": 100}),
    "logit_bias": optional({"type": "object", "additionalProperties": NUMBER}),
    "seed": optional(INTEGER),
    "stop": optional(one_of(TEXT, array(TEXT))),
    "stop_token_ids": optional(array(COUNT)),
    "ignore_eos": optional(FLAG),
    "n": optional({"type": "integer", "minimum": 1, "maximum": 128}),
    "max_tokens": optional(COUNT),
    "stream": optional(FLAG),
    "stream_options": optional(thing({}, {"include_usage": optional(FLAG)})),
    "regex": optional(TEXT),
    "choices": optional(array(TEXT, 1)),
    "response_format": optional(
        one_of(
            thing({"type": constant("text", "json_object")}),
            thing(
                {
                    "type": constant("json_schema"),
                    "json_schema": thing({"schema": {"type": "object"}}),
                }
            ),
        )
    ),
    "user": optional(TEXT),
}
_REASON = optional(constant("stop", "length"))
_CHAT_TOKEN: dict[str, Schema] = {"token": TEXT, "logprob": NUMBER, "bytes": array(COUNT)}
_CHAT_LOGPROBS = closed(
    {
        "content": array(closed({**_CHAT_TOKEN, "top_logprobs": array(closed(_CHAT_TOKEN))})),
        "refusal": NULL,
    }
)
_LOGPROBS = closed(
    {
        "tokens": array(TEXT),
        "token_logprobs": array(NUMBER),
        "top_logprobs": optional(array({"type": "object", "additionalProperties": NUMBER})),
        "text_offset": array(COUNT),
    }
)
_HEAD: dict[str, Schema] = {"id": TEXT, "created": COUNT, "model": TEXT}
_TEXT_CHOICE = closed(
    {"index": COUNT, "text": TEXT, "logprobs": optional(_LOGPROBS), "finish_reason": _REASON}
)

SCHEMAS: dict[str, Schema] = {
    "OpenAIError": closed(
        {
            "error": closed(
                {"message": TEXT, "type": TEXT, "param": optional(TEXT), "code": optional(TEXT)}
            )
        }
    ),
    "EmbeddingsRequest": thing(
        {"input": INPUTS},
        {
            "model": MODEL,
            "encoding_format": optional(constant("float", "base64")),
            "dimensions": optional({"type": "integer", "minimum": 1}),
            "user": optional(TEXT),
        },
    ),
    "EmbeddingsResponse": closed(
        {
            "object": constant("list"),
            "data": array(
                closed(
                    {
                        "object": constant("embedding"),
                        "index": COUNT,
                        "embedding": one_of(VECTOR, TEXT),
                    }
                )
            ),
            "model": TEXT,
            "usage": closed({"prompt_tokens": COUNT, "total_tokens": COUNT}),
        }
    ),
    "Model": closed(
        {
            "id": TEXT,
            "object": constant("model"),
            "created": COUNT,
            "owned_by": TEXT,
            "parent": optional(TEXT),
            "root": TEXT,
        }
    ),
    "ModelList": closed({"object": constant("list"), "data": array(ref("Model"))}),
    "Usage": closed(
        {
            "prompt_tokens": COUNT,
            "completion_tokens": COUNT,
            "total_tokens": COUNT,
            "prompt_tokens_details": closed({"cached_tokens": COUNT}),
        }
    ),
    "CompletionRequest": thing(
        {"prompt": INPUTS},
        {**_SAMPLING, "logprobs": optional({"type": "integer", "minimum": 0, "maximum": 20})},
    ),
    "CompletionResponse": closed(
        {
            **_HEAD,
            "object": constant("text_completion"),
            "choices": array(_TEXT_CHOICE),
            "usage": ref("Usage"),
        }
    ),
    "CompletionChunk": closed(
        {**_HEAD, "object": constant("text_completion"), "choices": array(_TEXT_CHOICE)},
        {"usage": optional(ref("Usage"))},
    ),
    "ChatMessage": thing(
        {
            "role": TEXT,
            "content": one_of(TEXT, array(thing({"type": constant("text"), "text": TEXT}))),
        }
    ),
    "ChatRequest": thing(
        {"messages": array(ref("ChatMessage"), 1)},
        {
            **_SAMPLING,
            "max_completion_tokens": optional({"type": "integer", "minimum": 1}),
            "logprobs": optional(FLAG),
            "top_logprobs": optional({"type": "integer", "minimum": 0, "maximum": 20}),
            "chat_template_kwargs": optional({"type": "object"}),
            "add_generation_prompt": optional(FLAG),
            "continue_final_message": optional(FLAG),
        },
    ),
    "ChatResponse": closed(
        {
            **_HEAD,
            "object": constant("chat.completion"),
            "system_fingerprint": NULL,
            "choices": array(
                closed(
                    {
                        "index": COUNT,
                        "message": closed(
                            {"role": constant("assistant"), "content": TEXT, "refusal": NULL}
                        ),
                        "logprobs": optional(_CHAT_LOGPROBS),
                        "finish_reason": _REASON,
                    }
                )
            ),
            "usage": ref("Usage"),
        }
    ),
    "ChatChunk": closed(
        {
            **_HEAD,
            "object": constant("chat.completion.chunk"),
            "system_fingerprint": NULL,
            "choices": array(
                closed(
                    {
                        "index": COUNT,
                        "delta": closed({}, {"role": TEXT, "content": TEXT}),
                        "logprobs": optional(_CHAT_LOGPROBS),
                        "finish_reason": _REASON,
                    }
                )
            ),
        },
        {"usage": optional(ref("Usage"))},
    ),
}
