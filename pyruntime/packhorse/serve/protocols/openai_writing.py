"""Answers of OpenAI's routes for generated texts: choices, log-probabilities, usage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from packhorse.generation.results import Generation, TokenLogprobs, TokenText

# OpenAI has no word for a text that was ended before it was done: "length" comes closest.
_REASONS = {"stop": "stop", "length": "length", "deadline": "length", "cancelled": "length"}


def reason_of(generation: Generation) -> str:
    return _REASONS.get(generation.finish_reason, "stop")


def usage_of(generations: list[Generation]) -> dict[str, Any]:
    """Tokens of all prompts of a request: one generation of each is enough."""
    prompt = sum(one.usage.prompt_tokens for one in generations)
    new = sum(one.usage.new_tokens for one in generations)
    cached = sum(one.usage.cached_prompt_tokens for one in generations)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class Tokens(NamedTuple):
    """Tokens of a text with what is known of them, for both forms in which log-probabilities are
    written.

    logprobs  None: of the first token of a prompt, before which there is nothing
    top       of each token the most probable ones at its place: (id, log-probability)
    """

    ids: Sequence[int]
    texts: Sequence[TokenText]
    logprobs: Sequence[float | None]
    top: Sequence[TokenLogprobs]
    top_texts: Sequence[Sequence[TokenText]]

    def then(self, others: Tokens) -> Tokens:
        """These tokens, followed by others."""
        return Tokens(
            [*self.ids, *others.ids],
            [*self.texts, *others.texts],
            [*self.logprobs, *others.logprobs],
            [*self.top, *others.top],
            [*self.top_texts, *others.top_texts],
        )


def new_tokens(generation: Generation, first: int) -> Tokens | None:
    """Tokens from `first` on whose texts are certain; None where log-probabilities were not asked
    for."""
    if generation.logprobs is None or generation.token_texts is None:
        return None
    end = len(generation.token_texts)
    return Tokens(
        generation.ids[first:end],
        generation.token_texts[first:],
        generation.logprobs[first:end],
        (generation.top_logprobs or [])[first:end],
        (generation.top_texts or [])[first:end],
    )


def _chat_token(token: int, text: TokenText, logprob: float | None, as_ids: bool) -> dict[str, Any]:
    name = _by_id(token) if as_ids else text.text
    return {"token": name, "logprob": logprob, "bytes": list(text.data)}


def _by_id(token: int) -> str:
    return f"token_id:{token}"


def chat_logprobs(tokens: Tokens | None, as_ids: bool) -> dict[str, Any] | None:
    if tokens is None:
        return None
    content = []
    for token, text, logprob, row, texts in zip(*tokens, strict=True):
        top = [
            _chat_token(other, its_text, value, as_ids)
            for (other, value), its_text in zip(row, texts, strict=True)
        ]
        content.append({**_chat_token(token, text, logprob, as_ids), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Tokens | None, offset: int, as_ids: bool) -> dict[str, Any] | None:
    """`offset`: where the text of these tokens begins."""
    if tokens is None:
        return None
    offsets, names, rows = [], [], []
    for token, text, logprob, row, texts in zip(*tokens, strict=True):
        offsets.append(offset)
        offset += len(text.text)
        name = _by_id(token) if as_ids else text.text
        names.append(name)
        found = {} if logprob is None else {name: logprob}
        for (other, value), its_text in zip(row, texts, strict=True):
            if other != token:  # other tokens may have the same text
                its_name = _by_id(other) if as_ids else its_text.text
                found[_by_id(other) if its_name in found else its_name] = value
        rows.append(found or None)
    return {
        "tokens": names,
        "token_logprobs": list(tokens.logprobs),
        "top_logprobs": rows,
        "text_offset": offsets,
    }
