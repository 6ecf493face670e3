"""`packhorse serve`: every field of a request is done, or changes no answer, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packhorse import TextModel
from picture_models import data_url, picture, picture_model
from serve_room import PACKAGES, Client, serving, settings_for

for package in (*PACKAGES, "llguidance", "PIL"):
    pytest.importorskip(package)

from packhorse.serve.http.checks import ANY_VALUE  # noqa: E402
from packhorse.serve.openapi import document, effectless  # noqa: E402

TEXTS = ["the cat sat on the mat", "a dog"]
PICTURE = data_url(picture(0))
SCHEMA = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}},
    "required": ["sure"],
    "additionalProperties": False,
}
CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    "/embed": {"inputs": TEXTS, "model": "minilm"},
    "/embed_all": {"inputs": TEXTS, "model": "minilm"},
    "/embed_sparse": {"inputs": TEXTS, "model": "splade"},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": TEXTS}, "model": "minilm"},
    "/rerank": {"query": "a", "texts": TEXTS},
    "/predict": {"inputs": "a dog", "model": "classifier"},
    "/tokenize": {"inputs": TEXTS, "model": "minilm"},
    "/decode": {"ids": [7, 8], "model": "minilm"},
    "/token-classification": {"inputs": TEXTS},
    "/fill-mask": {"inputs": "the [MASK] sat"},
    "/image-classification": {"inputs": PICTURE, "model": "deit"},
    "/zero-shot-image-classification": {
        "inputs": PICTURE,
        "parameters": {"candidate_labels": ["cat", "dog"]},
        "model": "clip",
    },
    "/v1/embeddings": {"input": TEXTS, "model": "minilm"},
    "/v1/rerank": {"query": "a", "documents": TEXTS},
    "/v1/score": {"text_1": "a", "text_2": TEXTS},
    "/v2/embed": {"texts": TEXTS, "model": "minilm"},
    "/v2/rerank": {"query": "a", "documents": TEXTS},
    "/generate": {"inputs": "tr", "model": "lm", "parameters": {"max_new_tokens": 5}},
    "/v1/completions": {"prompt": "tr", "max_tokens": 9, "temperature": 0},
    CHAT: {
        "messages": [{"role": "user", "content": "tr"}],
        "max_tokens": 9,
        "temperature": 0,
    },
}
BODIES["/v1/responses"] = {"input": "tr", "max_output_tokens": 9, "temperature": 0}
GENERATING = ("/v1/completions", CHAT)
TABLES = {
    "/v1/completions": effectless.COMPLETION,
    CHAT: effectless.GENERATION,
    "/v1/responses": effectless.RESPONSES,
    **dict.fromkeys(("/v1/rerank", "/v1/score", "/v2/rerank", "/rerank"), effectless.RANKING),
    **dict.fromkeys(("/embed", "/embed_all", "/v1/embeddings", "/v2/embed"), effectless.EMBEDDING),
    **dict.fromkeys(("/predict", "/tokenize", "/fill-mask"), effectless.OF_TEXTS),
}


@pytest.fixture(scope="module")
def client(
    minilm: Path,
    folders: dict[str, Path],
    models: list[TextModel],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Client]:
    chosen = ("reranker", "classifier", "splade", "tagger", "filler")
    named = [f"{name}={folders[name]}" for name in chosen]
    root = tmp_path_factory.mktemp("pictures")
    named += [f"{name}={picture_model(name, root / name)}" for name in ("clip", "deit")]
    with serving(settings_for(f"minilm={minilm}", *named, "lm=chance")) as (found, _):
        yield found


def ask(client: Client, path: str, **fields: Any) -> Any:
    answer = client.post(path, {**BODIES[path], **fields})
    assert answer.status == 200, answer.body
    return answer.json


def refusal(client: Client, path: str, **fields: Any) -> str:
    answer = client.post(path, {**BODIES[path], **fields})
    assert answer.status in (400, 422), answer.body
    error = answer.json.get("error", answer.json.get("message"))
    return str(error["message"] if isinstance(error, dict) else error)


def result(answer: Any) -> Any:
    """The part of an answer that does not tell the request."""
    return {
        key: answer[key] for key in ("choices", "data", "results", "embeddings") if key in answer
    } | {"texts": [item["content"] for item in answer.get("output", ())]}


# --- the rule


def test_the_bodies_are_those_of_all_routes() -> None:
    posts = {path for path, item in document()["paths"].items() if "post" in item}
    others = {"/", "/embeddings", "/score", "/question-answering", "/models"}
    others |= {"/translate", "/summarize"}  # test_serve_text_to_text.py has them
    others |= {"/v1/audio/transcriptions", "/v1/audio/translations"}  # test_serve_audio.py has them
    assert posts - others - {"/models/{name}/reload"} == BODIES.keys()


@pytest.mark.parametrize("path", BODIES)
def test_a_field_that_a_route_does_not_know_is_refused(client: Client, path: str) -> None:
    for value in (1, False, "x", ["x"], {"x": 1}):
        assert "no_such_field is not supported" in refusal(client, path, no_such_field=value)
    client_of_null = client.post(path, {**BODIES[path], "no_such_field": None})
    assert client_of_null.status == 200, client_of_null.body


@pytest.mark.parametrize("path", BODIES)
def test_the_description_says_so(path: str) -> None:
    from jsonschema import Draft202012Validator

    found = document()
    body = found["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = Draft202012Validator({**body, "components": found["components"]})
    harmless = {
        name: "x" if values is ANY_VALUE else values[0]
        for name, values in TABLES.get(path, {}).items()
        if "." not in name
    }
    assert validator.is_valid({**harmless, **BODIES[path]})
    assert not validator.is_valid({**BODIES[path], "no_such_field": 1})


@pytest.mark.parametrize("path", TABLES)
def test_what_changes_no_answer_is_taken(client: Client, path: str) -> None:
    """All fields of the table at once, with each value that it has."""
    fields = {name: values for name, values in TABLES[path].items() if "." not in name}
    if path == CHAT:
        fields.pop("echo")  # in the other route a field that is done
    plain = ask(client, path)
    for i in range(max(1 if one is ANY_VALUE else len(one) for one in fields.values())):
        given = {
            name: {"any": "thing"} if values is ANY_VALUE else values[min(i, len(values) - 1)]
            for name, values in fields.items()
            if name not in BODIES[path]
        }
        found = ask(client, path, **given)
        assert result(found) == result(plain) if isinstance(found, dict) else found == plain


REFUSED: dict[str, Any] = {
    "functions": [{}],
    "function_call": {"name": "f"},
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy"},
    "prediction": {"type": "content", "content": "a"},
    "web_search_options": {},
    "reasoning_effort": "high",
    "verbosity": "low",
    "suffix": "end",
    "best_of": 3,
    "use_beam_search": True,
    "num_beams": 2,
    "length_penalty": 2.0,
    "min_tokens": 3,
    "bad_words": ["a"],
    "prompt_logprobs": 0,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "chat_template": "{{ 'other' }}",
    "documents": [{"text": "a"}],
    "guided_decoding_backend": "outlines",
    "guided_whitespace_pattern": " ",
    "cache_salt": "a",
    "return_token_ids": True,
    "logits_processors": ["a"],
    "repeat_penalty": 1.1,
    "typical_p": 0.9,
    "tfs_z": 0.5,
    "mirostat": 2,
    "dry_multiplier": 0.8,
    "xtc_probability": 0.5,
    "dynatemp_range": 0.5,
    "samplers": ["top_k"],
    "id_slot": 3,
    "n_probs": 2,
    "n_keep": 5,
    "no_repeat_ngram_size": 2,
    "suppress_tokens": [3],
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_that_is_not_done_is_refused_by_name(client: Client, name: str) -> None:
    for path in GENERATING:
        assert f"{name} is not supported" in refusal(client, path, **{name: REFUSED[name]})


@pytest.mark.parametrize(
    ("name", "value"),
    [("tools", [{"type": "function"}]), ("tool_choice", "required"), ("parallel_tool_calls", 1)],
)
def test_completions_have_no_tools(client: Client, name: str, value: Any) -> None:
    said = refusal(client, "/v1/completions", **{name: value})
    assert f"{name} is not supported" in said


def test_fields_within_fields(client: Client) -> None:
    wrong: list[dict[str, Any]] = [
        {"structured_outputs": {"structural_tag": "{}"}},
        {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
        {"response_format": {"type": "text", "schema": {}}},
        {"stream": True, "stream_options": {"continuous_usage_stats": True}},
    ]
    for fields in wrong:
        said = refusal(client, CHAT, **fields)
        (table,) = (value for value in fields.values() if isinstance(value, dict))
        assert f"{list(table)[-1]} is not supported" in said
    assert "echo is not supported" in refusal(client, CHAT, echo=True)
    for name in ("chat_template", "tools"):
        assert name in refusal(client, CHAT, chat_template_kwargs={name: "x"})
    assert "parameters.x is not" in refusal(client, "/predict", parameters={"x": 1})


# --- fields of routes that generate


def text_of(answer: Any) -> str:
    choice = answer["choices"][0]
    found: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return found


CAT = 'root ::= "cat"'
FORMS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"guided_regex": "ca+t"}, ("cat", "caat")),
    ({"guided_choice": ["cat", "dog"]}, ("cat", "dog")),
    ({"guided_grammar": CAT}, ("cat",)),
    ({"grammar": CAT}, ("cat",)),
    ({"grammar": 'start: "cat"'}, ("cat",)),
    ({"structured_outputs": {"regex": "cat"}}, ("cat",)),
    ({"structured_outputs": {"choice": ["cat"]}}, ("cat",)),
    ({"structured_outputs": {"grammar": CAT, "disable_fallback": True}}, ("cat",)),
]


@pytest.mark.parametrize(("fields", "expected"), FORMS)
def test_forms_of_the_output(
    client: Client, fields: dict[str, Any], expected: tuple[str, ...]
) -> None:
    for path in GENERATING:
        assert text_of(ask(client, path, seed=1, **fields)).startswith(expected[0][:2])
    if len(expected[0]) == len(expected[-1]):
        assert text_of(ask(client, path, **fields)) in expected


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": SCHEMA},
        {"json_schema": SCHEMA},
        {"structured_outputs": {"json": SCHEMA}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": SCHEMA, "name": "x"},
            }
        },
    ],
)
def test_a_schema_by_each_name(client: Client, fields: dict[str, Any]) -> None:
    text = text_of(ask(client, CHAT, **fields, max_tokens=60))
    assert text.lstrip().startswith("{")
    assert set(text) <= set('{}":surefalt \t\r\n')  # no other property than "sure", and its values
    any_object = ({"guided_json_object": True}, {"structured_outputs": {"json_object": True}})
    for other in any_object:
        assert text_of(ask(client, CHAT, **other, max_tokens=60)).lstrip().startswith("{")


def test_one_form_at_most(client: Client) -> None:
    twice: list[tuple[dict[str, Any], str]] = [
        ({"guided_regex": "a", "regex": "b"}, "guided_regex"),
        ({"guided_json": SCHEMA, "response_format": {"type": "json_object"}}, "guided_json and"),
        ({"regex": "a", "grammar": CAT}, "regex and grammar"),
        ({"structured_outputs": {"regex": "a"}, "regex": "a"}, "regex"),
    ]
    for fields, said in twice:
        assert said in refusal(client, CHAT, **fields)
    wrong: dict[str, Any] = {
        "grammar": "root ::= (",
        "guided_grammar": "x",
        "guided_json": {"type": "no"},
        "guided_regex": "(",
        "guided_choice": [],
        "regex": 3,
        "json_schema": 3,
        "structured_outputs": {"json": {"type": "no"}},
        "response_format": {"type": "json_object", "schema": {"type": "no"}},
    }
    for name, value in wrong.items():
        assert name in refusal(client, CHAT, **{name: value})
    assert "at most" in refusal(client, CHAT, grammar="root ::= " + '"a" ' * 30_000)


def test_options_of_sampling(client: Client, models: list[TextModel]) -> None:
    session: Any = models[0].session

    def sampling(path: str = "/v1/completions", **fields: Any) -> Any:
        ask(client, path, **{"temperature": 1, **fields})
        return session._engine.submitted[-1].sampling

    found = sampling(
        allowed_token_ids=[5, 6], stop_token_ids=[7], ignore_eos=True, repetition_penalty=1.5
    )
    assert found.allowed_ids == (5, 6)
    assert (found.stop_ids, found.ignore_eos, found.repetition_penalty) == ((7,), True, 1.5)
    assert 0 < sampling(top_p=0).top_p < 1e-6  # the most probable token alone
    assert sampling(top_k=-1).top_k == sampling(top_k=0).top_k == 0
    assert sampling(seed=-1).seed is None
    assert sampling(seed=-2).seed == 2**64 - 2
    assert sampling(n_predict=4).max_new_tokens == 9  # `max_tokens` goes first
    assert sampling(n_predict=4, max_tokens=None).max_new_tokens == 4
    assert sampling(max_tokens=None).max_new_tokens == 16
    assert sampling(max_tokens=0).max_new_tokens == 0
    assert sampling(logprobs=0).logprobs == 0
    assert sampling(CHAT, logprobs=True, top_logprobs=0).logprobs == 0
    assert sampling(stop=[], logit_bias={}).logprobs is None
    assert "allowed_token_ids is []" in refusal(client, CHAT, allowed_token_ids=[])
    assert "stop_token_ids is" in refusal(client, CHAT, stop_token_ids=["a"])
    assert "ignore_eos is 1" in refusal(client, CHAT, ignore_eos=1)
    assert "top_k is -2, expected an integer, -1 or more" in refusal(client, CHAT, top_k=-2)


def test_the_tokens_of_a_prompt(client: Client, models: list[TextModel]) -> None:
    session: Any = models[0].session
    tokenizer = models[0].tokenizer

    def prompt(path: str, **fields: Any) -> Any:
        ask(client, path, **fields)
        return session._engine.submitted[-1]._prompt

    ids = tokenizer.plain_ids("a trueAd").tolist()
    message = [{"role": "user", "content": "a trueAd"}]
    for path, given in (("/v1/completions", {"prompt": "a trueAd"}), (CHAT, {"messages": message})):
        assert prompt(path, **given) == ids
        assert prompt(path, **given, truncate_prompt_tokens=2) == ids[-2:]
        assert prompt(path, **given, truncate_prompt_tokens=4000) == ids
        for special in (True, False):  # this tokenizer puts none around a text
            assert prompt(path, **given, add_special_tokens=special) == ids
    long = ids * 1500
    assert prompt("/v1/completions", prompt=long, truncate_prompt_tokens=-1) == long[-3991:]
    assert "truncate_prompt_tokens is 0" in refusal(client, CHAT, truncate_prompt_tokens=0)


def test_a_stop_string_that_stays(client: Client, models: list[TextModel]) -> None:
    whole = models[0].generate("tr", max_new_tokens=40)
    stop = next(one for one in whole[3:] if one.isascii())
    given = {"stop": [stop], "max_tokens": 40, "include_stop_str_in_output": True}
    before, found, _ = whole.partition(stop)
    assert text_of(ask(client, "/v1/completions", **given)) == before + found
    prompts = ("tr", "a", "b", "c", "d", "e", "true", "Ada")
    firsts = {one: models[0].generate(one, max_new_tokens=1, details=True) for one in prompts}
    # A token of whole characters: what a limit cuts from a character is left out.
    prompt, first = next(
        (one, first) for one, first in firsts.items() if first.text and first.text.isascii()
    )
    ended = {"prompt": prompt, "stop_token_ids": first.ids}
    kept = ask(client, "/v1/completions", **ended, include_stop_str_in_output=True)
    assert text_of(kept) == first.text
    assert text_of(ask(client, "/v1/completions", **ended)) == ""


# --- fields of rerankers and of embeddings


def logits(folders: dict[str, Path], texts: list[str], **options: Any) -> Any:
    with TextModel.load(folders["reranker"], threads=1) as model:
        return model.score("a", texts, activation="none", **options)


def scores(answer: Any) -> list[float]:
    rows = answer["results"] if "results" in answer else answer["data"]
    return [
        one.get("relevance_score", one.get("score"))
        for one in sorted(rows, key=lambda r: r["index"])
    ]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/score"])
def test_logits_of_rerankers(client: Client, folders: dict[str, Path], path: str) -> None:
    expected = logits(folders, TEXTS)
    for fields in ({"raw_scores": True}, {"use_activation": False}, {"activation": False}):
        np.testing.assert_allclose(scores(ask(client, path, **fields)), expected, rtol=1e-6)
    plain = scores(ask(client, path))
    np.testing.assert_allclose(plain, 1 / (1 + np.exp(-expected.astype(float))), rtol=1e-6)
    for neutral in ({"raw_scores": False}, {"use_activation": True}, {"activation": True}):
        assert scores(ask(client, path, **neutral)) == plain
    assert "the same" in refusal(client, path, raw_scores=True, activation=True)


def test_texts_are_shortened(client: Client, folders: dict[str, Path], minilm: Path) -> None:
    expected = logits(folders, TEXTS, max_length=6)
    for path in ("/v1/rerank", "/v1/score"):
        found = scores(ask(client, path, truncate_prompt_tokens=6, raw_scores=True))
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    one = 1 / (1 + np.exp(-logits(folders, ["the", "a"]).astype(float)))
    for path in ("/v1/rerank", "/v2/rerank"):
        found = scores(ask(client, path, max_tokens_per_doc=1))
        np.testing.assert_allclose(found, one, rtol=1e-6)
        whole = scores(ask(client, path))
        assert scores(ask(client, path, max_tokens_per_doc=4096)) == whole
    assert scores(ask(client, "/v1/rerank", max_tokens_per_doc=0)) == whole
    with TextModel.load(minilm, threads=1) as model:
        short = model.embed(TEXTS, max_length=4)
    found = ask(client, "/v1/embeddings", truncate_prompt_tokens=4)
    assert found["usage"]["prompt_tokens"] == 8
    np.testing.assert_array_equal(as_vectors(found), short)
    found = ask(client, "/v2/embed", max_tokens=4)["embeddings"]["float"]
    np.testing.assert_array_equal(np.array(found, np.float32), short)
    long = ask(client, "/v1/embeddings", input="a " * 300, truncate_prompt_tokens=-1)
    assert long["usage"]["prompt_tokens"] == 256
    for most in (0, 257):
        said = refusal(client, "/v1/embeddings", truncate_prompt_tokens=most)
        assert f"truncate_prompt_tokens is {most}, expected an integer, 1 to 256" in said


def as_vectors(answer: Any) -> Any:
    return np.array([one["embedding"] for one in answer["data"]], np.float32)


def test_vectors_that_are_not_normalised(client: Client, minilm: Path) -> None:
    with TextModel.load(minilm, threads=1, normalize=False) as model:
        expected = model.embed(TEXTS)
    for name in ("normalize", "normalized"):
        found = as_vectors(ask(client, "/v1/embeddings", **{name: False}))
        np.testing.assert_array_equal(found, expected)
    whole = as_vectors(ask(client, "/v1/embeddings", normalize=True))
    np.testing.assert_array_equal(whole, as_vectors(ask(client, "/v1/embeddings")))


def test_texts_are_cut_where_the_model_cuts_them(client: Client) -> None:
    assert "truncate is not supported" in refusal(client, "/v2/embed", truncate="START")
    for path in ("/embed", "/rerank", "/predict", "/embed_sparse"):
        said = refusal(client, path, truncation_direction="Left")
        assert "truncation_direction is not supported" in said
        assert ask(client, path, truncation_direction="Right") == ask(client, path)


def test_documents_in_the_answer(client: Client) -> None:
    for path in ("/v1/rerank", "/v2/rerank"):
        results = ask(client, path, return_documents=True)["results"]
        assert [one["document"]["text"] for one in results] == [
            TEXTS[one["index"]] for one in results
        ]
        assert "document" not in ask(client, path, return_documents=False)["results"][0]


def test_labels_as_clients_of_pipelines_ask_for_them(
    client: Client, folders: dict[str, Path]
) -> None:
    with TextModel.load(folders["classifier"], threads=1) as model:
        for activation in ("softmax", "sigmoid", "none"):
            parameters = {"function_to_apply": activation, "top_k": 2}
            found = ask(client, "/predict", parameters=parameters)
            assert found == model.classify("a dog", top_k=2, activation=activation)  # type: ignore[call-overload]
    assert len(ask(client, "/predict", parameters={"top_k": 1})) == 1
    assert "activation is" in refusal(client, "/predict", parameters={"function_to_apply": "x"})
    both = {"raw_scores": True, "parameters": {"function_to_apply": "none"}}
    assert "function_to_apply" in refusal(client, "/predict", **both)
