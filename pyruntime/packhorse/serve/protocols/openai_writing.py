"""How OpenAI's routes write what was generated: choices, log-probabilities, usage."""

from __future__ import annotations

from typing import Any

from packhorse.generation.results import Generation
from packhorse.text.tokenizer import TextTokenizer

# What OpenAI has no word for is that the text ended before it was done.
_REASONS = {"stop": "stop", "length": "length", "deadline": "length", "cancelled": "length"}


def reason_of(generation: Generation) -> str:
    return _REASONS.get(generation.finish_reason, "stop")


def usage_of(generations: list[Generation]) -> dict[str, Any]:
    """Of all prompts of a request: one generation of each is enough."""
    prompt = sum(one.usage.prompt_tokens for one in generations)
    new = sum(one.usage.new_tokens for one in generations)
    cached = sum(one.usage.cached_prompt_tokens for one in generations)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _token(tokenizer: TextTokenizer, number: int) -> str:
    return tokenizer.decode([number], skip_special=False)


def _chat_token(tokenizer: TextTokenizer, number: int, logprob: float) -> dict[str, Any]:
    text = _token(tokenizer, number)
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def chat_logprobs(
    tokenizer: TextTokenizer, generation: Generation, first: int
) -> dict[str, Any] | None:
    """Of the tokens from `first` on; None where they were not asked for."""
    if generation.logprobs is None:
        return None
    top = generation.top_logprobs or []
    return {
        "content": [
            {
                **_chat_token(tokenizer, generation.ids[i], generation.logprobs[i]),
                "top_logprobs": [_chat_token(tokenizer, *one) for one in top[i]] if top else [],
            }
            for i in range(first, len(generation.ids))
        ],
        "refusal": None,
    }


def completion_logprobs(
    tokenizer: TextTokenizer, generation: Generation, first: int, offset: int
) -> dict[str, Any] | None:
    """Of the tokens from `first` on, whose text begins at `offset`."""
    if generation.logprobs is None:
        return None
    tokens = [_token(tokenizer, number) for number in generation.ids[first:]]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    top = generation.top_logprobs
    return {
        "tokens": tokens,
        "token_logprobs": generation.logprobs[first:],
        "top_logprobs": None
        if not top
        else [{_token(tokenizer, i): value for i, value in row} for row in top[first:]],
        "text_offset": offsets,
    }
