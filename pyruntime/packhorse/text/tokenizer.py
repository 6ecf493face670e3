"""Text to token ids, by a model's own tokenizer and the package tokenizers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from packhorse.packing import Int32Array

if TYPE_CHECKING:
    from packhorse_weights.text import TextConfig
    from tokenizers import Encoding, Tokenizer

Text = str | tuple[str, str]
STRATEGIES = ("longest_first", "only_first", "only_second")


class Frame(NamedTuple):
    """Tokens that stand before and after those of a text, special ones included."""

    before: Int32Array
    after: Int32Array

    @property
    def size(self) -> int:
        return self.before.size + self.after.size


NO_FRAME = Frame(np.empty(0, np.int32), np.empty(0, np.int32))


class Tokens(NamedTuple):
    """Of each text or pair, special tokens included.

    encodings  those of the package tokenizers, with offsets in characters, where asked for
    """

    ids: list[Int32Array]
    type_ids: list[Int32Array]
    encodings: list[Encoding]


def _load(config: TextConfig) -> Tokenizer:
    try:
        from tokenizers import Tokenizer, normalizers
    except ModuleNotFoundError:
        from packhorse_weights.extras import missing_package

        raise missing_package("text", "tokenizers", "text") from None
    try:
        if config.tokenizer is None:
            tokenizer = Tokenizer.from_file(str(config.tokenizer_file))
        else:
            tokenizer = Tokenizer.from_str(json.dumps(config.tokenizer))
    except Exception as error:  # the package raises nothing narrower
        raise ValueError(f"{config.tokenizer_file}: {error}") from None
    normalizer = tokenizer.normalizer
    if isinstance(normalizer, normalizers.BertNormalizer):
        for name, value in config.normalizer.items():
            setattr(normalizer, name, value)
    if config.lower_case:
        steps = [normalizers.Lowercase(), *([normalizer] if normalizer is not None else [])]
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.no_padding()
    return tokenizer


def _fails(encode: Callable[[list[Text]], object], text: Text) -> bool:
    try:
        encode([text])
    except Exception:
        return True
    return False


class TextTokenizer:
    """Any number of threads may use one."""

    def __init__(self, config: TextConfig) -> None:
        """Raises ModuleNotFoundError (no package tokenizers) and ValueError (a file not usable)."""
        self.config = config
        self._tokenizer = _load(config)
        truncation = self._tokenizer.truncation or {}
        self._side: str = config.truncation_side or truncation.get("direction", "right")
        self._lock = threading.Lock()  # how to truncate is state of the tokenizer
        self._num_truncated = 0
        self._check_added_tokens(config)
        model = self._tokenizer.model
        unknown = None if config.unknown_tokens else getattr(model, "unk_token", None)
        self._left_out = None if unknown is None else self._tokenizer.token_to_id(unknown)

    @classmethod
    def load(cls, path: str | PathLike[str], *, revision: str | None = None) -> TextTokenizer:
        """Of the model at `path`; it and `revision`: as in `Session.load`. Raises as the
        constructor, ValueError for no such file."""
        from packhorse_weights.text import read_text_config

        return cls(read_text_config(path, revision=revision))

    @property
    def num_truncated(self) -> int:
        """How many texts and pairs have been cut short so far."""
        return self._num_truncated

    @property
    def special_ids(self) -> frozenset[int]:
        """Of the tokens that stand for no text: those that tokenizer.json calls special."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(i for i, token in added.items() if token.special)

    def id_of(self, token: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def token_of(self, token_id: int) -> str:
        return self._tokenizer.id_to_token(token_id) or ""

    def plain_ids(self, text: str) -> Int32Array:
        """Tokens of a text that is not cut, without those that the tokenizer adds."""
        with self._lock:
            self._tokenizer.no_truncation()
            return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def _check_added_tokens(self, config: TextConfig) -> None:
        if not config.special_tokens:
            return
        ends = self._tokenizer.encode("").tokens
        for flag, token, found in (
            ("add_bos_token", config.begin_token, ends[:1]),
            ("add_eos_token", config.end_token, ends[-1:]),
        ):
            if token is not None and found != [token]:
                raise ValueError(
                    f"{config.tokenizer_file}: tokenizer_config.json says {flag}, but the "
                    f"post_processor does not add {token!r}"
                )

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
    ) -> Tokens:
        """Tokens of `texts`, each a text or a pair of texts.

        max_length  most tokens of one, special tokens included; None: no limit
        truncation  True or "longest_first": what exceeds it is cut off, token by token off the
                    longer text of a pair; "only_first", "only_second": off this one; False: it is
                    an error
        offsets     whether to keep the encodings
        prompt      goes before each text, or before the first of a pair
        frame       goes around the tokens of each; offsets and encodings are without it
        first       number of the first text, for messages

        Raises ValueError naming the text.
        """
        rows = [self._check(text, i, prompt) for i, text in enumerate(texts, first)]
        if max_length is not None:
            pairs = any(isinstance(row, tuple) for row in rows)
            added = self._tokenizer.num_special_tokens_to_add(pairs)
            special = added * self.config.special_tokens + frame.size
            if max_length <= special:
                raise ValueError(
                    f"max_length {max_length} leaves no room beside {special} special tokens"
                    + (" and those of the template" if frame.size else "")
                )
        room = None if max_length is None else max_length - frame.size
        encodings = self._encode(rows, room, truncation, offsets, first)
        if max_length is not None and truncation is False:
            for i, encoding in enumerate(encodings, first):
                if (size := len(encoding) + frame.size) > max_length:
                    raise ValueError(
                        f"texts[{i}] has {size} tokens, max_length is {max_length}, and "
                        "truncation=False"
                    )
        ids = [np.array(encoding.ids, np.int32) for encoding in encodings]
        types = [np.array(encoding.type_ids, np.int32) for encoding in encodings]
        if self._left_out is not None:
            types = [row[one != self._left_out] for row, one in zip(types, ids, strict=True)]
            ids = [row[row != self._left_out] for row in ids]
        if frame.size:
            ids = [np.concatenate([frame.before, row, frame.after]) for row in ids]
            types = [np.pad(row, (frame.before.size, frame.after.size)) for row in types]
        return Tokens(
            ids,
            types,
            encodings if offsets else [],
        )

    def _encode(
        self,
        rows: Sequence[Text],
        max_length: int | None,
        truncation: bool | str,
        offsets: bool,
        first: int,
    ) -> list[Encoding]:
        strategy = "longest_first" if truncation is True else truncation
        if strategy not in (False, *STRATEGIES):
            raise ValueError(
                f"truncation {truncation!r:.80} is not True, False or one of "
                f"{', '.join(STRATEGIES)}"
            )
        tokenizer = self._tokenizer
        encode = tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast
        with self._lock:
            if max_length is None or strategy is False:
                tokenizer.no_truncation()
            else:
                tokenizer.enable_truncation(max_length, strategy=strategy, direction=self._side)
            try:
                encodings: list[Encoding] = encode(
                    list(rows), add_special_tokens=self.config.special_tokens
                )
            except Exception as error:  # the package raises nothing narrower
                number = first + next(i for i, row in enumerate(rows) if _fails(encode, row))
                raise ValueError(
                    f"texts[{number}]: {error} (max_length {max_length}, {strategy})"
                ) from None
            self._num_truncated += sum(
                len(encoding) == max_length and bool(encoding.overflowing) for encoding in encodings
            )
        return encodings

    @staticmethod
    def _check(text: object, i: int, prompt: str) -> Text:
        if isinstance(text, str):
            return prompt + text
        if isinstance(text, list | tuple) and len(text) == 2:
            one, two = text
            if isinstance(one, str) and isinstance(two, str):
                return prompt + one, two
        raise ValueError(f"texts[{i}] is {text!r:.80}, expected a text or a pair of texts")
