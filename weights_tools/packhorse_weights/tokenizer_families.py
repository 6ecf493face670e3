"""The tokenizer classes of transformers: their files, the names of their tokens and how they are
built.

Sources: the converters of transformers (`convert_slow_tokenizer.py`) and the classes themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packhorse_weights.files import has_file
from packhorse_weights.special_tokens import Names
from packhorse_weights.tokenizer_parts import Builder
from packhorse_weights.tokenizer_pieces import albert, deberta_v2, fairseq, llama
from packhorse_weights.tokenizer_words import deberta, qwen2, roberta, wordpiece

_SENTENCEPIECE = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")


@dataclass(frozen=True)
class Family:
    """A family of tokenizer classes. Each entry of `files` is a choice of names, of which the first
    that exists is read. `names` are those of the special tokens."""

    files: tuple[tuple[str, ...], ...]
    names: Names
    build: Builder

    def find(self, folder: Path) -> list[Path] | None:
        """The files in `folder`, or None unless all exist."""
        found = [
            next((folder / name for name in choice if has_file(folder / name)), None)
            for choice in self.files
        ]
        paths = [path for path in found if path is not None]
        return paths if len(paths) == len(found) else None


_CLS_NAMES: Mapping[str, Any] = {
    "bos": "[CLS]",
    "eos": "[SEP]",
    "sep": "[SEP]",
    "pad": "[PAD]",
    "cls": "[CLS]",
    "mask": "[MASK]",
}
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

BERT = Family((("vocab.txt",),), _BERT_NAMES, wordpiece(1))
MPNET = Family(
    (("vocab.txt",),),
    Names(**{**_FAIRSEQ_NAMES, "unk": "[UNK]"}),
    wordpiece(2),
)
ROBERTA = Family(_BPE_FILES, Names(**_FAIRSEQ_NAMES), roberta)
DEBERTA = Family(_BPE_FILES, Names(**_CLS_NAMES, unk="[UNK]", mask_lstrip=True), deberta)
QWEN2 = Family(
    _BPE_FILES, Names(eos="<|endoftext|>", unk="<|endoftext|>", pad="<|endoftext|>"), qwen2
)
XLM_ROBERTA = Family(
    (_SENTENCEPIECE,),
    Names(**_FAIRSEQ_NAMES),
    fairseq([("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)], 3),
)
CAMEMBERT = Family(
    (_SENTENCEPIECE,),
    Names(**_FAIRSEQ_NAMES, more=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")),
    fairseq(
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
    Names(**{**_CLS_NAMES, "pad": "<pad>"}, unk="<unk>", mask_lstrip=True),
    albert,
)
DEBERTA_V2 = Family(
    (("spm.model", *_SENTENCEPIECE),),
    Names(**_CLS_NAMES, unk="[UNK]", normalized=("unk",)),
    deberta_v2,
)
LLAMA = Family(
    (("tokenizer.model", *_SENTENCEPIECE),), Names(bos="<s>", eos="</s>", unk="<unk>"), llama
)
