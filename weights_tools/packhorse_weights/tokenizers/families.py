"""The tokenizer classes of transformers: their files, the names of their tokens and how they are
built.

Sources: the converters of transformers (`convert_slow_tokenizer.py`) and the classes themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from packhorse_weights.config import Config
from packhorse_weights.files import has_file
from packhorse_weights.tokenizers.classes import CLASS_NAMES
from packhorse_weights.tokenizers.language_codes import MBART, MBART_50, NLLB
from packhorse_weights.tokenizers.numbered import NumberedPieces, PiecesBuilder, m2m_100, marian
from packhorse_weights.tokenizers.parts import Builder, Part
from packhorse_weights.tokenizers.pieces import albert, baichuan, deberta_v2, fairseq, llama
from packhorse_weights.tokenizers.special_tokens import Names, SpecialTokens
from packhorse_weights.tokenizers.translators import blenderbot, of_languages, pegasus, t5
from packhorse_weights.tokenizers.words import deberta, qwen2, roberta, wordpiece

_SENTENCEPIECE = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")


@dataclass(frozen=True)
class Family:
    """A family of tokenizer classes. Each entry of `files` is a choice of names, of which the first
    that exists is read. `names` are those of the special tokens. `build` makes the tokenizer;
    `number` in its place also makes the pieces whose ids stand in another file."""

    files: tuple[tuple[str, ...], ...]
    names: Names
    build: Builder | None = None
    number: PiecesBuilder | None = None

    def made(
        self, paths: list[Path], settings: Config, special: SpecialTokens
    ) -> tuple[Part, NumberedPieces | None]:
        """(what a tokenizer.json would hold, pieces whose ids stand in another file)"""
        if self.number is not None:
            return self.number(paths, settings, special)
        assert self.build is not None
        return self.build(paths, settings, special), None

    def find(self, folder: Path) -> list[Path] | None:
        """The files in `folder`, or None unless all exist."""
        found = [
            next((folder / name for name in choice if has_file(folder / name)), None)
            for choice in self.files
        ]
        paths = [path for path in found if path is not None]
        return paths if len(paths) == len(found) else None


def _lstrip(name: str) -> Names:
    """The names of a class whose mask token takes the white space before it along."""
    return replace(CLASS_NAMES[name], mask_lstrip=True)


_BPE_FILES = (("vocab.json",), ("merges.txt",))

BERT = Family((("vocab.txt",),), CLASS_NAMES["Bert"], wordpiece(1))
MPNET = Family(
    (("vocab.txt",),),
    _lstrip("MPNet"),
    wordpiece(2),
)
ROBERTA = Family(_BPE_FILES, _lstrip("Roberta"), roberta)
DEBERTA = Family(_BPE_FILES, _lstrip("Deberta"), deberta)
QWEN2 = Family(_BPE_FILES, CLASS_NAMES["Qwen2"], qwen2)
XLM_ROBERTA = Family(
    (_SENTENCEPIECE,),
    _lstrip("XLMRoberta"),
    fairseq([("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)], 3),
)
CAMEMBERT = Family(
    (_SENTENCEPIECE,),
    _lstrip("Camembert"),
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
    _lstrip("Albert"),
    albert,
)
DEBERTA_V2 = Family(
    (("spm.model", *_SENTENCEPIECE),),
    replace(CLASS_NAMES["DebertaV2"], normalized=("unk",)),
    deberta_v2,
)
LLAMA = Family((("tokenizer.model", *_SENTENCEPIECE),), CLASS_NAMES["Llama"], llama)
BAICHUAN = Family((("tokenizer.model", *_SENTENCEPIECE),), CLASS_NAMES["Llama"], baichuan)
BLENDERBOT = Family(_BPE_FILES, _lstrip("Blenderbot"), blenderbot)
T5 = Family((("spiece.model", *_SENTENCEPIECE),), CLASS_NAMES["T5"], t5)
PEGASUS = Family((("spiece.model", *_SENTENCEPIECE),), CLASS_NAMES["Pegasus"], pegasus)
MBART_CC25 = Family(
    (_SENTENCEPIECE,),
    _lstrip("MBart"),
    of_languages(MBART, "en_XX", suffix=True, in_pieces=True),
)
MBART_OF_50 = Family(
    (_SENTENCEPIECE,),
    _lstrip("MBart50"),
    of_languages(MBART_50, "en_XX", suffix=False, in_pieces=True),
)
NLLB_200 = Family(
    (_SENTENCEPIECE,),
    replace(_lstrip("Nllb"), normalized=("mask",)),
    of_languages(NLLB, "eng_Latn", suffix=False, in_pieces=False),
)
MARIAN = Family(
    (("source.spm",), ("target.spm",), ("vocab.json",)), CLASS_NAMES["Marian"], number=marian
)
M2M_100 = Family((_SENTENCEPIECE, ("vocab.json",)), CLASS_NAMES["M2M100"], number=m2m_100)
