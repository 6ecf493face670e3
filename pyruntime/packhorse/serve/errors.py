"""Kinds of failure of a request, and the statuses that the protocols have for them."""

from __future__ import annotations

from typing import NamedTuple


class Answer(NamedTuple):
    """Wording of a kind of failure in the protocols of text-embeddings-inference and OpenAI."""

    tei_status: int
    tei_type: str
    openai_status: int
    openai_type: str
    openai_code: str | None


_INVALID = "invalid_request_error"
KINDS = {
    "empty": Answer(400, "Empty", 400, _INVALID, None),
    "malformed": Answer(400, "Validation", 400, _INVALID, None),
    "validation": Answer(422, "Validation", 400, _INVALID, None),
    "unsupported": Answer(422, "Validation", 400, _INVALID, "unsupported_parameter"),
    "too_long": Answer(413, "Validation", 400, _INVALID, "context_length_exceeded"),
    "too_large": Answer(413, "Validation", 413, _INVALID, "request_too_large"),
    "tokenizer": Answer(422, "Tokenizer", 400, _INVALID, None),
    "unsuited": Answer(424, "Backend", 400, _INVALID, "model_not_suited"),
    "backend": Answer(424, "Backend", 500, "server_error", None),
    "internal": Answer(500, "Backend", 500, "server_error", None),
    "overloaded": Answer(429, "Overloaded", 429, "rate_limit_error", "overloaded"),
    "busy": Answer(503, "Overloaded", 503, "server_error", "overloaded"),
    "unauthorized": Answer(401, "Unauthorized", 401, _INVALID, "invalid_api_key"),
    "forbidden": Answer(403, "Forbidden", 403, _INVALID, None),
    "no_model": Answer(404, "NotFound", 404, _INVALID, "model_not_found"),
    "no_route": Answer(404, "NotFound", 404, _INVALID, None),
    "no_method": Answer(405, "Validation", 405, _INVALID, None),
    "conflict": Answer(409, "Validation", 409, _INVALID, None),
    "timeout": Answer(504, "Timeout", 504, "server_error", "timeout"),
    "unhealthy": Answer(503, "Unhealthy", 503, "server_error", None),
}


class ServeError(Exception):
    """A request that fails, with a message for the client.

    kind         one of `KINDS`
    parameter    the field of the body that is wrong
    retry_after  seconds after which the client may try again
    allow        the methods that the route takes
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        parameter: str | None = None,
        retry_after: int | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.answer = KINDS[kind]
        self.message = message
        self.parameter = parameter
        self.retry_after = retry_after
        self.allow = allow


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""
