"""Text to token ids, by a model's own tokenizer and the package tokenizers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from packhorse.packing import Int32Array
from packhorse.text.checks import (
    Text,
    check_ids,
    check_size,
    check_text,
    encode_rows,
    encode_whole,
    errors_of_tokenizers,
)
from packhorse.text.giving_up import checkpoint
from packhorse.text.tokenization.cutting import PIECE, Cutter, steps_of
from packhorse.text.tokenization.token_arrays import TokenArrays, arrays_of, join, numbers, parts_of
from packhorse.text.tokenization.truncation import STRATEGIES, kept_tokens

if TYPE_CHECKING:
    from packhorse_weights.text import TextConfig
    from tokenizers import Encoding, Tokenizer

_USUAL = {
    "cls": ("[CLS]", "<s>"),
    "mask": ("[MASK]", "<mask>"),
    "unk": ("[UNK]", "<unk>"),
    "pad": ("[PAD]", "<pad>"),
}
_NO_SPACE_BEFORE = (".", "?", "!", ",", "' ", "n't", "'m", "'s", "'ve", "'re")
_SPACE = "\u0120"  # the form of byte-level tokenizers


class Frame(NamedTuple):
    """Tokens that stand before and after those of a text, special ones included."""

    before: Int32Array
    after: Int32Array

    @property
    def size(self) -> int:
        return self.before.size + self.after.size


NO_FRAME = Frame(np.empty(0, np.int32), np.empty(0, np.int32))


class Tokens(NamedTuple):
    """The tokens of each text or pair, special tokens included.

    arrays  with the characters that each token stands for, if asked for
    """

    ids: list[Int32Array]
    type_ids: list[Int32Array]
    arrays: list[TokenArrays]


def _load(config: TextConfig) -> Tokenizer:
    try:
        from tokenizers import normalizers
    except ModuleNotFoundError:
        from packhorse_weights.extras import missing_package

        raise missing_package("text", "tokenizers", "text") from None
    from packhorse_weights.files import read_bytes

    from packhorse.text.tokenization.changes import make_tokenizer

    made = config.tokenizer
    fields = read_bytes(config.tokenizer_file) if made is None else made
    with errors_of_tokenizers(str(config.tokenizer_file)):
        tokenizer = make_tokenizer(fields, config.settings, ends=config.special_tokens)
        if config.lower_case:
            normalizer = tokenizer.normalizer
            steps = [normalizers.Lowercase(), *([normalizer] if normalizer is not None else [])]
            tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def _encodings(
    encode: Callable[[list[Text]], list[Encoding]], rows: Sequence[Text], first: int, how: str
) -> Iterator[tuple[int, Text, Encoding]]:
    """(number, text, encoding) of each of `rows`, a few at a time: what the package keeps of a text
    is many times as large as its tokens, and takes long to be freed. Raises as `encode_rows`."""
    begin = held = 0
    for end in range(1, len(rows) + 1):
        row = rows[end - 1]
        size = len(row) if isinstance(row, str) else len(row[0]) + len(row[1])
        held += size
        if held < 2 * PIECE and end < len(rows):
            continue
        some = rows[begin:end]
        try:
            checkpoint(size)
        except ValueError as error:
            raise ValueError(f"texts[{first + end - 1}]: {error}") from None
        encodings = encode_rows(encode, some, first + begin, how)
        yield from zip(range(first + begin, first + end), some, encodings, strict=True)
        begin, held = end, 0


class TextTokenizer:
    """Any number of threads may use one, and tokenize at the same time: texts are cut after they
    were tokenized, so that nothing in it changes. Pickled, it is the settings that it was made of;
    a copy is the tokenizer itself."""

    def __init__(self, config: TextConfig) -> None:
        """Raises ModuleNotFoundError (no package tokenizers) and ValueError (a file not usable)."""
        # The process that unpickles it may have another working directory.
        config = replace(config, tokenizer_file=config.tokenizer_file.absolute())
        self.config = config
        self._tokenizer = _load(config)
        truncation = self._tokenizer.truncation or {}
        self.side: str = config.truncation_side or truncation.get("direction", "right")
        self._tokenizer.no_truncation()
        with errors_of_tokenizers(str(config.tokenizer_file)):
            numbers(self._tokenizer.encode("", add_special_tokens=config.special_tokens).ids)
        self._counting = threading.Lock()
        self._num_truncated = 0
        self._cutter = Cutter(self._tokenizer)
        model = self._tokenizer.model
        unknown = None if config.unknown_tokens else getattr(model, "unk_token", None)
        self._left_out = None if unknown is None else self._tokenizer.token_to_id(unknown)
        steps = steps_of(self._tokenizer.post_processor, "processors")
        self._keeps_first_space = any(
            step.get("trim_offsets") and step.get("add_prefix_space") for step in steps
        )

    @classmethod
    def load(cls, path: str | PathLike[str], *, revision: str | None = None) -> TextTokenizer:
        """The tokenizer of the model at `path`, a folder or name as in `Session.load`, and
        `revision`. Raises as the constructor, and ValueError where there is no tokenizer."""
        from packhorse_weights.text import read_text_config

        return cls(read_text_config(path, revision=revision))

    def __reduce__(self) -> tuple[type[TextTokenizer], tuple[TextConfig]]:
        return type(self), (self.config,)

    def __copy__(self) -> TextTokenizer:
        return self

    def __deepcopy__(self, _memo: object) -> TextTokenizer:
        return self

    @property
    def num_truncated(self) -> int:
        """Number of texts and pairs that have been cut short so far."""
        return self._num_truncated

    @property
    def kind(self) -> str:
        """Algorithm from words to tokens: "WordPiece", "BPE", "Unigram" or "WordLevel"."""
        return type(self._tokenizer.model).__name__

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary, tokens added to it included."""
        size: int = self._tokenizer.get_vocab_size()
        return size

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the tokens that stand for no text: those that tokenizer.json calls special."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(i for i, token in added.items() if token.special)

    @property
    def backend(self) -> Tokenizer:
        """The tokenizer of the package tokenizers; not to be changed."""
        return self._tokenizer

    def id_of(self, token: str) -> int | None:
        """The id of an entry of the vocabulary; None where there is no such entry."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def token_of(self, token_id: int) -> str:
        """The entry of the vocabulary with this id, "" where there is none."""
        return self._tokenizer.id_to_token(token_id) or ""

    def with_first_space(self, tokens: TokenArrays, first: int) -> TokenArrays:
        """Tokens of which `first` now comes first in its part, with the space before that one where
        the tokenizer counts it as the word's: byte-level tokenizers that put a space before a text
        do, because they take it for that one."""
        token = self.token_of(int(tokens.ids[first]))
        if not self._keeps_first_space or not token.startswith(_SPACE):
            return tokens
        begins, ends = tokens.begins.copy(), tokens.ends.copy()
        begins[first] -= 1
        if not token.strip(_SPACE):
            ends[first] -= 1
        return tokens._replace(begins=begins, ends=ends)

    @property
    def marks_continuation(self) -> bool:
        """True if the vocabulary marks tokens that go on with a word, as "##ing" does."""
        return bool(getattr(self._tokenizer.model, "continuing_subword_prefix", None))

    def special_id(self, kind: str) -> int | None:
        """The id of "cls", "mask", "unk" or "pad": as the model's files name it, else the usual
        one."""
        named = getattr(self.config, f"{kind}_token")
        names = _USUAL[kind] if named is None else (named,)
        found = (self._tokenizer.token_to_id(name) for name in names)
        return next((number for number in found if number is not None), None)

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """The text of tokens, as transformers' tokenizers write it."""
        with errors_of_tokenizers("token ids"):
            text = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special)
        if self.config.cleans_up(self.kind):
            for end in _NO_SPACE_BEFORE:
                text = text.replace(f" {end}", end.rstrip())
        return text

    def plain_ids(self, text: str) -> Int32Array:
        """Tokens of a text that is not cut, without those that the tokenizer adds."""
        checkpoint(len(text))
        return numbers(encode_whole(self._tokenizer, text, special=False).ids)

    def encode(
        self,
        texts: Sequence[Text],
        max_length: int | None,
        *,
        truncation: bool | str = True,
        offsets: bool = False,
        prompt: str = "",
        frame: Frame = NO_FRAME,
        first: int = 0,
        pairs: bool = True,
        table: int | None = None,
    ) -> Tokens:
        """Tokens of `texts`, each a text or a pair of texts.

        max_length  most tokens of one, special tokens included; None: no limit
        truncation  True or "longest_first": what exceeds it is cut off, token by token off the
                    longer text of a pair; "only_first", "only_second": off this one; False: it is
                    an error
        offsets     whether to make the arrays
        prompt      goes before each text, or before the first of a pair
        frame       goes around the tokens of each; the arrays are without it
        first       number of the first text, for messages
        pairs       whether a pair may come
        table       entries of the model's embedding table, where an id beyond it is an error

        Of a text far longer than `max_length`, only as much is read as decides its tokens.

        Raises ValueError naming the text.
        """
        rows = [check_text(text, i, prompt, pairs) for i, text in enumerate(texts, first)]
        if max_length is not None:
            special = self._num_special(rows) + frame.size
            if max_length <= special:
                raise ValueError(
                    f"max_length {max_length} leaves no room beside {special} special tokens"
                    + (" and those of the template" if frame.size else "")
                )
        if max_length is not None and truncation is False:
            self._refuse_longer(rows, max_length, frame.size, first)
        room = None if max_length is None else max_length - frame.size
        tokens = self._encode(rows, room, truncation, offsets, first)
        ids, types = tokens.ids, tokens.type_ids
        if max_length is not None and truncation is False:
            for i, row in enumerate(ids, first):
                check_size(i, row.size + frame.size, max_length)
        check_ids(self._tokenizer, ids, table, first)
        if self._left_out is not None:
            types = [row[one != self._left_out] for row, one in zip(types, ids, strict=True)]
            ids = [row[row != self._left_out] for row in ids]
        if frame.size:
            ids = [np.concatenate([frame.before, row, frame.after]) for row in ids]
            types = [np.pad(row, (frame.before.size, frame.after.size)) for row in types]
        return Tokens(ids, types, tokens.arrays)

    def _encode(
        self,
        rows: Sequence[Text],
        max_length: int | None,
        truncation: bool | str,
        offsets: bool,
        first: int,
    ) -> Tokens:
        strategy = "longest_first" if truncation is True else truncation
        if strategy not in (False, *STRATEGIES):
            raise ValueError(
                f"truncation {truncation!r:.80} is not True, False or one of "
                f"{', '.join(STRATEGIES)}"
            )
        tokenizer = self._tokenizer
        encode = partial(
            tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast,
            add_special_tokens=self.config.special_tokens,
        )
        how = f"max_length {max_length}, {strategy}"
        limit = sys.maxsize if max_length is None or strategy is False else max_length
        # Offsets count from the beginning of the text.
        if limit < sys.maxsize and not (offsets and self.side == "left"):
            shorten = partial(self._shorten, limit, strategy)
            rows = [encode_rows(shorten, [row], i, how)[0] for i, row in enumerate(rows, first)]
        found = Tokens([], [], [])
        num_cut = 0
        for i, row, encoding in _encodings(encode, rows, first, how):
            ids, types = numbers(encoding.ids), numbers(encoding.type_ids)
            arrays = [arrays_of(encoding)] if offsets else []
            if ids.size > limit:
                num_cut += 1
                is_pair = not isinstance(row, str)
                try:
                    kept = kept_tokens(parts_of(encoding), is_pair, limit, strategy, self.side)
                except ValueError as error:
                    raise ValueError(f"texts[{i}]: {error} ({how})") from None
                ids, types = ids[kept], types[kept]
                arrays = [self._cut(tokens, kept) for tokens in arrays]
            found.ids.append(ids)
            found.type_ids.append(types)
            found.arrays.extend(arrays)
        if num_cut:
            with self._counting:
                self._num_truncated += num_cut
        return found

    def _cut(self, tokens: TokenArrays, kept: npt.NDArray[np.intp]) -> TokenArrays:
        """The tokens that stay."""
        taken = tokens.take(kept)
        for part in (0, 1) if self.side == "left" else ():
            places, wholes = (np.flatnonzero(some.parts == part) for some in (taken, tokens))
            if 0 < places.size < wholes.size:
                taken = self.with_first_space(taken, int(places[0]))
        return taken

    def _num_special(self, rows: Sequence[Text]) -> int:
        """Number of special tokens around a text, or around a pair where there is one."""
        pairs = any(isinstance(row, tuple) for row in rows)
        with errors_of_tokenizers(str(self.config.tokenizer_file)):
            added = int(self._tokenizer.num_special_tokens_to_add(pairs))
        return added * self.config.special_tokens

    def _refuse_longer(
        self, rows: Sequence[Text], max_length: int, beside: int, first: int
    ) -> None:
        """Raises ValueError for a long text that has too many tokens, counted piece by piece."""
        for i, row in enumerate(rows, first):
            texts = (row,) if isinstance(row, str) else row
            if max(map(len, texts)) > PIECE:
                counts = encode_rows(self._count, texts, i, "whole")
                check_size(i, sum(counts) + self._num_special([row]) + beside, max_length)

    def refuse_longer_prompt(self, text: str, most: int) -> None:
        """Raises ValueError for a long text of more than `most` tokens, counted piece by piece and
        no further than that."""
        if len(text) > PIECE:
            (count,) = encode_rows(partial(self._count, most=most), [text], 0, "whole")
            if count > most:
                raise ValueError(
                    f"the prompt has {count} tokens or more, expected at most {most}, the context"
                )

    def _count(self, texts: Sequence[Text], most: int = sys.maxsize) -> list[int]:
        return [self._cutter.count(str(text), most) for text in texts]

    def _shorten(self, max_length: int, strategy: object, rows: Sequence[Text]) -> list[Text]:
        """As much of one text or pair as decides what it is cut to."""
        (row,) = rows
        room = max_length - self._num_special(rows)
        if isinstance(row, str):
            return [self._cutter.shorten(row, room, self.side)]
        shorter = [self._cutter.shorten(text, room, self.side) for text in row]
        if shorter != [*row] and strategy == "longest_first" and room % 2:
            # The longer one keeps a token more, where both have more than `room` tokens.
            sizes = self._count(shorter)
            if min(sizes) > room:
                wholes = self._count(row)
                longer = int(wholes[1] >= wholes[0])
                least = max(room, sizes[1 - longer])
                shorter[longer] = self._cutter.shorten(row[longer], least, self.side)
        return [(shorter[0], shorter[1])]

    def read(
        self, texts: Sequence[Text], *, first: int = 0, pairs: bool = True, table: int | None = None
    ) -> list[TokenArrays]:
        """All tokens of `texts`, of any length: a long text, or second text of a pair, is tokenized
        piece by piece. Arguments and errors as of `encode`."""
        rows = [check_text(text, i, "", pairs) for i, text in enumerate(texts, first)]
        limit = PIECE if self._cutter.keeps_words else sys.maxsize
        long = [len(row if isinstance(row, str) else row[1]) > limit for row in rows]
        short = ["" if big else row for row, big in zip(rows, long, strict=True)]
        found = [
            arrays_of(encoding)
            for _, _, encoding in _encodings(self._tokenizer.encode_batch, short, first, "whole")
        ]
        for i, row in enumerate(rows):
            if long[i]:
                found[i] = encode_rows(self._read_pieces, [row], first + i, "whole")[0]
        check_ids(self._tokenizer, [tokens.ids for tokens in found], table, first)
        return found

    def _read_pieces(self, rows: Sequence[Text]) -> list[TokenArrays]:
        """Tokens of one text or pair, piece by piece. Special tokens around them are those of its
        first characters."""
        (row,) = rows
        part, text = (0, row) if isinstance(row, str) else (1, row[1])
        few = text[: PIECE // 64]
        beginning = few if part == 0 else (row[0], few)
        frame = arrays_of(self._tokenizer.encode_batch([beginning])[0])
        where = np.flatnonzero(frame.parts == part)
        if not where.size:  # not one of these characters is a token
            return [arrays_of(self._tokenizer.encode_batch([row])[0])]
        pieces = [frame.take(slice(where[0]))]
        words = 0
        for encoding, own, begin in self._cutter.pieces(text):
            piece = arrays_of(encoding).take(own)
            numbers = np.where(piece.words < 0, np.int32(-1), piece.words + np.int32(words))
            words = int(numbers.max(initial=words)) + 1
            pieces.append(
                piece._replace(
                    type_ids=np.full_like(piece.ids, frame.type_ids[where[0]]),
                    parts=np.full_like(piece.ids, part),
                    words=numbers,
                    begins=piece.begins + np.int32(begin),
                    ends=piece.ends + np.int32(begin),
                )
            )
        return [join([*pieces, frame.take(slice(where[-1] + 1, None))])]
