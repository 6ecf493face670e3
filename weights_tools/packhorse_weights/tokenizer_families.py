"""What classes of tokenizers of transformers make of their files: a tokenizer.json of each.

Sources: the converters of transformers (`convert_slow_tokenizer.py`) and the classes themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import read_bytes, read_json
from packhorse_weights.sentencepiece_file import (
    CONTROL,
    USER_DEFINED,
    SentencePieces,
    read_sentencepiece,
)
from packhorse_weights.special_tokens import AddedToken, Names, SpecialTokens
from packhorse_weights.tokenizer_parts import (
    SPACE,
    Part,
    bpe,
    byte_level,
    metaspace,
    pieces_model,
    precompiled,
    replace,
    sequence,
    template,
)

_SENTENCEPIECE = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Family:
    """files: each a choice of names, the first there is read. names: of its special tokens."""

    files: tuple[tuple[str, ...], ...]
    names: Names
    build: Callable[[list[Path], Config, SpecialTokens], Part]

    def find(self, folder: Path) -> list[Path] | None:
        """The files in `folder`; None unless all are there."""
        found = [
            next((folder / name for name in choice if (folder / name).is_file()), None)
            for choice in self.files
        ]
        paths = [path for path in found if path is not None]
        return paths if len(paths) == len(found) else None


def _whole(
    model: Part,
    added: list[Part],
    *,
    normalizer: Part | None = None,
    pre_tokenizer: Part | None = None,
    post_processor: Part | None = None,
) -> Part:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": None,
        "model": model,
    }


# --- WordPiece


def _lines(path: Path) -> list[str]:
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8: {error}") from None
    return re.split(r"\r\n|\n|\r", text)


def _wordpiece(pair: str) -> Callable[[list[Path], Config, SpecialTokens], Part]:
    """pair: how two texts are joined, with {cls} and {sep} in it."""

    def build(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
        lines = _lines(paths[0])
        tokens = lines[:-1] if lines[-1] == "" else lines
        vocab = {token: i for i, token in enumerate(tokens)}
        added = special.entries(vocab, len(vocab))
        strip = settings.fields.get("strip_accents")
        cls, sep = special.text("cls"), special.text("sep")
        return _whole(
            {
                "type": "WordPiece",
                "unk_token": special.text("unk"),
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": vocab,
            },
            added,
            normalizer={
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": settings.boolean("tokenize_chinese_chars", True),
                "strip_accents": None if strip is None else settings.boolean("strip_accents", True),
                "lowercase": settings.boolean("do_lower_case", True),
            },
            pre_tokenizer={"type": "BertPreTokenizer"},
            post_processor=template(
                f"{cls} $A {sep}",
                pair.format(cls=cls, sep=sep),
                special.ids(added, "cls", "sep"),
            ),
        )

    return build


# --- byte-level BPE


def _vocabulary(path: Path) -> dict[str, int]:
    vocab = read_json(path)
    for token, number in vocab.items():
        if type(number) is not int or not 0 <= number < 1 << 31:
            raise CheckpointError(f"{path}: {token!r:.80} has the id {number!r:.40}")
    return vocab


def _read_bpe(paths: list[Path], first_line: bool, **options: Any) -> Part:
    """first_line: whether merges may stand there already. Else it is a heading, and the last line,
    if it does not end, is left out, as transformers does."""
    vocab, lines = _vocabulary(paths[0]), _lines(paths[1])
    if not first_line:
        lines = lines[1:-1]
    elif lines[0].startswith("#version:"):
        lines = lines[1:]
    merges: dict[tuple[str, str], None] = {}
    for line in lines:
        parts = line.split()
        if first_line and not parts:
            continue
        if len(parts) != 2 or not {*parts, "".join(parts)} <= vocab.keys():
            raise CheckpointError(
                f"{paths[1]}: {line!r:.80}: expected two tokens of {paths[0].name} that make one"
            )
        merges[parts[0], parts[1]] = None
    return bpe(vocab, list(merges), **options)


def _roberta(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
    prefix = settings.boolean("add_prefix_space", False)
    model = _read_bpe(paths, False, continuing_subword_prefix="", end_of_word_suffix="")
    added = special.entries(model["vocab"], len(model["vocab"]))
    ends = {
        name: [special.text(name), special.ids(added, name)[special.text(name)]]
        for name in ("sep", "cls")
    }
    return _whole(
        model,
        added,
        pre_tokenizer=byte_level(prefix),
        post_processor={
            "type": "RobertaProcessing",
            **ends,
            "trim_offsets": settings.boolean("trim_offsets", True),
            "add_prefix_space": prefix,
        },
    )


def _deberta(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
    model = _read_bpe(paths, False, continuing_subword_prefix="", end_of_word_suffix="")
    added = special.entries(model["vocab"], len(model["vocab"]))
    return _whole(
        model,
        added,
        pre_tokenizer=byte_level(settings.boolean("add_prefix_space", False)),
        post_processor=_cls_sep(special, added),
    )


def _qwen2(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
    model = _read_bpe(paths, True, continuing_subword_prefix="", end_of_word_suffix="")
    words = {
        "type": "Split",
        "pattern": {"Regex": _QWEN_WORDS},
        "behavior": "Isolated",
        "invert": False,
    }
    return _whole(
        model,
        special.entries(model["vocab"], len(model["vocab"])),
        normalizer={"type": "NFC"},
        pre_tokenizer=sequence("pretokenizers", [words, byte_level(False, use_regex=False)]),
        post_processor={**byte_level(True), "trim_offsets": False},
    )


# --- SentencePiece


def _control(model: SentencePieces) -> list[AddedToken]:
    return [
        AddedToken(piece.text, special=piece.kind == CONTROL)
        for piece in model.pieces
        if piece.kind in (CONTROL, USER_DEFINED)
    ]


def _cls_sep(special: SpecialTokens, added: list[Part]) -> Part:
    cls, sep = special.text("cls"), special.text("sep")
    return template(
        f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1", special.ids(added, "cls", "sep")
    )


def _bos_eos(special: SpecialTokens, added: list[Part]) -> Part:
    """As RoBERTa joins texts, with the tokens' usual names, whatever the files call them."""
    known = {entry["content"]: entry["id"] for entry in added}
    ids = {name: known[name] for name in ("<s>", "</s>") if name in known}
    if len(ids) != 2:
        ids = special.ids(added, "cls", "sep")
    bos, eos = ids
    return template(f"{bos} $A {eos}", f"{bos} $A {eos} {eos} $B {eos}", ids)


def _with_pieces(
    model: SentencePieces,
    vocab: list[tuple[str, float]],
    special: SpecialTokens,
    unk_id: int,
    byte_fallback: bool = False,
) -> tuple[Part, list[Part]]:
    """(the model, added tokens)."""
    ids = {text: i for i, (text, _) in enumerate(vocab)}
    made = pieces_model(model, vocab, unk_id, byte_fallback)
    return made, special.entries(ids, len(made["vocab"]), _control(model))


def _spaces(model: SentencePieces) -> Part:
    return sequence(
        "normalizers",
        [
            *precompiled(model.charsmap),
            {"type": "Strip", "strip_left": False, "strip_right": True},
            replace(" {2,}", SPACE, regex=True),
        ],
    )


def _fairseq(
    first: list[tuple[str, float]], skipped: int
) -> Callable[[list[Path], Config, SpecialTokens], Part]:
    """Ids of fairseq: `first`, the pieces without the first ones, <mask>."""

    def build(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
        read = read_sentencepiece(paths[0])
        rest = [(piece.text, piece.score) for piece in read.pieces[skipped:]]
        model, added = _with_pieces(read, [*first, *rest, ("<mask>", 0.0)], special, 3)
        return _whole(
            model,
            added,
            normalizer=_spaces(read),
            pre_tokenizer=metaspace(),
            post_processor=_bos_eos(special, added),
        )

    return build


def _albert(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
    read = read_sentencepiece(paths[0])
    # Numbers keep no comma at their end: "9," is two pieces.
    comma = re.compile(r".*\d,", re.DOTALL)
    vocab = [
        (piece.text, piece.score - 100 if comma.fullmatch(piece.text) else piece.score)
        for piece in read.pieces
    ]
    model, added = _with_pieces(read, vocab, special, read.unk_id)
    steps = [replace("``", '"'), replace("''", '"')]
    if not settings.boolean("keep_accents", False):
        steps += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if settings.boolean("do_lower_case", True):
        steps.append({"type": "Lowercase"})
    steps += [*precompiled(read.charsmap), replace(" {2,}", " ", regex=True)]
    return _whole(
        model,
        added,
        normalizer=sequence("normalizers", steps),
        pre_tokenizer=metaspace(),
        post_processor=_cls_sep(special, added),
    )


def _deberta_v2(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
    read = read_sentencepiece(paths[0])
    vocab = [(piece.text, piece.score) for piece in read.pieces]
    model, added = _with_pieces(read, vocab, special, read.unk_id)
    lower = [{"type": "Lowercase"}] if settings.boolean("do_lower_case", False) else []
    split = [{"type": "Punctuation", "behavior": "Isolated"}]
    return _whole(
        model,
        added,
        normalizer=sequence(
            "normalizers",
            [
                *lower,
                {"type": "Strip", "strip_left": True, "strip_right": True},
                *precompiled(read.charsmap),
                replace(" {2,}", " ", regex=True),
            ],
        ),
        pre_tokenizer=sequence(
            "pretokenizers",
            [*(split if settings.boolean("split_by_punct", False) else []), metaspace()],
        ),
        post_processor=_cls_sep(special, added),
    )


def _llama(paths: list[Path], settings: Config, special: SpecialTokens) -> Part:
    read = read_sentencepiece(paths[0])
    vocab = [(piece.text, 0.0 if i < 3 else piece.score) for i, piece in enumerate(read.pieces)]
    model, added = _with_pieces(read, vocab, special, 0, byte_fallback=True)
    prefix = settings.boolean("add_prefix_space", True)
    normalizer = pre_tokenizer = None
    if settings.boolean("legacy", True):
        first = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
        normalizer = sequence("normalizers", [*first, replace(" ", SPACE)])
    else:
        pre_tokenizer = metaspace("first" if prefix else "never", split=False)
    bos = settings.boolean("add_bos_token", True)
    eos = settings.boolean("add_eos_token", False)
    ends = [*(["bos"] if bos else []), *(["eos"] if eos else [])]
    before = f"{special.text('bos')}{{0}} " if bos else ""
    after = f" {special.text('eos')}{{0}}" if eos else ""
    one, two = f"{before}$A{after}".format(""), f"{before}$B:1{after}".format(":1")
    return _whole(
        model,
        added,
        normalizer=normalizer,
        pre_tokenizer=pre_tokenizer,
        post_processor=template(one, f"{one} {two}", special.ids(added, *ends)),
    )


# --- the classes

_BERT_NAMES = Names(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
_FAIRSEQ_NAMES: Mapping[str, Any] = {
    "bos": "<s>",
    "eos": "</s>",
    "unk": "<unk>",
    "sep": "</s>",
    "pad": "<pad>",
    "cls": "<s>",
    "mask": "<mask>",
    "mask_lstrip": True,
}
_BPE_FILES = (("vocab.json",), ("merges.txt",))

BERT = Family((("vocab.txt",),), _BERT_NAMES, _wordpiece("{cls} $A {sep} $B:1 {sep}:1"))
MPNET = Family(
    (("vocab.txt",),),
    Names(**{**_FAIRSEQ_NAMES, "unk": "[UNK]"}),
    _wordpiece("{cls} $A {sep} {sep} $B:1 {sep}:1"),
)
ROBERTA = Family(
    _BPE_FILES,
    Names(**_FAIRSEQ_NAMES, normalized=("bos", "eos", "unk", "sep", "pad", "cls")),
    _roberta,
)
DEBERTA = Family(
    _BPE_FILES,
    Names(
        bos="[CLS]", eos="[SEP]", unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]",
        mask_lstrip=True, normalized=("mask",),
    ),
    _deberta,
)  # fmt: skip
QWEN2 = Family(
    _BPE_FILES, Names(eos="<|endoftext|>", unk="<|endoftext|>", pad="<|endoftext|>"), _qwen2
)
XLM_ROBERTA = Family(
    (_SENTENCEPIECE,),
    Names(**_FAIRSEQ_NAMES),
    _fairseq([("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)], 3),
)
CAMEMBERT = Family(
    (_SENTENCEPIECE,),
    Names(**_FAIRSEQ_NAMES, more=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")),
    _fairseq(
        [
            ("<s>NOTUSED", 0.0),
            ("<pad>", 0.0),
            ("</s>NOTUSED", 0.0),
            ("<unk>", 0.0),
            ("<unk>NOTUSED", -100.0),
        ],
        1,
    ),
)
ALBERT = Family(
    (("spiece.model", *_SENTENCEPIECE),),
    Names(
        bos="[CLS]", eos="[SEP]", unk="<unk>", sep="[SEP]", pad="<pad>", cls="[CLS]", mask="[MASK]",
        mask_lstrip=True,
    ),
    _albert,
)  # fmt: skip
DEBERTA_V2 = Family(
    (("spm.model", *_SENTENCEPIECE),),
    Names(
        bos="[CLS]", eos="[SEP]", unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]",
        normalized=("unk",),
    ),
    _deberta_v2,
)  # fmt: skip
LLAMA = Family(
    (("tokenizer.model", *_SENTENCEPIECE),), Names(bos="<s>", eos="</s>", unk="<unk>"), _llama
)
