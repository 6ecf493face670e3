"""The classifier of a checkpoint: which one it is, its labels, and how pairs are scored with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packhorse_weights.architectures.base import Architecture
from packhorse_weights.architectures.heads import Head
from packhorse_weights.config import Config, optional_config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.tensor import Tensor
from packhorse_weights.tokenizers.files import read_tokenizer

_MAX_LABELS = 1 << 20
# Classes of torch, as sentence-transformers' CrossEncoder names them in a config.
_SCORES = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": "identity",
}
_SCORES_OF_LABELS = {**_SCORES, "torch.nn.modules.activation.Softmax": "softmax"}
_PROBLEMS = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}


def find_head(family: Architecture, config: Config, tensors: Mapping[str, Tensor]) -> Head | None:
    """The head of the class that the config names, if the checkpoint has its weights."""
    for ending, head in family.heads.items():
        if config.class_name.endswith(ending) and f"{head.names['classifier']}.weight" in tensors:
            return head
    return None


def _labels(config: Config, rows: int) -> list[str]:
    """The names of the labels. `rows` is the number of rows of the layer, which decides if the
    config says nothing."""
    names = config.fields.get("id2label")
    if names is None:
        count = config.integer("num_labels", default=rows, high=_MAX_LABELS)
        if count != rows:
            raise CheckpointError(
                f"{config.where}: num_labels is {count}, but the classifier has {rows} rows"
            )
        return [f"LABEL_{i}" for i in range(count)]
    if not isinstance(names, dict) or names.keys() != {str(i) for i in range(len(names))}:
        raise CheckpointError(
            f"{config.where}: id2label {names!r:.80}: expected a name for each number from 0 on"
        )
    return [str(names[str(i)]) for i in range(len(names))]


def read_classifier(
    head: Head, config: Config, tensors: Mapping[str, Tensor], has_pooler: bool, root: Path
) -> dict[str, Any]:
    """Builds `heads.classifier` of the spec."""
    options = head.options(config)
    if options["input"] == "pooler" and not has_pooler:
        raise CheckpointError(f"{config.where}: a classifier on a pooler, but there is no pooler")
    shape = tensors[f"{head.names['classifier']}.weight"].shape
    labels = list(head.labels) or _labels(config, shape[0] if shape else 0)
    classifier = {**options, "labels": labels}
    padding = config.fields.get("pad_token_id")
    # A number that is no token stands for none, as -1 does in older configs.
    if options["input"] == "last" and padding in range(config.integer("vocab_size")):
        classifier["padding_id"] = padding
    if options["input"] != "tokens":
        if config.fields.get("problem_type") is not None:
            classifier["problem"] = config.choice("problem_type", _PROBLEMS, "")
        if len(classifier["labels"]) == 1:
            classifier["score"] = read_score(config, root)
        elif (
            named := _named_activation(config, root)
        ) is not None:  # an unknown one is refused where pairs are classified
            name = str(named.fields["activation_fn"])
            classifier["score"] = _SCORES_OF_LABELS.get(name, name)
    return classifier


def read_score(config: Config, root: Path) -> str:
    """Builds `heads.classifier.score` of a single label: a sigmoid unless a file names another
    activation."""
    named = _named_activation(config, root)
    return "sigmoid" if named is None else named.choice("activation_fn", _SCORES, "")


def _named_activation(config: Config, root: Path) -> Config | None:
    """The section with "activation_fn", the function that sentence-transformers' CrossEncoder
    applies to logits: of its own config in the folder `root`, or of the model's config in either
    form."""
    path = root / "config_sentence_transformers.json"
    older = config.fields.get("sbert_ce_default_activation_function")
    for named in (
        optional_config(path),
        config.section("sentence_transformers"),
        Config({"activation_fn": older}, config.where),
    ):
        if named.fields.get("activation_fn") is not None:
            return named
    return None


def _processor(value: object) -> dict[str, Any]:
    """The post-processor that inserts special tokens. Others may stand beside it in a sequence."""
    known = ("TemplateProcessing", "BertProcessing", "RobertaProcessing")
    whole = value if isinstance(value, dict) else {}
    parts = whole.get("processors") if whole.get("type") == "Sequence" else [whole]
    dicts = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return next((part for part in dicts if part.get("type") in known), {})


def read_pair(folder: Path) -> dict[str, Any] | None:
    """Builds `pair` of the spec from the tokenizer. Returns None if there is no tokenizer or it
    joins no pairs."""
    path = folder / "tokenizer.json"
    processor = _processor((read_tokenizer(folder) or {}).get("post_processor"))
    if not processor:
        return None
    try:
        if processor["type"] == "TemplateProcessing":
            special = processor["special_tokens"]
            texts = {"A": ["query"], "B": ["document"]}
            parts: list[tuple[Any, int]] = []
            for part in processor["pair"]:
                ((kind, fields),) = part.items()
                name = fields["id"]
                ids = texts[name] if kind == "Sequence" else special[name]["ids"]
                parts += [(one, fields["type_id"]) for one in ids]
        else:
            cls, sep = processor["cls"][1], processor["sep"][1]
            if processor["type"] == "BertProcessing":
                parts = [(cls, 0), ("query", 0), (sep, 0), ("document", 1), (sep, 1)]
            else:
                parts = [(one, 0) for one in (cls, "query", sep, sep, "document", sep)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise CheckpointError(f"{path}: post_processor {processor!r:.120} is not usable") from None
    tokens = [token for token, _ in parts]
    if [token for token in tokens if isinstance(token, str)] != ["query", "document"]:
        return None  # the tokenizer is not made for pairs
    if any(type(one) not in (int, str) or type(kind) is not int for one, kind in parts):
        raise CheckpointError(f"{path}: post_processor {processor!r:.120} is not usable")
    return {"tokens": tokens, "types": [kind for _, kind in parts]}
