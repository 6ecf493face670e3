"""Output of a given form: a JSON schema, a regular expression, one of some choices, a grammar.

The package llguidance says which tokens may come next; the engine chooses among them.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from packhorse.text.tokenizer import TextTokenizer
from packhorse.text.tool_calls import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_MOST_OF_A_GRAMMAR = 16_384  # characters: it is read by a parser in Python


class GrammarMask:
    """The state of one sequence in its grammar: a `packhorse.generation.TokenMask`."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def fill(self, words: memoryview) -> bool:
        if not self._matcher.is_stopped():  # when it is, no token may come any more
            address = ctypes.addressof(ctypes.c_char.from_buffer(words))
            self._matcher.unsafe_compute_mask_ptr(address, words.nbytes)
        self._check()
        return True

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()

    def fork(self) -> GrammarMask:
        return GrammarMask(self._matcher.deep_copy())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RuntimeError(f"structured output: {self._matcher.get_error()}")


class Grammars:
    """Makes masks for one tokenizer.

    vocab_size  number of tokens that the model has logits of
    eos_ids     tokens that may end a text
    """

    def __init__(self, tokenizer: TextTokenizer, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = list(eos_ids)
        self._lock = threading.Lock()
        self._trie: LLTokenizer | None = None

    def _get_trie(self) -> LLTokenizer:
        """All tokens by their bytes; made once, which takes up to a second."""
        try:
            from llguidance import LLTokenizer
        except ModuleNotFoundError:
            from packhorse_weights.extras import missing_package

            raise missing_package("structured", "llguidance", "structured output") from None
        with self._lock:
            if self._trie is None:
                fields = json.loads(self._tokenizer.backend.to_str())
                fields |= {"truncation": None, "padding": None}
                try:
                    self._trie = LLTokenizer(
                        json.dumps(fields),
                        n_vocab=self._vocab_size,
                        eos_token=self._eos_ids or None,
                    )
                except Exception as error:  # the package names no class of its own
                    raise ValueError(
                        f"structured output: llguidance cannot read this model's tokenizer: {error}"
                    ) from None
            return self._trie

    def make(
        self,
        schema: Any = None,
        regex: str | None = None,
        choices: Sequence[str] | None = None,
        grammar: str | None = None,
    ) -> GrammarMask | None:
        """A mask for one request; None where nothing is asked for.

        schema   a JSON schema: a mapping, its text, a class of pydantic, True (any JSON)
        regex    a regular expression that the whole output matches
        choices  texts, one of which the output is
        grammar  of llama.cpp (GBNF) or of Lark

        Raises ValueError for what is not acceptable, and for more than one of them.
        """
        asked = {"schema": schema, "regex": regex, "choices": choices, "grammar": grammar}
        given = [name for name, value in asked.items() if value is not None]
        if not given:
            return None
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} were given, expected one of them at most")
        trie = self._get_trie()
        from llguidance import LLMatcher

        name = given[0]
        if name == "schema":
            form = LLMatcher.grammar_from_json_schema(_schema_text(schema))
        elif name == "regex":
            if not isinstance(regex, str):
                raise ValueError(f"regex is {regex!r:.80}, expected a text")
            form = LLMatcher.grammar_from_regex(regex)
        elif name == "choices":
            form = LLMatcher.grammar_from_lark(_choices_grammar(choices))
        else:
            form = LLMatcher.grammar_from_lark(_lark(grammar))
        failed, messages = LLMatcher.validate_grammar_with_warnings(form, trie)
        if failed:
            raise ValueError(f"{name}: {messages[0]:.400}")
        mask = GrammarMask(LLMatcher(trie, form, log_level=0))
        try:
            mask._check()
        except RuntimeError as error:
            raise ValueError(f"{name}: {error}") from None
        return mask


def _schema_text(schema: Any) -> str:
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    if schema is True:
        schema = {}
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise ValueError(f"schema is not valid JSON: {error}") from None
    if not isinstance(schema, Mapping):
        raise ValueError(
            f"schema is {schema!r:.80}, expected a JSON schema (a dict or its text), a class of "
            "pydantic, or True"
        )
    try:
        return json.dumps(dict(schema))
    except (TypeError, ValueError) as error:
        raise ValueError(f"schema cannot be written as JSON: {error}") from None


def _choices_grammar(choices: Any) -> str:
    texts = [] if isinstance(choices, str | Mapping) else list(choices)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"choices is {choices!r:.80}, expected a list of texts that are not empty")
    return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)


def _lark(grammar: Any) -> str:
    """A grammar of either kind as Lark's."""
    from llguidance.gbnf_to_lark import any_to_lark

    if isinstance(grammar, Grammar):
        return grammar
    if not isinstance(grammar, str) or not grammar.strip():
        raise ValueError(f"grammar is {grammar!r:.80}, expected a text that is not empty")
    if len(grammar) > _MOST_OF_A_GRAMMAR:
        raise ValueError(
            f"grammar has {len(grammar)} characters, expected {_MOST_OF_A_GRAMMAR} at most"
        )
    try:
        found: str = any_to_lark(grammar)
    except Exception as error:  # of the package's own classes, and of Python's for deep nesting
        raise ValueError(f"grammar: {error!s:.400}") from None
    return found
