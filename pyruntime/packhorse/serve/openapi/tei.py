"""Schemas of text-embeddings-inference's protocol."""

from __future__ import annotations

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
    thing,
)

_CUT = {
    "truncate": optional(FLAG),
    "truncation_direction": optional(constant("Right", "right")),
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
    "EmbedRequest": thing(
        {"inputs": INPUTS},
        {
            **_PROMPTED,
            "normalize": optional(FLAG),
            "dimensions": optional({"type": "integer", "minimum": 1}),
        },
    ),
    "EmbedResponse": array(VECTOR),
    "EmbedAllRequest": thing({"inputs": INPUTS}, _PROMPTED),
    "EmbedAllResponse": array(array(VECTOR)),
    "EmbedSparseRequest": thing(
        {"inputs": one_of({"type": "string", "minLength": 1}, TEXTS)}, _PROMPTED
    ),
    "SparseValue": closed({"index": COUNT, "value": NUMBER}),
    "EmbedSparseResponse": array(array(ref("SparseValue"))),
    "RerankRequest": thing(
        {"query": TEXT, "texts": TEXTS},
        {**_CUT, "raw_scores": optional(FLAG), "return_text": optional(FLAG)},
    ),
    "Rank": closed({"index": COUNT, "score": NUMBER}, {"text": TEXT}),
    "RerankResponse": array(ref("Rank")),
    "PredictRequest": thing(
        {"inputs": one_of(TEXT, _PAIR, array(_PAIR, 1))}, {**_CUT, "raw_scores": optional(FLAG)}
    ),
    "Prediction": closed({"score": NUMBER, "label": TEXT}),
    "PredictResponse": one_of(array(ref("Prediction")), array(array(ref("Prediction")))),
    "SimilarityRequest": thing(
        {"inputs": thing({"source_sentence": TEXT, "sentences": TEXTS})},
        {"parameters": optional(thing({}, _PROMPTED)), "model": MODEL},
    ),
    "SimilarityResponse": VECTOR,
    "TokenizeRequest": thing(
        {"inputs": one_of(TEXT, TEXTS)},
        {
            "add_special_tokens": optional(FLAG),
            "prompt_name": optional(TEXT),
            "model": MODEL,
        },
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
    "DecodeRequest": thing(
        {"ids": one_of(array(TOKEN_ID, 1), array(array(TOKEN_ID), 1))},
        {"skip_special_tokens": optional(FLAG), "model": MODEL},
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
