"""Schemas of OpenAI's protocol."""

from __future__ import annotations

from packhorse.serve.openapi.effectless import COMPLETION, EMBEDDING, GENERATION
from packhorse.serve.openapi.parts import (
    COUNT,
    FLAG,
    IMAGE,
    IMAGE_PART,
    INPUTS,
    INTEGER,
    KEPT,
    MODEL,
    NULL,
    NUMBER,
    TEXT,
    TEXT_PART,
    TOKEN_ID,
    VECTOR,
    Schema,
    array,
    closed,
    constant,
    one_of,
    optional,
    ref,
    request,
    thing,
)

# A text or an image as an object: Jina's form, OpenAI's, and one part as the content of a message.
_MIXED = one_of(
    thing({"text": TEXT}),
    thing({"image": IMAGE}),
    IMAGE_PART,
    thing({"content": one_of(TEXT, array(one_of(TEXT_PART, IMAGE_PART), 1))}),
)
_JSON_SCHEMA = one_of({"type": "object"}, TEXT)
_SAMPLING: dict[str, Schema] = {
    "model": MODEL,
    "temperature": optional({"type": "number", "minimum": 0, "maximum": 100}),
    "top_p": optional({"type": "number", "minimum": 0, "maximum": 1}),
    "top_k": optional({"type": "integer", "minimum": -1}),
    "min_p": optional({"type": "number", "minimum": 0, "maximum": 1}),
    "presence_penalty": optional({"type": "number", "minimum": -2, "maximum": 2}),
    "frequency_penalty": optional({"type": "number", "minimum": -2, "maximum": 2}),
    "repetition_penalty": optional({"type": "number", "exclusiveMinimum": 0, "maximum": 100}),
    "logit_bias": optional({"type": "object", "additionalProperties": NUMBER}),
    "seed": optional(INTEGER),
    "stop": optional(one_of(TEXT, array(TEXT))),
    "stop_token_ids": optional(array(TOKEN_ID)),
    "include_stop_str_in_output": optional(FLAG),
    "allowed_token_ids": optional(array(TOKEN_ID, 1)),
    "ignore_eos": optional(FLAG),
    "n": optional({"type": "integer", "minimum": 1, "maximum": 128}),
    "best_of": optional({"type": "integer", "minimum": 1, "description": "Equals n, if given."}),
    "max_tokens": optional(COUNT),
    "max_completion_tokens": optional({"type": "integer", "minimum": 1}),
    "n_predict": optional({"type": "integer", "minimum": -1}),
    "add_special_tokens": optional(FLAG),
    "truncate_prompt_tokens": optional(KEPT),
    "return_tokens_as_token_ids": optional(FLAG),
    "stream": optional(FLAG),
    "stream_options": optional(thing({}, {"include_usage": optional(FLAG)})),
    # One form at most.
    "regex": optional(TEXT),
    "guided_regex": optional(TEXT),
    "choices": optional(array(TEXT, 1)),
    "guided_choice": optional(array(TEXT, 1)),
    "grammar": optional(TEXT),
    "guided_grammar": optional(TEXT),
    "json_schema": optional(_JSON_SCHEMA),
    "guided_json": optional(_JSON_SCHEMA),
    "guided_json_object": optional(FLAG),
    "structured_outputs": optional(
        thing(
            {},
            {
                "json": optional(_JSON_SCHEMA),
                "regex": optional(TEXT),
                "choice": optional(array(TEXT, 1)),
                "grammar": optional(TEXT),
                "json_object": optional(FLAG),
            },
        )
    ),
    "response_format": optional(
        one_of(
            thing({"type": constant("text", "json_object")}, {"schema": {"type": "object"}}),
            thing(
                {
                    "type": constant("json_schema"),
                    "json_schema": thing({"schema": {"type": "object"}}),
                }
            ),
        )
    ),
}
_REASON = optional(constant("stop", "length"))
_CHAT_REASON = optional(constant("stop", "length", "tool_calls"))
_FUNCTION = thing({"name": TEXT}, {"description": TEXT, "parameters": optional({"type": "object"})})
_TOOLS: dict[str, Schema] = {
    "tools": optional(array(thing({"type": constant("function"), "function": _FUNCTION}))),
    "tool_choice": optional(
        one_of(
            constant("none", "auto", "required"),
            thing({"type": constant("function"), "function": thing({"name": TEXT})}),
        )
    ),
    "parallel_tool_calls": optional(FLAG),
}
_CALL: dict[str, Schema] = {
    "id": TEXT,
    "type": constant("function"),
    "function": closed({"name": TEXT, "arguments": TEXT}),
}
_PARTS = array(thing({"type": TEXT}))
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
        "token_logprobs": array(optional(NUMBER)),
        "top_logprobs": array(optional({"type": "object", "additionalProperties": NUMBER})),
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
    "EmbeddingsRequest": request(
        {},
        {
            "input": one_of(INPUTS, _MIXED, array(one_of(TEXT, _MIXED), 1)),
            "messages": {"type": "array", "items": _MIXED, "minItems": 1, "maxItems": 1},
            "modality": optional(constant("text", "image")),
            "model": MODEL,
            "encoding_format": optional(constant("float", "base64")),
            "dimensions": optional({"type": "integer", "minimum": 1}),
            "prompt_name": optional(TEXT),
            "normalize": optional(FLAG),
            "normalized": optional(FLAG),
            "truncate": optional(FLAG),
            "truncate_prompt_tokens": optional(KEPT),
        },
        EMBEDDING,
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
    "CompletionRequest": request(
        {"prompt": INPUTS},
        {
            **_SAMPLING,
            "logprobs": optional({"type": "integer", "minimum": 0, "maximum": 20}),
            "echo": optional(FLAG),
        },
        COMPLETION,
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
        {"role": TEXT},
        {
            "content": optional(one_of(TEXT, _PARTS)),
            "tool_calls": optional(array({"type": "object"})),
            "tool_call_id": optional(TEXT),
        },
    ),
    "ChatRequest": request(
        {"messages": array(ref("ChatMessage"), 1)},
        {
            **_SAMPLING,
            **_TOOLS,
            "logprobs": optional(FLAG),
            "top_logprobs": optional({"type": "integer", "minimum": 0, "maximum": 20}),
            "chat_template_kwargs": optional({"type": "object"}),
            "add_generation_prompt": optional(FLAG),
            "continue_final_message": optional(FLAG),
        },
        GENERATION,
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
                            {
                                "role": constant("assistant"),
                                "content": optional(TEXT),
                                "refusal": NULL,
                            },
                            {"tool_calls": array(closed(_CALL), 1)},
                        ),
                        "logprobs": optional(_CHAT_LOGPROBS),
                        "finish_reason": _CHAT_REASON,
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
                        "delta": closed(
                            {},
                            {
                                "role": TEXT,
                                "content": TEXT,
                                "tool_calls": array(closed({"index": COUNT, **_CALL}), 1),
                            },
                        ),
                        "logprobs": optional(_CHAT_LOGPROBS),
                        "finish_reason": _CHAT_REASON,
                    }
                )
            ),
        },
        {"usage": optional(ref("Usage"))},
    ),
}
