"""The parts on top of the model that lie in separate files: sentence-transformers' modules, and the
layers of ColBERT and BGE-M3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packhorse_weights.config import Config, optional_config, read_config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import has_file, read_json
from packhorse_weights.sentence_transformers.dense import read_dense, refuse_rest, take_layer
from packhorse_weights.sentence_transformers.pooling import (
    OF_TRAINING,
    PACKAGES,
    Module,
    default_pooling,
    read_modules,
    read_pooling,
)
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import Tensor
from packhorse_weights.weight_files import read_file

_TRANSFORMERS = ("Transformer", "MLMTransformer")
_KNOWN = (
    *_TRANSFORMERS,
    "StaticEmbedding",
    "Pooling",
    "Dense",
    "Normalize",
    "SpladePooling",
    "MultiVectorMask",
    "LogitScore",
)
# Unsupported modules of sentence-transformers -> what they would do.
_REFUSED = {
    "Router": "it sends each text to one of several models",
    "Asym": "it sends each text to one of several models",
    "WordEmbeddings": "it has vectors of words, by a tokenizer of its own",
    "WordWeights": "it weighs words by a table",
    "BoW": "it counts words, by a tokenizer of its own",
    "CNN": "it runs convolutions over a text's tokens",
    "LSTM": "it runs a recurrent network over a text's tokens",
    "LayerNorm": "it normalises embeddings by learned weights",
    "WeightedLayerPooling": "it weighs the hidden states of several layers",
    "CLIPModel": "it embeds images and texts",
    "SparseStaticEmbedding": "it looks up a weight for each of a text's tokens",
    "IDF": "it looks up a weight for each of a text's tokens",
    "SparseAutoEncoder": "it makes sparse vectors of dense ones",
    "CSRSparsity": "it makes sparse vectors of dense ones",
    "TokenPooling": "it merges the vectors of a text's tokens",
}
# Output of a model -> the order of modules that produces it, as a regular expression.
_ORDERS = {
    "no embedding": "(Transformer)?",
    "one vector": "Transformer Pooling( Dense)*( Normalize)?",
    "one vector of a table's rows": "StaticEmbedding( Dense)*( Normalize)?",
    "a vector for each token": "Transformer( Dense)+( Normalize)?( MultiVectorMask)?",
    "a sparse vector": "Transformer SpladePooling",
    "a score": "Transformer LogitScore",
}


@dataclass
class Modules:
    """The parts that read_parts finds.

    embedding, heads: these sections of the spec
    names: our name of a layer -> the complete name of its tensor in `tensors`
    """

    embedding: Spec
    pooling_reason: str  # the file or rule that decided the pooling
    heads: Spec = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    sparse: Spec = field(default_factory=dict)  # fields of `heads.masked_lm` for sparse vectors
    answers: list[int] | None = None  # ids of "yes" and, if any, "no", whose logits give a score

    def add(self, ours: str, theirs: str, tensors: Mapping[str, Tensor]) -> None:
        """Adds a dense layer that lies in a file of its own."""
        self.names[ours] = theirs
        self.tensors |= {f"{theirs}.{name}": tensor for name, tensor in tensors.items()}


def _read_dense_layers(paths: list[Path], inputs: str, names: list[str], to: Modules) -> list[Spec]:
    """Reads the layers of Dense modules, under our `names`."""
    found: list[Spec] = []
    for path, name in zip(paths, names, strict=True):
        dense = read_dense(path, inputs)
        to.add(name, str(path / "linear"), dense.layer)
        if dense.residual:
            to.add(f"{name}.residual", str(path / "residual"), dense.residual)
        options: Spec = {"size": dense.layer["weight"].shape[0], "bias": "bias" in dense.layer}
        if dense.has_residual:
            options["residual"] = True
        if dense.activation:
            options["activation"] = dense.activation
        found.append(options)
    return found


def _read_dense_of_pooled(paths: list[Path], result: Modules) -> None:
    names = [f"embedding.dense.{i}" for i in range(len(paths))]
    if layers := _read_dense_layers(paths, "sentence_embedding", names, result):
        result.embedding["dense"] = layers


def _check_normalize(path: Path, inputs: str) -> None:
    config = optional_config(path)
    for name in ("module_input_name", "module_output_name"):
        config.refuse(name, inputs)


def _read_vectors(paths: list[Path], normalize: bool, result: Modules) -> None:
    names = [*(f"vectors.dense.{i}" for i in range(len(paths) - 1)), "vectors"]
    *before, last = _read_dense_layers(paths, "token_embeddings", names, result)
    first = {"dense": before} if before else {}
    result.heads["vectors"] = {**first, **last, "normalize": normalize}


def _read_splade(path: Path, result: Modules) -> None:
    config = read_config(path / "config.json")
    pooling = config.choice("pooling_strategy", {"max": "max", "sum": "sum"}, "max")
    logs = config.choice("activation_function", {"relu": "1", "log1p_relu": "2"}, "relu")
    result.sparse = {
        "sparse": True,
        **({"sparse_pooling": pooling} if pooling != "max" else {}),
        **({"sparse_logs": 2} if logs == "2" else {}),
    }


def _read_logit_score(path: Path, model: Config, result: Modules) -> None:
    config = read_config(path / "config.json")
    config.refuse("module_input_name", "causal_logits")
    most = model.tokens("vocab_size") - 1
    result.answers = [config.tokens("true_token_id", low=0, high=most)]
    if config.fields.get("false_token_id") is not None:
        result.answers.append(config.tokens("false_token_id", low=0, high=most))


def _read_layers(root: Path, folder: Path, result: Modules) -> None:
    """Reads the layers that BGE-M3's checkpoints hold beside the model."""
    for name, ours in (("sparse_linear.pt", "token_weights"), ("colbert_linear.pt", "vectors")):
        paths = [place / name for place in (root, folder) if has_file(place / name)]
        if paths:
            tensors = read_file(paths[0])[0]
            result.add(ours, name.removesuffix(".pt"), take_layer(tensors, "", paths[0]))
            refuse_rest(tensors, paths[0])


def _read_colbert(
    config: Config, tensors: Mapping[str, Tensor], root: Path, result: Modules
) -> None:
    """Reads the layer that ColBERT's own checkpoints keep among the model's tensors."""
    is_colbert = "colbert" in config.class_name.lower()
    if is_colbert and "linear.weight" in tensors and "vectors" not in result.names:
        result.add("vectors", "linear", take_layer(dict(tensors), "linear.", root))


def _routes(path: Path) -> str:
    """The routes of a Router, for a message, or "" if its file names none."""
    files = [path / name for name in ("router_config.json", "config.json")]
    structure = next((read_json(file).get("structure") for file in files if has_file(file)), None)
    found = structure.items() if isinstance(structure, dict) else ()
    routes = [f"{name}: {', '.join(map(str, p))}" for name, p in found if isinstance(p, list)]
    if not routes:
        return ""
    return f" ({'; '.join(routes):.200}; a route saved as a model of its own may be)"


def _check_module(module: Module, where: str) -> None:
    if module.package not in PACKAGES:
        raise CheckpointError(
            f"{where}: the module {module.name!r:.80} is code of the folder's own, which is never "
            f"run; supported: modules of {' and '.join(PACKAGES)}"
        )
    if module.kind not in _KNOWN:
        why = f": {_REFUSED[module.kind]}" if module.kind in _REFUSED else ""
        routes = _routes(module.path) if module.kind in ("Router", "Asym") else ""
        raise CheckpointError(
            f"{where}: the module {module.kind!r:.80} is not supported{why}{routes}; "
            f"supported: {', '.join((*_KNOWN, *OF_TRAINING))}"
        )


def known_modules(root: Path) -> list[Module]:
    """Returns the modules as `read_modules` does. Raises CheckpointError if one is not
    supported."""
    modules = read_modules(root)
    for module in modules:
        _check_module(module, str(root / "modules.json"))
    return modules


def read_parts(
    modules: list[Module],
    root: Path,
    folder: Path,
    config: Config,
    tensors: Mapping[str, Tensor],
) -> Modules:
    """Reads the parts on top of the model in `folder`, whose own files hold `tensors`.

    If no file says how, a sequence is pooled as sentence-transformers would, and not normalised.

    modules: the result of `known_modules`.

    Raises CheckpointError for an order of modules or options that are not supported.
    """
    where = str(root / "modules.json")
    kinds = ["Transformer" if one.kind in _TRANSFORMERS else one.kind for one in modules]
    orders = [name for name, order in _ORDERS.items() if re.fullmatch(order, " ".join(kinds))]
    if not orders:
        raise CheckpointError(
            f"{where}: modules {kinds!r:.120}; expected {', or '.join(_ORDERS.values())}, in this "
            "order"
        )
    pooling, why = default_pooling(config)
    found = "modules.json has no Pooling" if modules else "no modules.json"
    result = Modules({"pooling": pooling, "normalize": False}, f"{found}: {why}")
    paths = [one.path for one in modules[1:] if one.kind not in ("Normalize", "MultiVectorMask")]
    inputs = "token_embeddings" if orders[0] == "a vector for each token" else "sentence_embedding"
    for one in modules:
        if one.kind == "Normalize":
            _check_normalize(one.path / "config.json", inputs)
    # PyLate scales vectors to length 1 without a module for it.
    normalize = "Normalize" in kinds or any(one.package == "pylate" for one in modules)
    if orders[0].startswith("one vector"):
        if kinds[0] == "Transformer":
            result.embedding = read_pooling(paths.pop(0) / "config.json")
        result.pooling_reason = "modules.json says so"
        _read_dense_of_pooled(paths, result)
        result.embedding["normalize"] = normalize
    if orders[0] == "a vector for each token":
        _read_vectors(paths, normalize, result)
    if orders[0] == "a sparse vector":
        _read_splade(paths[0], result)
    if orders[0] == "a score":
        _read_logit_score(paths[0], config, result)
    _read_layers(root, folder, result)
    _read_colbert(config, tensors, root, result)
    for ours, theirs in result.names.items():
        has_bias = f"{theirs}.bias" in result.tensors
        if ours == "vectors" and ours not in result.heads:
            size = result.tensors[f"{theirs}.weight"].shape[0]
            options = {"size": size, "bias": has_bias, "normalize": True}
            result.heads["vectors"] = options
        if ours == "token_weights":
            result.heads["token_weights"] = True
    return result
