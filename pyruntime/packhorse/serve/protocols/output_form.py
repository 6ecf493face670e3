"""The form that a generated text is to have, by the names that OpenAI, vLLM and llama.cpp have for
it, as options of `TextModel.generate`."""

from __future__ import annotations

from typing import Any, NamedTuple

from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import Fields

_ANY_OBJECT = {"type": "object"}
_TYPES = ("text", "json_object", "json_schema")  # values of response_format.type
_MOST_CHOICES = 10_000
# Field -> the option that it is.
_FIELDS = {
    "regex": "regex",
    "guided_regex": "regex",
    "choices": "choices",
    "guided_choice": "choices",
    "grammar": "grammar",
    "guided_grammar": "grammar",
    "json_schema": "schema",
    "guided_json": "schema",
}
_STRUCTURED_OUTPUTS = {
    "regex": "regex",
    "choice": "choices",
    "grammar": "grammar",
    "json": "schema",
}


class Form(NamedTuple):
    """Form of the output that a request asks for.

    name    name of the field that asks for it
    option  option of `generate`: schema, regex, choices or grammar
    """

    name: str
    option: str
    value: Any


def read_form(fields: Fields) -> Form | None:
    """None where the text may be any. Raises ServeError, also for more than one form."""
    found = [*_of_names(fields, _FIELDS), *_any_object(fields, "guided_json_object")]
    of_vllm = fields.table("structured_outputs")
    if of_vllm is not None:
        found += _of_names(of_vllm, _STRUCTURED_OUTPUTS) + _any_object(of_vllm, "json_object")
    found += _of_response_format(fields)
    if len(found) > 1:
        names = " and ".join(form.name for form in found)
        raise ServeError("validation", f"{names} were given, expected one form of the output")
    return found[0] if found else None


def _of_names(fields: Fields, options: dict[str, str]) -> list[Form]:
    found = []
    for name, option in options.items():
        value = fields.get(name)
        if value is None:
            continue
        if option == "choices":
            value = fields.texts(name, _MOST_CHOICES)
        elif option != "schema":
            value = fields.text(name)
        elif not isinstance(value, dict | str):
            fields.wrong(name, "a JSON schema, or its text")
        found.append(Form(fields.full_name(name), option, value))
    return found


def _any_object(fields: Fields, name: str) -> list[Form]:
    asked = fields.flag(name, False)
    return [Form(fields.full_name(name), "schema", _ANY_OBJECT)] if asked else []


def _of_response_format(fields: Fields) -> list[Form]:
    form = fields.table("response_format")
    if form is None:
        return []
    of_schema = form.table("json_schema") if form.get("type") == "json_schema" else None
    found = described_form(form, of_schema, "response_format")
    return [] if found is None else [found]


def described_form(form: Fields, of_schema: Fields | None, name: str) -> Form | None:
    """The form of a field with a type, as both protocols of OpenAI have it. Raises ServeError.

    of_schema  where the schema of the type "json_schema" stands
    name       of the field
    """
    kind = form.choice("type", _TYPES, "text")
    if kind == "text":
        return None
    if kind == "json_object" and form.get("schema") is None:
        return Form(name, "schema", _ANY_OBJECT)
    described = form if kind == "json_object" else of_schema
    if described is None:
        form.wrong("json_schema", "an object with a schema")
    schema = described.get("schema")
    if not isinstance(schema, dict):
        described.wrong("schema", "a JSON schema")
    return Form(name, "schema", schema)
