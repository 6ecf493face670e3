"""The form that a generated text is to have, by the names that OpenAI, vLLM and llama.cpp have for
it, as options of `TextModel.generate`."""

from __future__ import annotations

from typing import Any

from packhorse.serve.checks import Fields
from packhorse.serve.errors import ServeError

_ANY_OBJECT = {"type": "object"}


def read_form(fields: Fields) -> dict[str, Any]:
    """At most one of schema, regex, choices and grammar. Raises ServeError."""
    found = {
        "regex": _one(fields, "regex", "guided_regex"),
        "choices": _one(fields, "choices", "guided_choice"),
        "grammar": _one(fields, "grammar", "guided_grammar"),
    }
    schemas = [
        _one(fields, "json_schema", "guided_json"),
        _of_response_format(fields),
        _ANY_OBJECT if fields.flag("guided_json_object", False) else None,
    ]
    of_vllm = fields.table("structured_outputs")
    if of_vllm is not None:
        for name, other in (("regex", "regex"), ("choices", "choice"), ("grammar", "grammar")):
            _set(found, name, of_vllm.get(other))
        schemas.append(of_vllm.get("json"))
        schemas.append(_ANY_OBJECT if of_vllm.flag("json_object", False) else None)
    found["schema"] = None
    for schema in schemas:
        _set(found, "schema", schema)
    given = {name: value for name, value in found.items() if value is not None}
    if len(given) > 1:
        raise ServeError(
            "validation", f"the output is to have {' and '.join(given)}, expected one of them"
        )
    return given


def _one(fields: Fields, name: str, other: str) -> Any:
    """What one of two names says."""
    values = [fields.get(name), fields.get(other)]
    if None not in values:
        fields.wrong(other, f"nothing beside {name}")
    return values[0] if values[1] is None else values[1]


def _set(found: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        return
    if found[name] is not None:
        raise ServeError("validation", f"the output is to have two forms of the kind {name}")
    found[name] = value


def _of_response_format(fields: Fields) -> Any:
    form = fields.table("response_format")
    if form is None:
        return None
    kind = form.choice("type", ("text", "json_object", "json_schema"), "text")
    if kind == "text":
        return None
    described = form if kind == "json_object" else form.table("json_schema")
    schema = None if described is None else described.get("schema")
    if schema is None and kind == "json_object":
        return _ANY_OBJECT
    if not isinstance(schema, dict):
        name = "schema" if kind == "json_object" else "json_schema.schema"
        form.wrong(name, "a JSON schema")
    return schema
