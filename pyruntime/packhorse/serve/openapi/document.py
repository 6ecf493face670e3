"""The document: every route with its request, its answer and its errors."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import packhorse
from packhorse.serve.openapi import audio, openai, others, responses, tei
from packhorse.serve.openapi.parts import TEXT, Schema, ref


class Operation(NamedTuple):
    """A route. request: None where there is no body. events: of a stream, what each one is;
    named: whether by its type, and without [DONE] at the end. page: whether the answer is a file of
    the page, of any type. form: whether the request is a form with a file, whose answer may also be
    plain text."""

    method: str
    path: str
    tag: str
    summary: str
    response: str | None
    request: str | None = None
    events: str | None = None
    status: int = 200
    page: bool = False
    named: bool = False
    form: bool = False


_TEI, _OPENAI, _COHERE, _RERANK, _SERVER = "TEI", "OpenAI", "Cohere", "Rerankers", "Server"
_HUB, _TGI = "Hugging Face", "TGI"
OPERATIONS = (
    Operation("post", "/", _TEI, "Task of the first model", "RootResponse", "RootRequest"),
    Operation("post", "/embed", _TEI, "Embeddings", "EmbedResponse", "EmbedRequest"),
    Operation(
        "post", "/embed_all", _TEI, "Vectors of all tokens", "EmbedAllResponse", "EmbedAllRequest"
    ),
    Operation(
        "post",
        "/embed_sparse",
        _TEI,
        "Sparse embeddings",
        "EmbedSparseResponse",
        "EmbedSparseRequest",
    ),
    Operation("post", "/rerank", _TEI, "Texts by their scores", "RerankResponse", "RerankRequest"),
    Operation("post", "/predict", _TEI, "Labels of texts", "PredictResponse", "PredictRequest"),
    Operation(
        "post", "/similarity", _TEI, "Cosines of texts", "SimilarityResponse", "SimilarityRequest"
    ),
    Operation("post", "/tokenize", _TEI, "Tokens of texts", "TokenizeResponse", "TokenizeRequest"),
    Operation("post", "/decode", _TEI, "Texts of tokens", "DecodeResponse", "DecodeRequest"),
    Operation("get", "/info", _TEI, "The first model and the limits", "Info"),
    Operation(
        "post",
        "/token-classification",
        _HUB,
        "Entities of texts",
        "TokenClassificationResponse",
        "TokenClassificationRequest",
    ),
    Operation(
        "post",
        "/question-answering",
        _HUB,
        "Answers that a context holds",
        "QuestionAnsweringResponse",
        "QuestionAnsweringRequest",
    ),
    Operation("post", "/fill-mask", _HUB, "Words for masks", "FillMaskResponse", "FillMaskRequest"),
    Operation(
        "post",
        "/generate",
        _TGI,
        "A text after a prompt, or of a source",
        "GenerateResponse",
        "GenerateRequest",
    ),
    Operation(
        "post",
        "/image-classification",
        _HUB,
        "Labels of images",
        "ImageClassificationResponse",
        "ImageClassificationRequest",
    ),
    Operation(
        "post",
        "/zero-shot-image-classification",
        _HUB,
        "Labels of images by labels of the request",
        "ImageClassificationResponse",
        "ZeroShotImageRequest",
    ),
    Operation("post", "/translate", _HUB, "Translations", "TranslateResponse", "TranslateRequest"),
    Operation("post", "/summarize", _HUB, "Summaries", "SummarizeResponse", "SummarizeRequest"),
    Operation(
        "post", "/embeddings", _OPENAI, "Embeddings", "EmbeddingsResponse", "EmbeddingsRequest"
    ),
    Operation(
        "post", "/v1/embeddings", _OPENAI, "Embeddings", "EmbeddingsResponse", "EmbeddingsRequest"
    ),
    Operation("get", "/v1/models", _OPENAI, "All models", "ModelList"),
    Operation("get", "/v1/models/{name}", _OPENAI, "One model", "Model"),
    Operation(
        "post",
        "/v1/completions",
        _OPENAI,
        "Texts that go on",
        "CompletionResponse",
        "CompletionRequest",
        "CompletionChunk",
    ),
    Operation(
        "post",
        "/v1/chat/completions",
        _OPENAI,
        "Answers in a conversation",
        "ChatResponse",
        "ChatRequest",
        "ChatChunk",
    ),
    Operation(
        "post",
        "/v1/responses",
        _OPENAI,
        "Answers in the newer form",
        "Response",
        "ResponseRequest",
        "ResponseEvent",
        named=True,
    ),
    Operation(
        "post",
        "/v1/audio/transcriptions",
        _OPENAI,
        "Texts of audio",
        "TranscriptionResponse",
        "TranscriptionForm",
        "TranscriptionEvent",
        form=True,
    ),
    Operation(
        "post",
        "/v1/audio/translations",
        _OPENAI,
        "English texts of audio",
        "TranscriptionResponse",
        "TranslationForm",
        "TranscriptionEvent",
        form=True,
    ),
    Operation(
        "post",
        "/v1/rerank",
        _RERANK,
        "Documents by their scores",
        "JinaRerankResponse",
        "JinaRerankRequest",
    ),
    Operation("post", "/score", _RERANK, "Scores of pairs", "ScoreResponse", "ScoreRequest"),
    Operation("post", "/v1/score", _RERANK, "Scores of pairs", "ScoreResponse", "ScoreRequest"),
    Operation(
        "post", "/v2/embed", _COHERE, "Embeddings", "CohereEmbedResponse", "CohereEmbedRequest"
    ),
    Operation(
        "post",
        "/v2/rerank",
        _COHERE,
        "Documents by their scores",
        "CohereRerankResponse",
        "CohereRerankRequest",
    ),
    Operation("get", "/models", _SERVER, "All models and what they do", "ServedModels"),
    Operation("post", "/models", _SERVER, "Load a model", "Loaded", "LoadRequest", None, 201),
    Operation("get", "/models/{name}", _SERVER, "A model and what it does", "Loaded"),
    Operation("delete", "/models/{name}", _SERVER, "Unload a model", None, status=204),
    Operation("post", "/models/{name}/reload", _SERVER, "Load a model anew", "ServedModel"),
    Operation("get", "/", _SERVER, "A page to try the models", None, page=True),
    Operation("get", "/page/{name}", _SERVER, "A file of the page", None, page=True),
    Operation("get", "/health", _SERVER, "Health of the models", None),
    Operation("get", "/ping", _SERVER, "Health of the models, as /health says", None),
    Operation("get", "/ready", _SERVER, "Readiness for a request", None),
    Operation("get", "/metrics", _SERVER, "Metrics, for Prometheus", None),
    Operation("get", "/openapi.json", _SERVER, "This document", None),
)
PUBLIC = ("/", "/page/{name}", "/health", "/ping", "/ready", "/metrics", "/openapi.json")
# By tag. What no model is needed for fails with fewer.
_TEI_ERRORS = ("ErrorResponse", (400, 401, 403, 404, 413, 422, 424, 429, 500, 503, 504))
_ERRORS = {
    _TEI: _TEI_ERRORS,
    _HUB: _TEI_ERRORS,
    _TGI: _TEI_ERRORS,
    _SERVER: ("ErrorResponse", (400, 401, 403, 404, 409, 413, 422, 424, 500, 503, 504)),
    _OPENAI: ("OpenAIError", (400, 401, 403, 404, 413, 429, 500, 503, 504)),
    _RERANK: ("OpenAIError", (400, 401, 403, 404, 413, 429, 500, 503, 504)),
    _COHERE: ("CohereError", (400, 401, 403, 404, 413, 429, 500, 503, 504)),
}
_DESCRIPTIONS = {
    400: "The body is not JSON, or there is nothing in it",
    401: "The bearer token is missing or wrong",
    403: "The page of another site asks, or the server was started without --admin",
    404: "There is no such model",
    409: "There is a model of this name",
    413: "The body, a list or a text is too long",
    422: "A field is not acceptable",
    424: "The model failed, or is not made for this",
    429: "Too much waits already; Retry-After says when to come back",
    500: "An error of the server",
    503: "The server stops, no model is well, or there are too many connections or bodies",
    504: "The body did not come in time, or the answer took too long",
}


def _json(name: str) -> Schema:
    return {"application/json": {"schema": ref(name)}}


def _event(one: Operation) -> Schema:
    """One event of a stream: OpenAPI 3.1 has no schema of a stream's items, and clients and
    checkers read `schema` of text/event-stream as that of each event, as `itemSchema` of 3.2 is.
    """
    assert one.events is not None
    data = {**TEXT, "contentMediaType": "application/json", "contentSchema": ref(one.events)}
    if not one.named:
        data["description"] = "The last event's is [DONE]."
    return {
        "type": "object",
        "required": ["data"],
        "properties": {"data": data, "event": TEXT},
    }


def _operation(one: Operation) -> Schema:
    content: Schema = {}
    if one.response is not None:
        content = _json(one.response)
    elif one.page:
        content = {}
    elif one.path == "/openapi.json":
        content = {"application/json": {"schema": {"type": "object"}}}
    elif one.status == 200:
        content = {"text/plain": {"schema": TEXT}}
    if one.form:
        content |= {"text/plain": {"schema": TEXT}, "text/vtt": {"schema": TEXT}}
    if one.events is not None:
        content["text/event-stream"] = {"schema": _event(one)}
    found: Schema = {
        "tags": [one.tag],
        "summary": one.summary,
        "operationId": f"{one.method}_{one.path.strip('/') or 'root'}".translate(
            str.maketrans("/{}.", "____")
        ),
        "responses": {
            str(one.status): {
                "description": "Done",
                **({"content": content} if content else {}),
            }
        },
    }
    error, statuses = _ERRORS[one.tag]
    for status in statuses:
        described = {"description": _DESCRIPTIONS[status], "content": _json(error)}
        found["responses"][str(status)] = described
    if one.request is not None:
        sent = {"multipart/form-data": {"schema": ref(one.request)}}
        found["requestBody"] = {
            "required": True,
            "content": sent if one.form else _json(one.request),
        }
    if "{name}" in one.path:
        found["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": TEXT}]
    if one.path not in PUBLIC or one.method == "post":
        found["security"] = [{"key": []}, {}]
    return found


@cache
def document() -> dict[str, Any]:
    """The document as JSON has it. Not to be changed."""
    paths: dict[str, Any] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Packhorse",
            "version": packhorse.__version__,
            "summary": "Models of texts and images by the protocols of TEI, OpenAI and Cohere",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {
                **tei.SCHEMAS,
                **openai.SCHEMAS,
                **audio.SCHEMAS,
                **responses.SCHEMAS,
                **others.SCHEMAS,
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
