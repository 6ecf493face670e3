"""Texts and models of text.json and text.npz."""

from __future__ import annotations

from tiny_tokenizer import NO_TYPES

TEXTS = (
    "Mark sat on the mat.",
    "",
    "In Paris, who was not sitting?",
    "The dogs and cats of Mark's mat",
    "a-b-c! Émile 42 \U0001f600 end",
    "the cat sat on the mat " * 30,
)
PAIRS = (
    ("Where was the cat?", "The cat sat on the mat."),
    ("who", ""),
    ("", "Mark"),
    ("Who said what, and when?", "the cat sat on the mat and the dog was in paris " * 5),
    ("the dog was not in paris " * 10, "mats"),
    ("the dog was not in paris " * 10, "the cat sat on the mat " * 10),
)
# name -> (golden model, how pairs are joined, changes to config.json)
RERANKERS = {
    "bert": ("bert-reranker", "bert", {}),
    "bert-sigmoid": ("bert-reranker", "bert", {"sentence_transformers": {}}),
    "bert-no-types": ("bert-reranker", "bert", NO_TYPES),
    "xlm-roberta": ("xlm-roberta-reranker", "roberta", NO_TYPES),
    "modernbert": ("modernbert-reranker", "bert", NO_TYPES),
}
# Template of a generative reranker, and name -> (golden model, changes to config.json,
# instruction).
TEMPLATE = {
    "prefix": "the dog said what is not at (query). ",
    "text": "of: {instruction} who: {query} what: {document}",
    "suffix": "! was it? ",
    "instruction": "when is a cat in {document}",
    "yes": "and",
    "no": "not",
}
ANSWERS = {
    "qwen3": (
        "qwen3-answers",
        {"tokenizer": {**NO_TYPES["tokenizer"], "model_max_length": 80}},
        None,
    ),
    "llama": ("llama-answers", NO_TYPES, "mark"),
}
CLASSIFIERS = {
    "bert": ("bert-sequence", "bert", {}),
    "bert-single": ("bert-sequence", "bert", {"problem_type": "single_label_classification"}),
    "bert-multi": ("bert-sequence", "bert", {"problem_type": "multi_label_classification"}),
    "bert-regression": ("bert-sequence", "bert", {"problem_type": "regression"}),
    "one-label": ("bert-reranker", "bert", {}),
    "one-number": ("bert-reranker", "bert", {"problem_type": "regression"}),
    "roberta": ("roberta-sequence", "roberta", NO_TYPES),
}
TOKEN_CLASSIFIERS = {
    "bert": ("bert-tokens", "bert", {}),
    "distilbert": ("distilbert-tokens", "bert", NO_TYPES),
}
PROMPTS = {"query": "search for: ", "document": "passage: "}
MINILM_TEXTS = (
    "Padding is wasted work.",
    "",
    "Ein Satz auf Deutsch, mit Umlauten: Öl, Ärger, Übung.",
    "A caravan crosses the high pass slowly. " * 60,
)
