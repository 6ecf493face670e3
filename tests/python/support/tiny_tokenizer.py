"""A WordPiece tokenizer of 100 tokens for the tiny models of tests/golden."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from string import ascii_lowercase
from typing import Any

# RoBERTa models of transformers count positions around their padding, id 1: no text has a [MASK].
SPECIAL = {"pad": "[PAD]", "mask": "[MASK]", "cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]"}
INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
NO_TYPES = {"tokenizer": {"model_input_names": ["input_ids", "attention_mask"]}}
WORDS = ("the", "a", "cat", "dog", "sat", "on", "mat", "in", "at", "of", "is", "was", "who")
WORDS += ("where", "when", "what", "and", "not", "paris", "mark", "said")
PAIRS = {
    "bert": "[CLS] $A [SEP] $B:1 [SEP]:1",
    "roberta": "[CLS] $A [SEP] [SEP] $B [SEP]",
}


def vocabulary() -> dict[str, int]:
    pieces = [f"##{letter}" for letter in ascii_lowercase]
    tokens = [
        *SPECIAL.values(),
        *ascii_lowercase,
        *pieces,
        *".,?!-'",
        *WORDS,
        "##ing",
        "##ed",
        "##s",
    ]
    tokens += [f"[unused{i}]" for i in range(100 - len(tokens))]
    return {token: i for i, token in enumerate(tokens)}


def make_tokenizer(pair: str = "bert") -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece(vocabulary(), unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=PAIRS[pair], special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    # Published files have these settings. Neither may have an effect.
    tokenizer.enable_padding(length=50)
    tokenizer.enable_truncation(7)
    return tokenizer


def make_byte_tokenizer() -> Any:
    """Byte-level BPE, as RoBERTa's: a space belongs to the word after it."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    space = "\u0120"
    merged = ("the", "cat", "dog", "sat", "mat", "paris", "mark", "was", "on", "in")
    pieces, merges = [], []
    for word in (*(space + word for word in merged), "ing", "er"):
        for i in range(1, len(word)):
            if word[: i + 1] not in pieces:
                pieces.append(word[: i + 1])
                merges.append((word[:i], word[i]))
    tokens = [*SPECIAL.values(), *ascii_lowercase, *".,?!-'", space, *pieces]
    tokens += [f"[unused{i}]" for i in range(100 - len(tokens))]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def make_piece_tokenizer() -> Any:
    """Pieces with their probabilities, as XLM-RoBERTa's: a space is a character of its own."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    space = "\u2581"
    tokens = [*SPECIAL.values(), space, *ascii_lowercase, *".,?!-'"]
    tokens += [space + word for word in WORDS] + ["at", "in", "ing", "er", "th", "ar", "is"]
    tokens += [f"[unused{i}]" for i in range(100 - len(tokens))]
    scores = [(token, -9.0 + len(token) - i / 100) for i, token in enumerate(tokens)]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=4, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=PAIRS["roberta"],
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


KINDS = {"words": make_tokenizer, "bytes": make_byte_tokenizer, "pieces": make_piece_tokenizer}


def with_kind(model: Path, folder: Path, kind: str, **settings: Any) -> Path:
    """A copy of a golden model with a tokenizer of this kind, which knows its special tokens."""
    with_tokenizer(model, folder, config={"tokenizer": settings})
    tokenizer = KINDS[kind]()
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def add_tokenizer(folder: Path, pair: str = "bert", **settings: Any) -> Path:
    """Writes the tokenizer's files into a model folder, which it returns."""
    make_tokenizer(pair).save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 40,
        "model_input_names": INPUTS,
        **{f"{name}_token": token for name, token in SPECIAL.items()},
        **settings,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def with_tokenizer(
    model: Path, folder: Path, pair: str = "bert", config: dict[str, Any] | None = None
) -> Path:
    """A copy of a golden model with the tokenizer, and changes to its config.json.

    config  what "tokenizer" says in it goes into tokenizer_config.json
    """
    changes = dict(config or {})
    settings = changes.pop("tokenizer", {})
    shutil.copytree(model, folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return add_tokenizer(folder, pair, **settings)
