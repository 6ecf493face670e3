"""Texts that are to be translated, as tokens: pieces of words, and the tokens around them that say
which languages are meant."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from packhorse.packing import Int32Array
from packhorse.text.checks import Text, check_ids, encode_rows, errors_of_tokenizers
from packhorse.text.giving_up import checkpoint
from packhorse.text.tokenization.changes import make_tokenizer
from packhorse.text.tokenization.token_arrays import numbers
from packhorse.text.translation.language_names import LanguageNames

if TYPE_CHECKING:
    from packhorse_weights.languages import Languages
    from packhorse_weights.tokenizers.numbered import NumberedPieces
    from tokenizers import Encoding, Tokenizer

    from packhorse.text.tokenization.tokenizer import TextTokenizer

_NONE = np.empty(0, np.int32)


class Target(NamedTuple):
    """Beginning of a translation. start: a token in place of decoder_start_token_id. first: a token
    that comes first whatever the model says."""

    start: int | None = None
    first: int | None = None


class Direction(NamedTuple):
    """before, after: tokens around those of each text. target: of its translation."""

    before: Int32Array
    after: Int32Array
    target: Target


class SourceTokenizer:
    """Texts to the tokens of an encoder's input. Any number of threads may use one."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        config = tokenizer.config
        self._pieces = config.pieces
        self._languages = config.languages
        self.names = (
            None if config.languages is None else LanguageNames(config.languages, tokenizer)
        )
        self._cut: dict[bool, Tokenizer] = {}
        if self._pieces is not None:
            from packhorse_weights.tokenizers.settings import TokenizerSettings

            for target, fields in ((False, self._pieces.source), (True, self._pieces.target)):
                with errors_of_tokenizers(str(config.tokenizer_file)):
                    made = make_tokenizer(
                        json.dumps(fields).encode(), TokenizerSettings(), ends=False
                    )
                self._cut[target] = made

    def sides(self) -> tuple[Languages, LanguageNames] | None:
        """(places and defaults of languages, their names); None: the model is told none."""
        if self._languages is None or self.names is None:
            return None
        return self._languages, self.names

    def direction(self, source: str | None, target: str | None, *, aims: bool = True) -> Direction:
        """Tokens that say that texts of the language `source` become those of `target`; None: as
        the model's files say. aims: a model that needs a target must be told one. Raises
        ValueError."""
        found, names = self._languages, self.names
        end = self._end()
        if found is None or names is None:
            for name, code in (("source", source), ("target", target)):
                if code is not None:
                    raise ValueError(
                        f"{name} is {code!r:.40}, but this model is told no languages: a text that "
                        "needs it begins with what the model was trained with, such as "
                        '"translate English to German: "'
                    )
            return Direction(_NONE, end, Target())
        if not names.ids:
            return Direction(_NONE, end, self._only(source, target))
        if found.of_source is None:
            self._check(source, found.source, "source")
        wanted = target if target is not None else found.target
        if wanted is None and not aims:
            own = _NONE
            if found.of_source is not None:
                own = np.array([names.ids[names.find(str(found.source), "source")]], np.int32)
            after = found.of_source == "after"
            return Direction(*((_NONE, np.append(end, own)) if after else (own, end)), Target())
        if wanted is None:
            raise ValueError(
                f"target is None, expected one of {', '.join(list(names.ids)[:8])}, ..."
            )
        token = np.array([names.ids[names.find(wanted, "target")]], np.int32)
        if found.of_target == "text":
            return Direction(token, end, Target())
        begin = Target(int(token[0])) if found.of_target == "start" else Target(first=int(token[0]))
        code = source if source is not None else found.source
        own = np.array([names.ids[names.find(str(code), "source")]], np.int32)
        if found.of_source == "after":
            return Direction(_NONE, np.concatenate([end, own]), begin)
        return Direction(own, end, begin)

    def _only(self, source: str | None, target: str | None) -> Target:
        """Checks the languages of a model that knows one direction alone."""
        assert self._languages is not None
        self._check(source, self._languages.source, "source")
        self._check(target, self._languages.target, "target")
        return Target()

    def _check(self, given: str | None, known: str | None, name: str) -> None:
        if given is not None and known is not None and given.lower() != known.lower():
            raise ValueError(f"{name} is {given!r:.40}, but this model's is {known!r:.40} alone")

    def _end(self) -> Int32Array:
        token = self._tokenizer.config.eos_token
        found = None if token is None else self._tokenizer.id_of(token)
        if self._pieces is not None and token is not None:
            found = self._pieces.numbers.get(token)
        if found is None:
            raise ValueError(f"the tokenizer has no token {token!r:.40} that ends a text")
        return np.array([found], np.int32)

    def encode(
        self,
        texts: Sequence[str],
        direction: Direction,
        *,
        first: int = 0,
        table: int | None = None,
    ) -> list[Int32Array]:
        """Tokens of `texts`. first: number of the first, for messages. table: entries of the
        model's table, where an id beyond it is an error. Raises ValueError naming the text."""
        if self._languages is None:
            return self._tokenizer.encode(texts, None, first=first, pairs=False, table=table).ids
        rows = self.pieces(texts, first=first)
        found = [np.concatenate([direction.before, row, direction.after]) for row in rows]
        check_ids(self._tokenizer.backend, found, table, first)
        return found

    def pieces(
        self, texts: Sequence[str], *, target: bool = False, first: int = 0
    ) -> list[Int32Array]:
        """Tokens of texts alone. target: they are of the translation's side."""
        checkpoint(sum(map(len, texts)))
        if self._pieces is None:
            backend = self._tokenizer.backend

            def plain(rows: list[Text]) -> list[Encoding]:
                return backend.encode_batch_fast(rows, add_special_tokens=False)

            return [numbers(one.ids) for one in encode_rows(plain, list(texts), first, "whole")]
        codes, rest = (
            zip(*(_split_code(text, self._pieces) for text in texts), strict=True)
            if texts
            else ((), ())
        )
        cut = self._cut[target]

        def encode(rows: list[Text]) -> list[Encoding]:
            return cut.encode_batch(rows, add_special_tokens=False)

        known = self._pieces.target_numbers if target else self._pieces.numbers
        unknown = self._pieces.unknown
        found = []
        for code, text, encoding in zip(
            codes, rest, encode_rows(encode, list(rest), first, "whole"), strict=True
        ):
            ids = [known.get(code, unknown)] if code else []
            ids += _numbered(cut, text, encoding, known, unknown)
            found.append(np.array(ids, np.int32))
        return found


def _split_code(text: str, pieces: NumberedPieces) -> tuple[str, str]:
    """(the code of a language at the very beginning of a text, the rest)"""
    if pieces.marks is None or not text.startswith(pieces.marks[0]):
        return "", text
    end = text.find(pieces.marks[1])
    if end < 0:
        return "", text
    end += len(pieces.marks[1])
    return text[:end], text[end:]


def _numbered(
    cut: Tokenizer, text: str, encoding: Encoding, known: Mapping[str, int], unknown: int
) -> list[int]:
    """Ids of pieces. One that the SentencePiece model does not know is looked up as it stands in
    the text, as transformers does."""
    tokens = encoding.tokens
    ids = [known.get(token, -1) for token in tokens]
    mark = getattr(cut.model, "unk_token", None)  # BPE gives this in place of the text
    for i, number in enumerate(ids):
        if mark is not None and tokens[i] == mark and cut.token_to_id(mark) == encoding.ids[i]:
            begin, end = encoding.offsets[i]
            ids[i] = known.get(text[begin:end], unknown)
        elif number < 0:
            ids[i] = unknown
    return ids
