"""Texts made by chance under the grammars of calls."""

from __future__ import annotations

import random
from typing import Any

from llguidance import LLMatcher, LLTokenizer
from packhorse.text.tool_calls import CallForm, CallParser
from tokenizers import Tokenizer, decoders, models, pre_tokenizers


def texts(
    family: type[CallParser],
    functions: dict[str, Any],
    *,
    several: bool,
    tokens: bool,
    count: int,
) -> list[str]:
    """`tokens`: whether the family's markers are special tokens of the tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({one: i for i, one in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>", *(family.shown if tokens else ())])
    size, end = tokenizer.get_vocab_size(), tokenizer.token_to_id("</s>")
    trie = LLTokenizer(tokenizer.to_str(), n_vocab=size, eos_token=[end])
    form = CallForm(functions, several, tokenizer.token_to_id)
    grammar = LLMatcher.grammar_from_lark(family.grammar(form))
    found = []
    for seed in range(count):
        matcher, ids, chance = LLMatcher(trie, grammar, log_level=0), [], random.Random(seed)
        while not matcher.is_stopped():
            mask = matcher.compute_bitmask()
            ids.append(chance.choice([i for i in range(size) if mask[i // 8] >> i % 8 & 1]))
            matcher.consume_token(ids[-1])
            assert not matcher.is_error(), matcher.get_error()
            assert len(ids) < 5000
        found.append(tokenizer.decode(ids[:-1] if ids[-1] == end else ids, False))
    return found
