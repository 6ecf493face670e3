"""Output of a given form: a JSON schema, a regular expression, one of some choices, a grammar.

The package llguidance says which tokens may come next; the engine chooses among them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from packhorse.text.foreign_errors import raised_in
from packhorse.text.tokenization.tokenizer import TextTokenizer
from packhorse.text.tool_calls import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_MOST_CHARACTERS = 262_144  # in a form: compiled in well under a second
_MOST_OF_A_GRAMMAR = 16_384  # characters: it is read by a parser in Python
# Units of work that the grammar engine may spend on the regular expressions of a grammar, about
# 50,000 a millisecond by its documentation: what needs more would hold up the steps of all texts.
_LEXER_FUEL = 200_000
_NOTHING_FITS = ("NoExtension", "NoExtensionBias")  # the engine's words for a form without texts


class GrammarMask:
    """The state of one sequence in its grammar: a `packhorse.generation.TokenMask`."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def fill(self, words: memoryview) -> bool:
        if not self._matcher.is_stopped():  # when it is, no token may come any more
            import ctypes

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
            raise RuntimeError(f"structured output: {_reason(self._matcher)}")

    def try_one_token(self, vocab_size: int) -> None:
        """Raises ValueError where no text has the form, or where even its first token takes the
        engine too much work. Changes nothing."""
        matcher = self._matcher.deep_copy()
        for _ in range(2):
            words = bytearray(-(-vocab_size // 32) * 4)
            try:
                GrammarMask(matcher).fill(memoryview(words))
            except RuntimeError:
                raise ValueError(_reason(matcher)) from None
            first = next((i for i, byte in enumerate(words) if byte), None)
            if first is None or matcher.is_stopped():
                return
            matcher.consume_token(first * 8 + (words[first] & -words[first]).bit_length() - 1)
            if matcher.is_error():
                raise ValueError(_reason(matcher))


def _reason(matcher: LLMatcher) -> str:
    """Reason for which a matcher failed, in one line: without the state of the engine, which it
    adds."""
    first = matcher.get_error().strip().partition("\n")[0]
    if first.startswith(_NOTHING_FITS):
        return "no text has this form"
    return _shortened(first)


def _shortened(message: str) -> str:
    """A message of the engine without what only its developers can read."""
    message = message.partition("<state>")[0].partition("stack backtrace")[0]
    return " ".join(message.split())[:300]


class Grammars:
    """Makes masks for one tokenizer.

    vocab_size  number of tokens that the model has logits of
    eos_ids     tokens that may end a text
    """

    def __init__(self, tokenizer: TextTokenizer, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size
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
                # The files may name tokens that the model has no logit of.
                added = [one for one in fields["added_tokens"] if one["id"] < self.vocab_size]
                fields |= {"truncation": None, "padding": None, "added_tokens": added}
                try:
                    self._trie = LLTokenizer(
                        json.dumps(fields),
                        n_vocab=self.vocab_size,
                        eos_token=self._eos_ids or None,
                    )
                except Exception as error:  # the package names no class of its own
                    if not raised_in(error, "llguidance"):
                        raise
                    raise ValueError(
                        "structured output: llguidance cannot read this model's tokenizer: "
                        f"{_shortened(str(error))}"
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
        name = given[0]
        text = _written(name, asked[name])
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(
                f"{name} has {len(text)} characters, at most {_MOST_CHARACTERS} are taken"
            )
        trie = self._get_trie()
        from llguidance import LLMatcher, LLParserLimits

        if name == "schema":
            form = LLMatcher.grammar_from_json_schema(text)
        elif name == "regex":
            form = LLMatcher.grammar_from_regex(text)
        else:
            form = LLMatcher.grammar_from_lark(text)
        limits = LLParserLimits(initial_lexer_fuel=_LEXER_FUEL, verbose_errors=False)
        matcher = LLMatcher(trie, form, log_level=0, limits=limits)
        if matcher.is_error():
            raise ValueError(f"{name}: {_shortened(matcher.get_error())}")
        mask = GrammarMask(matcher)
        try:
            mask.try_one_token(self.vocab_size)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        return mask


# Keywords whose values are schemas by name, and those whose value is a schema or a list of them.
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_INNER = ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf")


def _closed(schema: Any) -> Any:
    """The JSON schema of a class, in which objects have no other properties than its fields unless
    the class says so: small models go on inventing some for as long as they may."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for name in _NAMED:
        if isinstance(inner := schema.get(name), dict):
            closed[name] = {key: _closed(one) for key, one in inner.items()}
    for name in _INNER:
        if name in schema:
            closed[name] = _closed(schema[name])
    if "properties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed


def _written(name: str, value: Any) -> str:
    """The constraint that is asked for, as the engine reads it."""
    if name == "schema":
        return _schema_text(value)
    if name == "choices":
        return _choices_grammar(value)
    if name == "grammar":
        return _lark(value)
    if not isinstance(value, str):
        raise ValueError(f"regex is {value!r:.80}, expected a text")
    return value


def _schema_text(schema: Any) -> str:
    if hasattr(schema, "model_json_schema"):
        schema = _closed(schema.model_json_schema())
    if schema is True:
        schema = {}
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"schema is not valid JSON: {error}") from None
    if not isinstance(schema, Mapping):
        raise ValueError(
            f"schema is {schema!r:.80}, expected a JSON schema (a dict or its text), a class of "
            "pydantic, or True"
        )
    try:
        return json.dumps(dict(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"schema cannot be written as JSON: {error}") from None


def _choices_grammar(choices: Any) -> str:
    texts = list(choices) if isinstance(choices, list | tuple) else []
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
    except Exception as error:  # the package's own classes, and Python's for deep nesting
        raise ValueError(f"grammar: {_shortened(str(error))}") from None
    return found
