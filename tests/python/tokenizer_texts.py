"""Texts that tell tokenizers apart."""

from __future__ import annotations

TEXTS = [
    "",
    " ",
    "   \n\t  ",
    "the cat sat on the mat",
    "The Cat SAT, on 12,345 mats; isn't it? It's 9, or 10,",
    "  two  spaces   before and  after  ",
    "naïve café É Å ﬁ ß İ e\u0301 \uff46\uff55\uff4c\uff4c \uff21①…",
    "中文和日本語テスト 漢字한국어 кот",
    "😀 👩‍👩‍👧 🇩🇪 🤷🏽 ∑ ☃",
    "a\u0000b\u0007c\u200bd\u00a0e\u2028f\ufeffg\r\nh\ti",
    "<s> and </s> or <unk> <pad> <mask> ",
    "[CLS] and [SEP]or [UNK] [PAD] x [MASK] y [cls] [Mask]",
    "<|endoftext|><|im_start|>user\nhi<|im_end|> <tag>x <tag> <TAG> foo Foo FOO",
    "``quotes'' \"double\" 'single' a/b a_b #1 $5 50% (x) {y} ~^|",
    "word" * 40,
    "x" * 210,
    "\u2581 \u2581\u2581a \u2581<0x41> <0x0A>",
    "line one\nline two\n\n\nline three\r\n   indented    text",
    "Tag Tâg Sep Sêp the <mask> cat",
    "<s>NOTUSED <unk>NOTUSED <cls> <sep>the<mask> mat",
]
PAIRS = [
    ("the cat", "sat on the mat"),
    ("", "sat"),
    ("Who? ", " the [SEP] cat </s>"),
    ("漢字 é", ""),
]
