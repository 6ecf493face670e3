"""`packhorse serve`: log-probabilities, whose tokens, joined, are the text.

The model draws bytes by chance, so that most characters are made of several tokens, or are none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from packhorse import TextModel
from serve_room import PACKAGES, Client, serving, settings_for

for package in (*PACKAGES, "llguidance"):
    pytest.importorskip(package)

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
EMOJI = "\U0001f600 ok \u6f22"
MESSAGES = [{"role": "user", "content": "tr"}]


@pytest.fixture(scope="module")
def client(models: list[TextModel]) -> Iterator[Client]:
    with serving(settings_for("lm=chance")) as (found, _):
        yield found


def complete(client: Client, **fields: Any) -> list[Any]:
    body = {"prompt": "tr", "max_tokens": 40, "seed": 5, "logprobs": 3, **fields}
    answer = client.post(COMPLETIONS, body)
    assert answer.status == 200, answer.body
    found: list[Any] = answer.json["choices"]
    return found


def check(choice: Any) -> None:
    """Tokens, places and the most probable ones of a choice fit its text."""
    text, logprobs = choice["text"], choice["logprobs"]
    tokens = logprobs["tokens"]
    assert "".join(tokens) == text
    places = zip(tokens, logprobs["text_offset"], strict=True)
    assert [text[begin : begin + len(token)] for token, begin in places] == tokens
    rows = zip(tokens, logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    for token, logprob, row in rows:
        assert (row is None) == (logprob is None)
        assert row is None or row[token] == logprob


FIELDS: list[dict[str, Any]] = [
    {},
    {"n": 2},
    {"prompt": ["tr", "ue"]},
    {"choices": [EMOJI]},
    {"choices": [EMOJI], "stop": ["ok"]},
    {"choices": [EMOJI], "stop": ["ok"], "include_stop_str_in_output": True},
    {"echo": True},
    {"echo": True, "n": 2, "prompt": [f"a {EMOJI}", "</s>true"]},
    {"echo": True, "prompt": [3, 200, 130]},
    {"echo": True, "max_tokens": 0},
    {"logprobs": 0},
    {"return_tokens_as_token_ids": True},
]


@pytest.mark.parametrize("fields", FIELDS)
def test_tokens_are_the_text(client: Client, fields: dict[str, Any]) -> None:
    choices = complete(client, **fields)
    for choice in choices:
        if "return_tokens_as_token_ids" not in fields:
            check(choice)
    # A stream says the same.
    body = {"prompt": "tr", "max_tokens": 40, "seed": 5, "logprobs": 3, **fields, "stream": True}
    texts = dict.fromkeys(range(len(choices)), "")
    pieces: dict[int, dict[str, list[Any]]] = {i: {} for i in texts}
    for event in client.post(COMPLETIONS, body).events:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
            for name, values in choice["logprobs"].items():
                pieces[choice["index"]].setdefault(name, []).extend(values)
    assert [*texts.values()] == [choice["text"] for choice in choices]
    assert [*pieces.values()] == [choice["logprobs"] for choice in choices]


def test_a_prompt_that_is_repeated(client: Client, models: list[TextModel]) -> None:
    (plain,) = complete(client)
    (choice,) = complete(client, echo=True)
    assert choice["text"] == "tr" + plain["text"]
    assert choice["logprobs"]["tokens"] == ["tr", *plain["logprobs"]["tokens"]]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["top_logprobs"][1:] == plain["logprobs"]["top_logprobs"]
    for prompt in ("a </s>true", models[0].tokenizer.plain_ids("a true").tolist()):
        (bare,) = complete(client, echo=True, logprobs=None, max_tokens=0, prompt=prompt)
        assert bare == {
            "index": 0,
            "text": prompt if isinstance(prompt, str) else "a true",
            "logprobs": None,
            "finish_reason": "length",
        }


def test_tokens_of_the_same_look(client: Client) -> None:
    """Three tokens were asked for: with the chosen one three or four are there, whatever they look
    like, and parts of characters show their bytes."""
    for row in complete(client)[0]["logprobs"]["top_logprobs"]:
        assert len(row) in (3, 4)
    rows = complete(client, choices=[EMOJI], logprobs=20)[0]["logprobs"]["top_logprobs"]
    assert all(len(row) in (20, 21) for row in rows)
    rows = complete(client, return_tokens_as_token_ids=True)[0]["logprobs"]["top_logprobs"]
    assert all({"token_id:0", "token_id:1", "token_id:2"} <= row.keys() for row in rows)


def chat(client: Client, **fields: Any) -> Any:
    body = {"messages": MESSAGES, "max_tokens": 40, "logprobs": True, "top_logprobs": 2, **fields}
    answer = client.post(CHAT, body)
    assert answer.status == 200, answer.body
    return answer


@pytest.mark.parametrize("fields", [{"seed": 7}, {"choices": [EMOJI]}])
def test_bytes_are_the_text(client: Client, fields: dict[str, Any]) -> None:
    (choice,) = chat(client, **fields).json["choices"]
    text, content = choice["message"]["content"], choice["logprobs"]["content"]
    assert "".join(one["token"] for one in content) == text
    data = bytes(byte for one in content for byte in one["bytes"])
    assert data.decode(errors="replace") == text
    assert "choices" not in fields or data.decode() == EMOJI
    assert all(len(one["top_logprobs"]) == 2 for one in content)
    events = chat(client, **fields, stream=True).events
    choices = [one for event in events for one in event["choices"]]
    assert "".join(one["delta"].get("content", "") for one in choices) == text
    found = [
        one for choice in choices if choice["logprobs"] for one in choice["logprobs"]["content"]
    ]
    assert found == content


def test_details_in_python(models: list[TextModel], client: Client) -> None:
    made = models[0].generate("tr", choices=[EMOJI], logprobs=2, details=True, max_new_tokens=40)
    assert made.token_texts is not None
    assert made.top_texts is not None
    assert len(made.token_texts) == len(made.ids) == len(made.top_texts)
    assert "".join(one.text for one in made.token_texts) == made.text == EMOJI
    assert b"".join(one.data for one in made.token_texts).decode() == EMOJI
    assert models[0].generate("tr", max_new_tokens=2, details=True).token_texts is None
