"""Building blocks of JSON schemas."""

from __future__ import annotations

from typing import Any

from packhorse.serve.http.checks import ANY_VALUE, Effectless

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
INTEGER: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
# The field in protocols that name the model.
MODEL: Schema = {"type": ["string", "null"], "description": "A model's name; null: the first."}
# The number of tokens that are kept of a text; -1: as many as the model takes.
KEPT: Schema = {"anyOf": [{"type": "integer", "minimum": 1}, {"enum": [-1]}]}
TOKEN_ID: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}


def ref(name: str) -> Schema:
    """A schema of the document, by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def array(items: Schema, least: int = 0) -> Schema:
    return {"type": "array", "items": items, **({"minItems": least} if least else {})}


def one_of(*schemas: Schema) -> Schema:
    """Any of them."""
    return {"anyOf": list(schemas)}


def constant(*values: Any) -> Schema:
    return {"enum": list(values)}


def optional(schema: Schema) -> Schema:
    """It, or null."""
    return one_of(schema, NULL)


def thing(required: dict[str, Schema], more: dict[str, Schema] | None = None) -> Schema:
    """An object with some fields, and `more` that may be left out; others may be there, too."""
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(more or {})},
    }


def request(required: dict[str, Schema], more: dict[str, Schema], effectless: Effectless) -> Schema:
    """A body: an object with some fields, `more` that may be left out, and those that change no
    answer. Any other field is refused unless it is null."""
    ignored: dict[str, Schema] = {
        name: {"description": "Ignored."}
        if values is ANY_VALUE
        else {**constant(*values, None), "description": "No other value is taken."}
        for name, values in effectless.items()
        if "." not in name and name not in required
    }
    found = thing(required, {**ignored, **more})
    return {**found, "additionalProperties": NULL}


def closed(required: dict[str, Schema], more: dict[str, Schema] | None = None) -> Schema:
    """An answer: an object with some fields, `more` that may be left out, and no others."""
    return {**thing(required, more), "additionalProperties": False}


# A file of JPEG, PNG or WebP.
IMAGE: Schema = {
    "type": "string",
    "description": "A data URL, base64, or a URL of a host that the server allows.",
}
_URL = one_of(IMAGE, thing({"url": IMAGE}, {"detail": {}}))
IMAGE_PART = thing({"type": constant("image_url"), "image_url": _URL})
TEXT_PART = thing({"type": constant("text"), "text": TEXT})
VECTOR = array(NUMBER)
TEXTS = array(TEXT, 1)
IDS = array(TOKEN_ID, 1)
# A text, several, the ids of one, or of several.
INPUTS = one_of({"type": "string", "minLength": 1}, TEXTS, IDS, array(IDS, 1))
