"""Schemas of text-embeddings-inference's protocol."""

from __future__ import annotations

from packhorse.serve.openapi.effectless import EMBEDDING, OF_TEXTS, RANKING
from packhorse.serve.openapi.parts import (
    COUNT,
    FLAG,
    INPUTS,
    MODEL,
    NULL,
    NUMBER,
    TEXT,
    TEXTS,
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

_CUT = {
    "truncate": optional(FLAG),
    "truncation_direction": optional(
        {**constant("Left", "Right", "left", "right"), "description": "The model's own, or null."}
    ),
    "model": MODEL,
}
_PROMPTED = {**_CUT, "prompt_name": optional(TEXT)}
_PAIR: Schema = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 2}
_CLASSES = closed(
    {
        "id2label": {"type": "object", "additionalProperties": TEXT},
        "label2id": {"type": "object", "additionalProperties": COUNT},
    }
)

SCHEMAS: dict[str, Schema] = {
    "ErrorType": constant(
        "Empty",
        "Validation",
        "Tokenizer",
        "Backend",
        "Overloaded",
        "Unauthorized",
        "Forbidden",
        "NotFound",
        "Timeout",
        "Unhealthy",
    ),
    "ErrorResponse": closed({"error": TEXT, "error_type": ref("ErrorType")}),
    "EmbedRequest": request(
        {"inputs": INPUTS},
        {
            **_PROMPTED,
            "normalize": optional(FLAG),
            "dimensions": optional({"type": "integer", "minimum": 1}),
        },
        EMBEDDING,
    ),
    "EmbedResponse": array(VECTOR),
    "EmbedAllRequest": request({"inputs": INPUTS}, _PROMPTED, EMBEDDING),
    "EmbedAllResponse": array(array(VECTOR)),
    "EmbedSparseRequest": request(
        {"inputs": one_of({"type": "string", "minLength": 1}, TEXTS)}, _PROMPTED, EMBEDDING
    ),
    "SparseValue": closed({"index": COUNT, "value": NUMBER}),
    "EmbedSparseResponse": array(array(ref("SparseValue"))),
    "RerankRequest": request(
        {"query": TEXT, "texts": TEXTS},
        {**_CUT, "raw_scores": optional(FLAG), "return_text": optional(FLAG)},
        RANKING,
    ),
    "Rank": closed({"index": COUNT, "score": NUMBER}, {"text": TEXT}),
    "RerankResponse": array(ref("Rank")),
    "PredictRequest": request(
        {"inputs": one_of(TEXT, _PAIR, array(_PAIR, 1))},
        {
            **_CUT,
            "raw_scores": optional(FLAG),
            "parameters": optional(
                thing(
                    {},
                    {
                        "function_to_apply": optional(constant("softmax", "sigmoid", "none")),
                        "top_k": optional({"type": "integer", "minimum": 1}),
                    },
                )
            ),
        },
        OF_TEXTS,
    ),
    "Prediction": closed({"score": NUMBER, "label": TEXT}),
    "PredictResponse": one_of(array(ref("Prediction")), array(array(ref("Prediction")))),
    "SimilarityRequest": request(
        {"inputs": thing({"source_sentence": TEXT, "sentences": TEXTS})},
        {"parameters": optional(thing({}, _PROMPTED)), "model": MODEL},
        EMBEDDING,
    ),
    "SimilarityResponse": VECTOR,
    "TokenizeRequest": request(
        {"inputs": one_of(TEXT, TEXTS)},
        {
            "add_special_tokens": optional(FLAG),
            "prompt_name": optional(TEXT),
            "model": MODEL,
        },
        OF_TEXTS,
    ),
    "SimpleToken": closed(
        {
            "id": TOKEN_ID,
            "text": TEXT,
            "special": FLAG,
            "start": optional(COUNT),
            "stop": optional(COUNT),
        }
    ),
    "TokenizeResponse": array(array(ref("SimpleToken"))),
    "DecodeRequest": request(
        {"ids": one_of(array(TOKEN_ID, 1), array(array(TOKEN_ID), 1))},
        {"skip_special_tokens": optional(FLAG), "model": MODEL},
        OF_TEXTS,
    ),
    "DecodeResponse": array(TEXT),
    "ModelType": one_of(
        closed({"classifier": _CLASSES}),
        closed({"reranker": _CLASSES}),
        closed({"embedding": closed({"pooling": TEXT})}),
        closed({"generation": closed({"max_context": COUNT})}),
    ),
    "Info": closed(
        {
            "model_id": TEXT,
            "model_sha": NULL,
            "model_dtype": TEXT,
            "model_type": ref("ModelType"),
            "max_concurrent_requests": COUNT,
            "max_input_length": COUNT,
            "max_batch_tokens": COUNT,
            "max_batch_requests": COUNT,
            "max_client_batch_size": COUNT,
            "auto_truncate": FLAG,
            "tokenization_workers": COUNT,
            "version": TEXT,
            "sha": NULL,
            "docker_label": NULL,
            "model_path": TEXT,
            "device": array(TEXT),
            "methods": array(TEXT),
            "models": array(TEXT),
        }
    ),
    "RootRequest": one_of(
        ref("EmbedRequest"),
        ref("EmbedSparseRequest"),
        ref("RerankRequest"),
        ref("PredictRequest"),
    ),
    "RootResponse": one_of(
        ref("EmbedResponse"),
        ref("EmbedSparseResponse"),
        ref("RerankResponse"),
        ref("PredictResponse"),
    ),
}
