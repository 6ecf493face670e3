"""Cases of pipelines.json: models, texts and options of pipelines of transformers."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

from tiny_tokenizer import NO_TYPES, WORDS

TYPES_OFF = NO_TYPES["tokenizer"]
_FILLERS = ("singing", "Émile", "rather", "x-ray", "sat.", "Paris,", "who's", "dogs", "\U0001f600")
_LENGTHS = (1, 1, 2, 3, 8, 21, 55, 144, 600)


def _text(words: int, seed: int) -> str:
    source = random.Random(seed)
    return " ".join(source.choice(WORDS + _FILLERS) for _ in range(words))


# name -> (golden model, kind of tokenizer, settings of it)
READERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "words": ("bert-answers", "words", {}),
    "bytes": ("distilbert-answers", "bytes", TYPES_OFF),
    "pieces": ("bert-answers", "pieces", TYPES_OFF),
    "left": ("bert-answers", "bytes", {"truncation_side": "left"}),
}
QUESTIONS = (
    *((f"who sat {'there' * (i % 3)}?", _text(words, i)) for i, words in enumerate(_LENGTHS)),
    ("where", "cat " * 50),  # one span in every window
    ("what was it", "The Cat, the cat; THE CAT! " * 12),
    ("is this empty", " \n"),
    ("who [CLS] sat", "mark sat on [SEP] the [CLS] mat in paris"),
    ("when", "a  cat\tin   paris \n\n said: dog--mat..."),
)
# Names are those of the pipeline.
ANSWER_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"top_k": 3, "handle_impossible_answer": True},
    {"top_k": 4, "align_to_words": False, "max_seq_len": 30, "doc_stride": 7},
    {"top_k": 2, "max_answer_len": 3, "max_seq_len": 24, "doc_stride": 0},
    {"handle_impossible_answer": True, "align_to_words": False, "max_answer_len": 1},
    {"top_k": 8, "max_answer_len": 40, "max_seq_len": 36, "doc_stride": 12},
)
OURS = {
    "max_seq_len": "max_length",
    "doc_stride": "stride",
    "max_answer_len": "max_answer_length",
    "handle_impossible_answer": "allow_none",
}

TAGGERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "words": ("bert-tokens", "words", {}),
    "bytes": ("distilbert-tokens", "bytes", TYPES_OFF),
    "pieces": ("bert-tokens", "pieces", {}),
}
TAGGED = (
    "",
    "Mark's dogs sat in Paris, singing.",
    "the Émile 42 \U0001f600 rather-odd [SEP] x-ray!",
    *(_text(words, 7 + words) for words in (4, 20, 50)),
)
STRATEGIES = ("none", "simple", "first", "average", "max")
TAG_OPTIONS: tuple[dict[str, Any], ...] = (
    *({"aggregation_strategy": strategy} for strategy in STRATEGIES),
    *(
        {"aggregation_strategy": strategy, "stride": stride, "ignore_labels": ignored}
        for strategy, (stride, ignored) in product(
            STRATEGIES[1:3], ((0, ["O"]), (9, []), (20, ["O", "PER"]))
        )
    ),
)

FILLERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "words": ("bert-predictions", "words", {}),
    "clean": ("bert-predictions", "words", {"clean_up_tokenization_spaces": True}),
    "bytes": ("distilbert-predictions", "bytes", TYPES_OFF),
}
MASKED = (
    "the [MASK] sat on the mat.",
    "[MASK]",
    "Who was [MASK] in Paris, and [MASK]?",
    "mark's [MASK] dogs weren't - singing !",
)
FILL_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"top_k": 2},
    {"targets": ["cat", "dog", "cat", "paris"]},
    {"targets": "singing", "top_k": 3},
)

# Fields that pipelines.json has of each result, after the score. The text of an answer is its piece
# of the context; the words of entities are made of tokens there, and pieces of the text in ours.
ANSWER = ("start", "end")
ENTITY = ("entity", "entity_group", "index", "start", "end")
WORD = ("token", "token_str", "sequence")
