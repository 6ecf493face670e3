"""The tokenizer of a tokenizer.json with all that the files beside it change, in the order in which
transformers makes the changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packhorse_weights.tokenizers.settings import TokenizerSettings
    from tokenizers import Tokenizer


_NO_TOKENS: dict[str, Any] = {"vocab": {}, "merges": []}
_PLACES = ("id", "content")  # fields of an added token that are no flags


class _Pairs(Sequence[tuple[str, str]]):
    """The pairs of merges that are texts with a space between two tokens. Each is made when it is
    asked for, and gone before the next one."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._tokens = " ".join(lines).split(" ") if lines else []

    def __len__(self) -> int:
        return len(self._tokens) // 2

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(self._tokens[::2], self._tokens[1::2], strict=True)

    def __getitem__(self, at: Any) -> Any:
        return list(self)[at]


def make_tokenizer(
    fields: bytes | Mapping[str, Any], changes: TokenizerSettings, *, ends: bool
) -> Tokenizer:
    """Makes the tokenizer of what a tokenizer.json holds, as text or as fields. It pads nothing.

    ends  whether bos and eos are put around a text, where the settings say so

    Raises ValueError, and whatever the package tokenizers raises.
    """
    from tokenizers import Tokenizer

    if isinstance(fields, bytes):
        tokenizer = Tokenizer.from_buffer(fields)
    elif fields["model"]["type"] == "BPE":
        tokenizer = _with_bpe(fields)
    else:
        tokenizer = Tokenizer.from_str(json.dumps(fields))
    tokenizer.no_padding()  # sequences may be of any length
    _change_parts(tokenizer, changes)
    _add_tokens(tokenizer, changes)
    tokenizer.encode_special_tokens = changes.split_special
    if ends:
        _add_ends(tokenizer, changes)
    return tokenizer


def _with_bpe(fields: Mapping[str, Any]) -> Tokenizer:
    """Hands over vocabulary and merges as they are: as JSON they take twice as long."""
    from tokenizers import AddedToken, Tokenizer, models

    added = fields["added_tokens"]
    model = {name: one for name, one in fields["model"].items() if one is not None}
    del model["type"]
    if model["merges"] and isinstance(model["merges"][0], str):
        model["merges"] = _Pairs(model["merges"])
    tokenizer = Tokenizer.from_str(
        json.dumps({**fields, "added_tokens": [], "model": {"type": "BPE", **_NO_TOKENS}})
    )
    tokenizer.model = models.BPE(**model)
    tokenizer.add_tokens(
        [
            AddedToken(token["content"], **{n: v for n, v in token.items() if n not in _PLACES})
            for token in added
        ]
    )
    return tokenizer


def _change_parts(tokenizer: Tokenizer, changes: TokenizerSettings) -> None:
    from tokenizers import models, normalizers

    if isinstance(tokenizer.normalizer, normalizers.BertNormalizer):
        for name, value in changes.normalizer.items():
            setattr(tokenizer.normalizer, name, value)
    if changes.prefix_space is not None:
        for name, kind in (("pre_tokenizer", "ByteLevel"), ("post_processor", "RobertaProcessing")):
            _put_prefix_space(tokenizer, name, kind, changes.prefix_space)
    if changes.prepend_scheme is not None and isinstance(tokenizer.model, models.BPE):
        _put_metaspace(tokenizer, changes.prepend_scheme)


def _put_prefix_space(tokenizer: Tokenizer, name: str, kind: str, value: bool) -> None:
    """Changes `add_prefix_space` of a part, if it is of this kind. Steps of a sequence keep theirs:
    after others, a step would put a space before each word."""
    part = getattr(tokenizer, name)
    fields = {} if part is None else json.loads(part.__getstate__())
    if fields.get("type") == kind and fields["add_prefix_space"] != value:
        fields["add_prefix_space"] = value
        setattr(tokenizer, name, getattr(_with_parts({name: fields}), name))


def _put_metaspace(tokenizer: Tokenizer, scheme: str) -> None:
    """Has spaces written as the class of Llama writes them, whatever tokenizer.json says."""
    from packhorse_weights.tokenizers.parts import metaspace, pieces_decoder

    made = _with_parts(
        {
            "pre_tokenizer": metaspace(scheme, split=False),
            "decoder": pieces_decoder(scheme != "never"),
        }
    )
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = made.pre_tokenizer
    tokenizer.decoder = made.decoder


def _with_parts(parts: Mapping[str, Any]) -> Tokenizer:
    """A tokenizer without tokens, from which parts are taken."""
    from tokenizers import Tokenizer

    model = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    names = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    fields = {name: parts.get(name) for name in names}
    return Tokenizer.from_str(
        json.dumps({"version": "1.0", "added_tokens": [], "model": model, **fields})
    )


def _add_tokens(tokenizer: Tokenizer, changes: TokenizerSettings) -> None:
    from packhorse_weights.tokenizers.added_token import AddedToken as Token
    from tokenizers import AddedToken

    if changes.special is None:
        return
    own = {
        number: Token(
            token.content,
            token.single_word,
            token.lstrip,
            token.rstrip,
            token.normalized,
            token.special,
        )
        for number, token in tokenizer.get_added_tokens_decoder().items()
    }
    added = changes.special.additions(own)
    tokenizer.add_tokens([AddedToken(token.content, **token.flags) for token in added])


def _add_ends(tokenizer: Tokenizer, changes: TokenizerSettings) -> None:
    """Has bos and eos put around a text, where the settings say so and tokenizer.json does not."""
    from tokenizers import processors

    if changes.bos is None and changes.eos is None and not changes.only_ends:
        return
    found = tokenizer.encode("").tokens
    missing = [
        token
        for token, there in ((changes.bos, found[:1]), (changes.eos, found[-1:]))
        if token is not None and there != [token]
    ]
    if not missing and not changes.only_ends:
        return
    if missing and not changes.adds_ends:
        flag = "add_bos_token" if missing[0] == changes.bos else "add_eos_token"
        raise ValueError(
            f"tokenizer_config.json says {flag}, but the post_processor does not add "
            f"{missing[0]!r}, and the model's own code for it (auto_map) is not run"
        )
    ends = [token for token in (changes.bos, changes.eos) if token is not None]
    ids = {token: tokenizer.token_to_id(token) for token in ends}
    for token, number in ids.items():
        if number is None:
            raise ValueError(f"the vocabulary has no {token!r:.80}, which is to mark a text's end")

    def around(text: str, kind: int) -> list[str]:
        marks = (changes.bos, text, changes.eos)
        return [f"{mark}:{kind}" for mark in marks if mark is not None]

    tokenizer.post_processor = processors.TemplateProcessing(
        single=around("$A", 0),
        pair=[*around("$A", 0), *around("$B", 1)],
        special_tokens=[*ids.items()],
    )
