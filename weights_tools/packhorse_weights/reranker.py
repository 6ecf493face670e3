"""Rerankers that are language models. A pair is written in a template, and the score comes from the
logits of "yes" and "no" after it.

A checkpoint of this kind does not say so itself, so the caller who loads it has to.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packhorse_weights.architectures.base import Architecture
from packhorse_weights.architectures.heads import LmHead
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import Tensor, to_float32
from packhorse_weights.tokenizers.files import read_tokenizer

# The name of a template, or its fields (docs/text.md).
Reranker = str | Mapping[str, Any]

TEMPLATES: Mapping[str, Mapping[str, Any]] = {
    "qwen3": {
        "prefix": (
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the "
            'Query and the Instruct provided. Note that the answer can only be "yes" or "no".'
            "<|im_end|>\n<|im_start|>user\n"
        ),
        "text": "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
        "suffix": "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "instruction": (
            "Given a web search query, retrieve relevant passages that answer the query"
        ),
        "yes": "yes",
        "no": "no",
    },
}
_TEXTS = ("prefix", "text", "suffix", "instruction")  # fields of the spec
_PLACES = ("{instruction}", "{query}", "{document}")  # placeholders, only in "text"
_OPTIONAL = {"prefix": "", "suffix": "", "instruction": "", "no": None}


def read_reranker(reranker: Reranker | None) -> dict[str, Any]:
    """Returns all fields of a template. Raises CheckpointError if it is not usable."""
    if reranker is None:
        raise CheckpointError(
            "LogitScore: this model reads pairs in a template, and chat templates are not read: "
            f"say which one, reranker={', '.join(map(repr, TEMPLATES))} or its fields"
        )
    if isinstance(reranker, str):
        if reranker not in TEMPLATES:
            raise CheckpointError(
                f"reranker {reranker!r:.80} is not known; known: {', '.join(TEMPLATES)}; or give "
                "the fields of its template"
            )
        reranker = TEMPLATES[reranker]
    fields = {**_OPTIONAL, **reranker}
    if unknown := fields.keys() - {*_TEXTS, "yes", "no"}:
        raise CheckpointError(f"reranker: {min(unknown)!r:.80} is not a field of a template")
    for name in _TEXTS:
        if not isinstance(fields.get(name), str):
            raise CheckpointError(f"reranker: {name!r} is {fields.get(name)!r:.80}, expected text")
    for name in ("prefix", "suffix"):
        for place in _PLACES:
            if place in fields[name]:
                raise CheckpointError(f"reranker: {name!r} has {place}, expected in 'text' alone")
    for place in ("{query}", "{document}"):
        if (count := fields["text"].count(place)) != 1:
            raise CheckpointError(
                f"reranker: 'text' is {fields['text']!r:.80}: expected {place} once, "
                f"found it {count} times"
            )
    for name in ("yes", "no"):
        token = fields.get(name)
        if type(token) not in (int, str) and not (name == "no" and token is None):
            raise CheckpointError(
                f"reranker: {name!r} is {token!r:.80}, expected a token or its id"
            )
    return fields


def _numbered(rows: list[Any], path: Path) -> dict[str, int]:
    """The ids of a vocabulary that is a list of [token, score]."""
    for i, row in enumerate(rows):
        if not isinstance(row, list) or not row or not isinstance(row[0], str):
            raise CheckpointError(f"{path}: vocab[{i}] is {row!r:.80}, expected [token, score]")
    return {row[0]: i for i, row in enumerate(rows)}


def _token_id(token: int | str, folder: Path, vocab_size: int) -> int:
    """The id of an entry of the vocabulary, spelled as in tokenizer.json."""
    found: Any = token
    if isinstance(token, str):
        path = folder / "tokenizer.json"
        tokenizer = read_tokenizer(folder)
        if tokenizer is None:
            raise CheckpointError(f"{folder}: no tokenizer.json that says the id of {token!r:.80}")
        model, added = tokenizer.get("model"), tokenizer.get("added_tokens")
        vocabulary = model.get("vocab") if isinstance(model, dict) else None
        if isinstance(vocabulary, list):
            vocabulary = _numbered(vocabulary, path)
        found = vocabulary.get(token) if isinstance(vocabulary, dict) else None
        for one in added if isinstance(added, list) else ():
            if isinstance(one, dict) and one.get("content") == token:
                found = one.get("id")
    if type(found) is not int or not 0 <= found < vocab_size:
        raise CheckpointError(
            f"reranker: the token {token!r:.80} is not one of the {vocab_size} of {folder}"
        )
    return found


def answer_tokens(
    fields: Mapping[str, Any], folder: Path, config: Config, known: list[int] | None
) -> list[int]:
    """The ids of the template's "yes" and, if it has one, "no".

    known: the ids that the folder itself gives, if any.
    """
    tokens = [fields["yes"]] if fields["no"] is None else [fields["yes"], fields["no"]]
    found = [_token_id(token, folder, config.tokens("vocab_size")) for token in tokens]
    if known is not None and found != known:
        raise CheckpointError(
            f"{folder}: reranker: the tokens {tokens!r:.80} are {found}, LogitScore has {known}"
        )
    return found


def texts_of(fields: Mapping[str, Any]) -> Spec:
    """Builds `template` of the spec."""
    return {name: fields[name] for name in _TEXTS}


def scores_sequences(classifier: Mapping[str, Any] | None) -> bool:
    """True if a checkpoint has been made a classifier already, so that only its template is
    missing."""
    return (
        classifier is not None
        and classifier["input"] != "tokens"
        and len(classifier["labels"]) == 1
    )


def check_reads_templates(
    family: Architecture, config: Config, classifier: Mapping[str, Any] | None
) -> None:
    """Raises CheckpointError unless the model is a causal language model, or a classifier with one
    label that was made from one. Other models were trained on pairs without a template."""
    is_language_model = config.class_name.endswith("ForCausalLM")
    plain = family.lm_head is not None and not family.lm_head.options(config)
    if not plain or not (is_language_model or scores_sequences(classifier)):
        raise CheckpointError(
            f"{config.where}: reranker: expected a causal language model or a classifier with one "
            f"label made of one, found {config.class_name!r:.80}"
        )


def answer_weight(
    family: Architecture,
    prefix: str,
    config: Config,
    tensors: Mapping[str, Tensor],
    tokens: list[int],
) -> Tensor:
    """Returns the weight [1, E] with which a causal language model scores by the logits of
    `tokens`.

    The result is the logit of the first token minus that of the second. Its sigmoid is P(yes) among
    the two, which is the score unless the checkpoint's activation is Identity. So of the layer over
    the vocabulary only one row is kept: the difference of two rows, in float32.
    """
    head = family.lm_head or LmHead()
    name = f"{head.name}.weight"
    if name not in tensors:
        if not config.boolean("tie_word_embeddings", head.tied):
            raise CheckpointError(
                f"{config.where}: reranker: no tensor {name}, and tie_word_embeddings is not true"
            )
        name = f"{prefix}{family.names['embeddings.word']}"
    table = tensors[name]
    expected = (config.tokens("vocab_size"), config.integer("hidden_size"))
    if table.shape != expected:
        raise CheckpointError(
            f"{config.where}: tensor {name} has shape {list(table.shape)}, config.json says "
            f"{list(expected)}"
        )
    rows = [to_float32(Tensor(table.data[i : i + 1], table.dtype)) for i in tokens]
    return Tensor(rows[0] - rows[1] if len(rows) == 2 else rows[0].copy(), "float32")
