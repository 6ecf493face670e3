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
    # As published files do. Neither may have an effect.
    tokenizer.enable_padding(length=50)
    tokenizer.enable_truncation(7)
    return tokenizer


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
