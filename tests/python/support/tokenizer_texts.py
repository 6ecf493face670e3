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
CHATS = [  # and what else tells tokenizers of language models apart
    "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHi there!<|im_end|>\n",
    "<start_of_turn>user\nWhat's 12+345?<end_of_turn>\n\n<start_of_turn>model\n",
    "<s>[INST] Ünïcode, 1234567 and  tabs\t\there [/INST] ok</s><s>",
    "def f(x):\n    return x ** 2  # it's\n\n\n\nclass A:\n\tpass\n",
    "I'LL GO, he'd SAID; we've 3.14159 x 10^-27 \u2014 \u00bd \u2167 \u0663\u0664",
    "   leading, trailing   ",
    "<|user|> \n Hi<|end|> \n<|endoftext|> x</s>  y <unk> z",
    "\n\n\n a\n b \r\n\r\n c",
    "中文,日本語。テスト! 한국어? русский עברית العربية ไทย",
    "$<=>^~|`+ (a){b}[c] \"q\" 'r' https://x.y/z?a=1&b=2 a@b.c #tag",
]
SOURCES = [  # with codes of languages, and pieces that no vocabulary has
    ">>fr<< the cat sat",
    ">>fr<<the cat",
    ">>xx<< the cat",
    " >>es<< the cat",
    ">> the cat << sat",
    "the >>fr<< cat",
    "__fr__ the cat __de__",
    "fra_Latn the cat, en_XX the mat",
    "\u2603\u2211 \u2603 ab\u2603cd ~\u2211",
    "a </s> b<pad>c  <unk> d",
    "<extra_id_0> the <extra_id_99>cat<extra_id_100>",
    "summarize: the quick   brown fox\n\njumps",
]
