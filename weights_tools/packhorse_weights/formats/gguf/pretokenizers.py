"""Cutting of texts into words before byte-level BPE, by the names in `tokenizer.ggml.pre`.

Each is what the tokenizer.json of the models that the name stands for has; where those were not
published in that form, what llama.cpp makes of the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packhorse_weights.tokenizers.parts import Part, byte_level, sequence
from packhorse_weights.tokenizers.words import QWEN_WORDS


@dataclass(frozen=True)
class PreTokenizer:
    """One way to cut texts. The `steps` are applied one after the other, before bytes become
    characters.

    With `ignore_merges` a word that is a token stays whole, whatever the merges say. With `add_bos`
    bos begins a text, unless the file says otherwise.
    """

    steps: tuple[Part, ...]
    normalizer: Part | None = None
    ignore_merges: bool = False
    add_bos: bool = False

    @property
    def part(self) -> Part:
        last = byte_level(False, use_regex=False)
        return sequence("pretokenizers", [*self.steps, last]) if self.steps else last


def _split(pattern: str) -> Part:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


_NFC: Part = {"type": "NFC"}
_DIGITS: Part = {"type": "Digits", "individual_digits": True}
_GPT2_WORDS = _split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
_LLAMA3_WORDS = _split(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_GPT2 = PreTokenizer((_GPT2_WORDS,))
_DIGITS_GPT2 = PreTokenizer((_DIGITS, _GPT2_WORDS))
_LLAMA3 = PreTokenizer((_LLAMA3_WORDS,), ignore_merges=True, add_bos=True)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer(
        (
            _split(r"[\p{P}\$\+<=>\^~\|]+"),
            _GPT2_WORDS,
            _split(r"\p{N}+"),
            _split(r"[0-9][0-9][0-9]"),
        )
    ),
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "smollm": _DIGITS_GPT2,
    "starcoder": _DIGITS_GPT2,
    "refact": _DIGITS_GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": PreTokenizer((_split(QWEN_WORDS),), normalizer=_NFC),
    "deepseek-coder": PreTokenizer(
        (
            _split(r"[\r\n]"),
            _split(r"\s?\p{L}+"),
            _split(r"\s?\p{P}+"),
            _split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"),
            _DIGITS,
        )
    ),
    "deepseek-v3": PreTokenizer(
        (
            _split(r"\p{N}{1,3}"),
            _split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
            _split(
                r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
                r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
                r"|\s+(?!\S)|\s+"
            ),
        )
    ),
}
