"""Tables of embeddings without a model on top: the vector of a text is the mean of its tokens'
rows.

Two kinds of folders hold them: those of sentence-transformers' StaticEmbedding module, and those
that model2vec writes (Tulkens and van Dongen, Model2Vec), where tokens may share rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from packhorse_weights.config import Config, optional_config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import has_file
from packhorse_weights.sentence_transformers.dense import refuse_rest
from packhorse_weights.sentence_transformers.pooling import read_modules
from packhorse_weights.spec import Spec, from_layer
from packhorse_weights.tensor import Tensor, to_float32
from packhorse_weights.weight_files import Format, read_weights

# The names of the table's tensor in sentence-transformers and in model2vec.
_NAMES = ("embedding.weight", "embeddings")
_MAX_LENGTH = 8192  # tokens of a text, if no file limits it
_MODEL2VEC_MAX_LENGTH = 512  # model2vec's own limit if its config gives none
_MAX_SEQLEN = 1 << 20
_MAX_MADE = 1 << 31  # numbers in a table that is computed (8 GiB)


class Static(NamedTuple):
    spec: Spec  # without its section `embedding`
    name: str  # the name of the table's tensor in its file
    table: Tensor  # [vocabulary, columns]
    is_made: bool  # whether it was computed from the file's tensors, so that no file holds it
    normalize: bool
    files: list[Path]
    format: Format


def find_static(root: Path) -> Path | None:
    """The folder of the table and the tokenizer, or None if `root` is another kind of model."""
    if modules := read_modules(root):
        return modules[0].path if modules[0].kind == "StaticEmbedding" else None
    return root if _model2vec_config(root).fields else None


def _model2vec_config(folder: Path) -> Config:
    path = folder / "config.json"
    config = optional_config(path)
    return config if config.fields.get("model_type") == "model2vec" else Config({}, str(path))


def _vector(tensor: Tensor | None, name: str, rows: int | None, path: Path) -> Tensor | None:
    if tensor is None or (len(tensor.shape) == 1 and rows in (None, *tensor.shape)):
        return tensor
    wanted = "one dimension" if rows is None else f"shape [{rows}]"
    raise CheckpointError(f"{path}: {name} is {tensor.describe()}, expected {wanted}")


def _make_table(
    table: Tensor, mapping: Tensor | None, weights: Tensor | None, path: Path
) -> Tensor:
    """Makes a table with a row for each token: the row that `mapping` names, times the token's
    weight, in float32."""
    count, columns = (table if mapping is None else mapping).shape[0], table.shape[1]
    if count * columns > _MAX_MADE:  # a small file can ask for any number of shared rows
        raise CheckpointError(
            f"{path}: a table of {count} rows and {columns} columns, more than {_MAX_MADE} numbers"
        )
    rows = to_float32(table)
    if mapping is not None:
        ids = mapping.data
        if mapping.dtype not in ("int32", "int64") or not ((ids >= 0) & (ids < len(rows))).all():
            raise CheckpointError(
                f"{path}: mapping is {mapping.describe()}, expected the number of one of the "
                f"{len(rows)} rows for each token"
            )
        rows = rows[ids]
    if weights is not None:
        rows = rows * to_float32(weights)[:, None]
    return Tensor(rows, "float32")


def _longest(folder: Path, config: Config, as_model2vec: bool) -> int:
    """The longest text in tokens. model2vec's config gives it; in other folders the tokenizer's own
    file does."""
    if as_model2vec:
        if config.fields.get("max_length", _MODEL2VEC_MAX_LENGTH) is None:
            return _MAX_LENGTH
        return config.integer("max_length", default=_MODEL2VEC_MAX_LENGTH, high=_MAX_SEQLEN)
    path = folder / "tokenizer.json"
    truncation = optional_config(path).section("truncation")
    return truncation.integer("max_length", default=_MAX_LENGTH, high=_MAX_SEQLEN)


def read_static(folder: Path, file: Path | None = None) -> Static:
    """Reads the table in `folder`, which `find_static` gives. `file` is as in `read_weights`.

    Texts are processed as in sentence-transformers. If only model2vec can load the folder, because
    it has no modules.json or its rows are shared, weighted or int8, they are processed as in
    model2vec, which truncates elsewhere and ignores unknown tokens.

    Raises CheckpointError naming the tensor that is missing or not usable.
    """
    tensors, files, format = read_weights(folder, file)
    path, rest = files[0], dict(tensors)
    name = next((name for name in _NAMES if name in rest), None)
    if name is None:
        raise CheckpointError(
            f"{path}: expected a tensor {' or '.join(_NAMES)}, found: {', '.join(sorted(rest)[:8])}"
        )
    table = rest.pop(name)
    if len(table.shape) != 2 or 0 in table.shape:
        raise CheckpointError(f"{path}: {name} is {table.describe()}, expected two dimensions")
    mapping = _vector(rest.pop("mapping", None), "mapping", None, path)
    count = table.shape[0] if mapping is None else mapping.shape[0]
    weights = _vector(rest.pop("weights", None), "weights", count, path)
    refuse_rest(rest, path)
    is_made = mapping is not None or weights is not None or table.dtype == "int8"
    if is_made:
        table = _make_table(table, mapping, weights, path)
    config = _model2vec_config(folder)
    alone = not has_file(folder / "modules.json") and bool(config.fields)
    as_model2vec = alone or is_made
    described = {
        "family": "static",
        "vocab_size": table.shape[0],
        "hidden_size": table.shape[1],
        "num_layers": 0,
        "max_seqlen": _MAX_SEQLEN,
        "max_length": _longest(folder, config, as_model2vec),
        "positions": {"kind": "none"},
        "text": {"special_tokens": False, "unknown_tokens": not as_model2vec},
    }
    normalize = alone and config.boolean("normalize", False)
    return Static(from_layer(described), name, table, is_made, normalize, files, format)
