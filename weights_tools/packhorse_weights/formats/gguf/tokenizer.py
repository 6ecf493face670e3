"""The tokenizer in the metadata of a GGUF file, as the tokenizer.json that the model came with.

Three kinds: "gpt2", byte-level BPE with merges, "llama", pieces of SentencePiece that scores merge,
and "t5", pieces of the best sum of scores. In all of them, tokens of the kinds unknown, control and
user-defined are found in a text before all else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import repeat
from operator import add
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.formats.gguf.file import GgufFile
from packhorse_weights.formats.gguf.pretokenizers import PRE_TOKENIZERS
from packhorse_weights.tokenizers.added_token import AddedToken
from packhorse_weights.tokenizers.charsmap import check_charsmap
from packhorse_weights.tokenizers.parts import (
    SPACE,
    A,
    B,
    Part,
    Place,
    bpe,
    byte_level,
    few_spaces,
    merges_of_scores,
    metaspace,
    pieces_decoder,
    precompiled,
    replace,
    sequence,
    template,
    whole,
)

# Kinds of tokens.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_MAX_TOKENS = 1 << 21
_MAX_TOKEN = 512  # characters of a token that merges may make
_KEYS = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
# A part of an answer ends with this token, where the vocabulary has either of the sets below.
_END = "<|end|>"
_HARMONY_ENDS = ("<|return|>", "<|call|>")
_SOLAR_ENDS = ("<|calls|>", "<|flush|>")
# Tokens that end an answer, whatever the file calls eos: few files name more than one. These, like
# those of _FILL_IN, are control tokens whatever type they have in the file. Source: llama.cpp.
_ENDS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    _END,
    *_HARMONY_ENDS,
    *_SOLAR_ENDS,
    "<end_of_turn>",
    "<turn|>",
    "<end_of_utterance>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<eos>",
    "</s>",
)
# Tokens around code that is to be filled in, by the key that names them otherwise.
_FILL_IN: Mapping[str, tuple[str, ...]] = {
    "fim_pre": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "<|code_prefix|>"),
    "fim_suf": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<SUF>", "<|code_suffix|>"),
    "fim_mid": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<MID>", "<|code_middle|>"),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
_FILL_IN_ENDS = ("fim_pad", "fim_rep", "fim_sep")  # tokens that end an answer
_NO_TEXT = "\uffff"  # no character: no text has a token that begins with it
# Tokens of Phi-3 that leave the white space behind them alone.
_KEEP_SPACE = ("<s>", "<unk>", "<|endoftext|>")


@dataclass(frozen=True)
class GgufTokenizer:
    """`make` makes `tokenizer`, which sessions of ids do without. `settings` holds the fields of a
    tokenizer_config.json. `stop_ids` are the tokens that end an answer, ascending."""

    make: Callable[[], Part]
    settings: dict[str, Any]
    stop_ids: list[int]

    @cached_property
    def tokenizer(self) -> Part:
        """The fields of a tokenizer.json. Raises CheckpointError for a tokenizer that is not
        supported or does not fit together."""
        return self.make()


class _Vocabulary:
    """The tokens by id, with what the metadata says about them."""

    def __init__(self, file: GgufFile) -> None:
        self.where = str(file.path)
        self.metadata = file.metadata
        self._config = Config(file.metadata, self.where)
        self.tokens: list[str] = self.array("tokens", None)
        count = len(self.tokens)
        if not 0 < count <= _MAX_TOKENS:
            raise CheckpointError(
                f"{self.where}: {_KEYS}tokens: {count} tokens; expected from 1 to {_MAX_TOKENS}"
            )
        kinds = self.array("token_type", count, numeric=True)
        self.kinds: list[int] = [_NORMAL] * count if kinds is None else kinds.tolist()
        known = np.isin(self.kinds if kinds is None else kinds, range(_NORMAL, _BYTE + 1))
        if not known.all():
            i = int(np.argmin(known))
            raise CheckpointError(
                f"{self.where}: {_KEYS}token_type: token {i} is of the kind {self.kinds[i]!r:.20}; "
                f"expected {_NORMAL} to {_BYTE}"
            )
        # The last of several tokens with one text counts, as in llama.cpp.
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.stop_ids = self._find_stop_ids()
        fill_in = (self._find_fill_in(name) for name in _FILL_IN)
        for number in (*self.stop_ids, *(number for some in fill_in for number in some)):
            self.kinds[number] = _CONTROL

    def _find_stop_ids(self) -> list[int]:
        """Finds the tokens that end an answer: those that the file names, and others by their
        text."""
        known = set(_ENDS) & self.ids.keys()
        if any(known.issuperset(ends) for ends in (_HARMONY_ENDS, _SOLAR_ENDS)):
            known.discard(_END)
        named = [self.token_id(name) for name in ("eos", "eot", "eom")]
        found = {number for number in named if number is not None}
        found.update(self.ids[token] for token in known)
        return sorted(found.union(*(self._find_fill_in(name) for name in _FILL_IN_ENDS)))

    def _find_fill_in(self, name: str) -> list[int]:
        """Finds the token of _FILL_IN that the file names, or else those by their text."""
        number = self.token_id(name)
        known = [self.ids[token] for token in _FILL_IN[name] if token in self.ids]
        return known if number is None else [number]

    def array(self, name: str, count: int | None, numeric: bool = False) -> Any:
        """Returns the array of a key. An array of numbers may be absent, and is None then."""
        key = _KEYS + name
        found = self.metadata.get(key)
        if found is None and numeric:
            return None
        fits = (
            isinstance(found, np.ndarray)
            if numeric
            else isinstance(found, list) and set(map(type, found)) <= {str}
        )
        if not fits:
            kind = "numbers" if numeric else "texts"
            text = "nothing" if found is None else type(found).__name__
            raise CheckpointError(f"{self.where}: {key}: expected an array of {kind}, found {text}")
        size = len(found)  # type: ignore[arg-type]
        if count not in (None, size):
            raise CheckpointError(f"{self.where}: {key}: {size} entries for {count} tokens")
        return found

    def scores(self) -> NDArray[Any]:
        """A number for each token."""
        found: NDArray[Any] | None = self.array("scores", len(self.tokens), numeric=True)
        if found is None or not np.isfinite(found).all():
            raise CheckpointError(f"{self.where}: {_KEYS}scores: expected a number per token")
        return found

    def charsmap(self) -> bytes:
        """Compiled rules of normalisation; empty if there are none."""
        found = self.array("precompiled_charsmap", None, numeric=True)
        if found is None or not found.size:
            return b""
        if found.dtype.itemsize != 1:
            raise CheckpointError(f"{self.where}: {_KEYS}precompiled_charsmap: expected bytes")
        rules = found.tobytes()
        try:
            check_charsmap(rules)
        except ValueError as error:
            raise CheckpointError(
                f"{self.where}: {_KEYS}precompiled_charsmap: {error!s:.120}"
            ) from None
        return bytes(rules)

    def token_id(self, name: str) -> int | None:
        """Returns the id of the token for "bos", "eos", ..., or None if there is none."""
        key = f"{_KEYS}{name}_token_id"
        found = self.metadata.get(key)
        if found is None or (type(found) is int and found in (-1, 0xFFFFFFFF)):
            return None
        return self._config.tokens(key, low=0, high=len(self.tokens) - 1)

    def flag(self, name: str, default: bool) -> bool:
        return self._config.boolean(_KEYS + name, default)

    def added(self, strip: bool = False) -> list[Part]:
        """Returns `added_tokens` of a tokenizer.json. With `strip` they take the white space behind
        them along, but for those in _KEEP_SPACE."""
        return [
            AddedToken(
                token,
                rstrip=strip and token not in _KEEP_SPACE,
                special=kind != _USER_DEFINED,
            ).entry(i)
            for i, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) and token and self.ids[token] == i
        ]

    def ends(self, add_bos: bool, add_eos: bool) -> Part:
        """Returns the post-processor, which puts bos and eos around a text."""
        names: dict[str, int] = {}

        def mark(name: str, wanted: bool) -> list[str]:
            number = self.token_id(name)
            if not wanted:
                return []
            if number is None:
                raise CheckpointError(f"{self.where}: add_{name}_token without {name}_token_id")
            names[self.tokens[number]] = number
            return [self.tokens[number]]

        before, after = mark("bos", add_bos), mark("eos", add_eos)

        def around(text: str, type_id: int) -> list[Place]:
            return [(one, type_id) for one in (*before, text, *after)]

        return template(around(A, 0), [*around(A, 0), *around(B, 1)], names)


def _merges(vocabulary: _Vocabulary) -> list[str] | list[tuple[str, str]]:
    ids = vocabulary.ids
    lines = dict.fromkeys(vocabulary.array("merges", None))
    # Where each line is two tokens and the one space between them, built-in functions go through
    # all lines at once, and these stay as they are: 100,000 pairs would have the garbage collector
    # go through all objects of the process.
    if lines and set(map(str.count, lines, repeat(" "))) == {1}:
        tokens = " ".join(lines).split(" ")
        ones, twos = tokens[::2], tokens[1::2]
        known = ids.__contains__
        usual = all(ones) and all(map(known, tokens)) and all(map(known, map(add, ones, twos)))
        if usual:
            return list(lines)
    merges: list[tuple[str, str]] = []
    for line in lines:
        # A space is no character of byte-level text, but a token may begin with one all the same.
        at = line.find(" ", 1)
        one, two = line[:at], line[at + 1 :]
        if at < 0 or one not in ids or two not in ids or one + two not in ids:
            raise CheckpointError(
                f"{vocabulary.where}: {_KEYS}merges: {line!r:.80}: expected two tokens that make "
                "one"
            )
        merges.append((one, two))
    return merges


def _byte_level_bpe(vocabulary: _Vocabulary) -> Part:
    name = vocabulary.metadata.get(f"{_KEYS}pre", "default")
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise CheckpointError(
            f"{vocabulary.where}: {_KEYS}pre {name!r:.80} is not supported; supported: "
            f"{', '.join(PRE_TOKENIZERS)}"
        )
    pre = PRE_TOKENIZERS[name]
    if vocabulary.flag("add_space_prefix", False):
        raise CheckpointError(f"{vocabulary.where}: {_KEYS}add_space_prefix beside BPE of bytes")
    return whole(
        bpe(vocabulary.ids, _merges(vocabulary), ignore_merges=pre.ignore_merges),
        vocabulary.added(),
        normalizer=pre.normalizer,
        pre_tokenizer=pre.part,
        post_processor=vocabulary.ends(
            vocabulary.flag("add_bos_token", pre.add_bos), vocabulary.flag("add_eos_token", False)
        ),
        decoder=byte_level(True),
    )


def _scored_pieces(vocabulary: _Vocabulary) -> Part:
    scores = vocabulary.scores()
    made = {
        token: float(score)
        for token, score, kind in zip(vocabulary.tokens, scores, vocabulary.kinds, strict=True)
        if kind in (_NORMAL, _UNUSED, _USER_DEFINED) and len(token) <= _MAX_TOKEN
    }
    unknown = vocabulary.token_id("unknown")
    if unknown is None and _UNKNOWN in vocabulary.kinds:
        unknown = vocabulary.kinds.index(_UNKNOWN)
    prefix = vocabulary.flag("add_space_prefix", True)
    first = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    return whole(
        bpe(
            vocabulary.ids,
            merges_of_scores(made, vocabulary.ids),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        ),
        # The tokens of Phi-3 take white space along in its tokenizer.json.
        vocabulary.added(strip=vocabulary.metadata.get("general.architecture") == "phi3"),
        normalizer=sequence("normalizers", [*first, replace(" ", SPACE)]),
        post_processor=vocabulary.ends(
            vocabulary.flag("add_bos_token", True), vocabulary.flag("add_eos_token", False)
        ),
        decoder=pieces_decoder(prefix),
    )


def _best_pieces(vocabulary: _Vocabulary) -> Part:
    kinds = np.array(vocabulary.kinds)
    scores = vocabulary.scores()
    least = scores[kinds == _NORMAL].min(initial=0)
    # Converters give sentinels, whose names they do not know, as unused pieces. These are special
    # tokens, and have scores that do not lower that of unknown characters.
    pieces = [
        (_NO_TEXT + token, least) if kind == _UNUSED else (token, score)
        for token, kind, score in zip(vocabulary.tokens, kinds, scores.tolist(), strict=True)
    ]
    unused = [
        AddedToken(text, special=True).entry(i)
        for i, ((text, _), kind) in enumerate(zip(pieces, kinds, strict=True))
        if kind == _UNUSED
    ]
    for token, _ in pieces:
        if not 0 < len(token) <= _MAX_TOKEN:
            raise CheckpointError(
                f"{vocabulary.where}: {_KEYS}tokens: a piece of {len(token)} characters, expected "
                f"1 to {_MAX_TOKEN}"
            )
    unknown = vocabulary.token_id("unknown")
    if unknown is None and _UNKNOWN not in vocabulary.kinds:
        raise CheckpointError(f"{vocabulary.where}: {_KEYS}unknown_token_id is missing")
    normalizers = precompiled(vocabulary.charsmap())
    if vocabulary.flag("remove_extra_whitespaces", False):
        normalizers += few_spaces()
    spaces = metaspace("always" if vocabulary.flag("add_space_prefix", True) else "never")
    return whole(
        {
            "type": "Unigram",
            "unk_id": vocabulary.kinds.index(_UNKNOWN) if unknown is None else unknown,
            "vocab": [[text, float(score)] for text, score in pieces],
            "byte_fallback": False,
        },
        sorted([*vocabulary.added(), *unused], key=lambda one: int(one["id"])),
        normalizer=sequence("normalizers", normalizers) if normalizers else None,
        pre_tokenizer=spaces,
        post_processor=vocabulary.ends(
            vocabulary.flag("add_bos_token", False), vocabulary.flag("add_eos_token", True)
        ),
        decoder=spaces,
    )


def _chat_template(vocabulary: _Vocabulary) -> str | list[dict[str, str]] | None:
    """Reads what tokenizer_config.json would say: the one chat template, or several by name."""
    found: dict[str, str] = {}
    for key, text in vocabulary.metadata.items():
        if key != _TEMPLATE and not key.startswith(f"{_TEMPLATE}."):
            continue
        if not isinstance(text, str):
            raise CheckpointError(f"{vocabulary.where}: {key} is no text")
        found[key.removeprefix(_TEMPLATE).removeprefix(".") or "default"] = text
    if found.keys() <= {"default"}:
        return found.get("default")
    return [{"name": name, "template": text} for name, text in found.items()]


def _settings(vocabulary: _Vocabulary, special: Sequence[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, name in zip(special, ("bos", "eos", "unknown", "padding", "mask"), strict=True):
        if (number := vocabulary.token_id(name)) is not None:
            settings[f"{key}_token"] = vocabulary.tokens[number]
    if (template := _chat_template(vocabulary)) is not None:
        settings["chat_template"] = template
    return settings


_read: WeakKeyDictionary[GgufFile, GgufTokenizer | None] = WeakKeyDictionary()
_KINDS = {"gpt2": _byte_level_bpe, "llama": _scored_pieces, "t5": _best_pieces}


def read_tokenizer(file: GgufFile) -> GgufTokenizer | None:
    """Returns the tokenizer, or None if the file has none. It is made once for each file that is
    open.

    Raises CheckpointError for one of a kind that is not supported, or whose tokens do not fit
    together.
    """
    if file not in _read:
        _read[file] = _make_tokenizer(file)
    return _read[file]


def _make_tokenizer(file: GgufFile) -> GgufTokenizer | None:
    kind = file.metadata.get(f"{_KEYS}model")
    if kind is None or (isinstance(kind, str) and kind in ("none", "no_vocab")):
        return None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise CheckpointError(
            f"{file.path}: {_KEYS}model {kind!r:.80} is not supported; supported: "
            f"{', '.join(_KINDS)}"
        )
    vocabulary = _Vocabulary(file)
    return GgufTokenizer(
        partial(_KINDS[kind], vocabulary),
        _settings(vocabulary, ("bos", "eos", "unk", "pad", "mask")),
        vocabulary.stop_ids,
    )
