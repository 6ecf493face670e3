"""What stands on the model in files of its own: sentence-transformers' modules, ColBERT's and
BGE-M3's layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import read_json
from packhorse_weights.layout import Spec
from packhorse_weights.pooling import pooling_mode, read_modules
from packhorse_weights.safetensors_file import read_safetensors
from packhorse_weights.tensor import Tensor

# Classes of torch, as Dense modules name them -> ours; None: no activation.
_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": "",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
}
_TRANSFORMERS = ("Transformer", "MLMTransformer")
_KNOWN = (*_TRANSFORMERS, "Pooling", "Dense", "Normalize", "SpladePooling", "MultiVectorMask")
_ORDERS = (
    "Transformer, Pooling, any number of Dense, Normalize; or, a vector for each token, "
    "Transformer, Dense, Normalize; or MLMTransformer, SpladePooling"
)


@dataclass
class Modules:
    """embedding, heads: of the spec. names: ours of a layer -> theirs, whole, of `tensors`."""

    embedding: Spec
    heads: Spec = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    sparse: bool = False  # whether the model is for sparse vectors

    def add(self, ours: str, theirs: str, tensors: Mapping[str, Tensor]) -> None:
        """A dense layer of a file of its own."""
        self.names[ours] = theirs
        self.tensors |= {f"{theirs}.{name}": tensor for name, tensor in tensors.items()}


def _read_layer(path: Path, prefix: str) -> dict[str, Tensor]:
    """{"weight", "bias" if any} of the only layer in a file, named prefix + these there."""
    if path.suffix == ".safetensors":
        tensors = read_safetensors(path)
    else:
        from packhorse_weights.torch_file import read_torch  # zipfile is slow to import

        tensors = read_torch(path)
    layer = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    weight = layer.get("weight")
    if layer.keys() - {"weight", "bias"} or weight is None or len(weight.shape) != 2:
        raise CheckpointError(
            f"{path}: holds {', '.join(sorted(tensors)) or 'nothing'}; expected {prefix}weight of "
            f"two dimensions and at most {prefix}bias beside it"
        )
    return layer


def _dense(folder: Path, where: str) -> tuple[Config, dict[str, Tensor], str]:
    """(config, tensors, activation) of one Dense module."""
    config = Config(read_json(folder / "config.json"), str(folder / "config.json"))
    config.refuse("use_residual")
    config.refuse("module_input_name", "sentence_embedding", "token_embeddings")
    config.refuse("module_output_name", config.fields.get("module_input_name"))
    activation = config.choice(
        "activation_function", _ACTIVATIONS, "torch.nn.modules.activation.Tanh"
    )
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            tensors = _read_layer(folder / name, "linear.")
            return config, tensors, activation
    raise CheckpointError(f"{folder}: no model.safetensors or pytorch_model.bin, as {where} says")


def _inputs(config: Config, kind: str) -> None:
    """Refuses a Dense module of something else than where it stands says."""
    config.refuse("module_input_name", kind)
    if kind == "token_embeddings":
        return
    # Absent: sentence embeddings.
    config.refuse("module_output_name", kind)


def _read_splade(path: Path, result: Modules) -> None:
    config = Config(read_json(path / "config.json"), str(path / "config.json"))
    config.choice("pooling_strategy", {"max": "max"}, "max")
    config.choice("activation_function", {"relu": "relu"}, "relu")
    result.sparse = True


def _read_token_layer(path: Path, where: str, result: Modules) -> None:
    config, tensors, activation = _dense(path, where)
    if activation:
        raise CheckpointError(f"{config.where}: an activation of token vectors is not supported")
    result.add("vectors", f"{path.name}/linear", tensors)


def _read_layers(root: Path, folder: Path, result: Modules) -> None:
    """Layers that checkpoints hold beside the model: BGE-M3's."""
    for name, ours in (("sparse_linear.pt", "token_weights"), ("colbert_linear.pt", "vectors")):
        paths = [place / name for place in (root, folder) if (place / name).is_file()]
        if paths:
            result.add(ours, name.removesuffix(".pt"), _read_layer(paths[0], ""))


def read_parts(
    root: Path, folder: Path, config: Config, tensors: Mapping[str, Tensor], has_pooler: bool
) -> Modules:
    """What stands on the model of `folder`, whose own files hold `tensors`.

    Without files that say how, nobody trained the model to give embeddings. The first token then
    stands for the sequence where a pooler was trained on it, the mean of all where none was; never
    normalised, so that nothing is added that the model does not say.

    Raises CheckpointError for modules, an order of them or options that are not supported.
    """
    modules = read_modules(root)
    where = str(root / "modules.json")
    kinds = ["Transformer" if kind in _TRANSFORMERS else kind for kind, _ in modules]
    for kind, _ in modules:
        if kind not in _KNOWN:
            raise CheckpointError(
                f"{where}: the module {kind!r:.80} is not supported; supported: {', '.join(_KNOWN)}"
            )
    result = Modules({"pooling": "cls" if has_pooler else "mean", "normalize": False})
    normalize = kinds[-1:] == ["Normalize"]
    middle = [kind for kind in kinds if kind not in ("Normalize", "MultiVectorMask")]
    paths = [path for _, path in modules]
    if middle[:2] == ["Transformer", "Pooling"] and set(middle[2:]) <= {"Dense"}:
        expected = [*middle, *["Normalize"] * normalize]
        result.embedding = {"pooling": pooling_mode(paths[1] / "config.json")}
        if layers := paths[2 : len(middle)]:
            result.embedding["dense"] = []
        for i, path in enumerate(layers):
            dense, layer, activation = _dense(path, where)
            _inputs(dense, "sentence_embedding")
            result.add(f"embedding.dense.{i}", f"{path.name}/linear", layer)
            result.embedding["dense"].append(
                {"size": layer["weight"].shape[0], "bias": "bias" in layer}
                | ({"activation": activation} if activation else {})
            )
        result.embedding["normalize"] = normalize
    elif middle == ["Transformer", "Dense"]:
        expected = kinds
        _read_token_layer(paths[1], where, result)
    elif middle == ["Transformer", "SpladePooling"]:
        expected = middle
        _read_splade(paths[1], result)
    else:
        expected = middle if middle in ([], ["Transformer"]) else [""]
    if kinds != expected:
        raise CheckpointError(f"{where}: modules {kinds!r:.120}; expected {_ORDERS}, in this order")
    _read_layers(root, folder, result)
    classes = config.fields.get("architectures")
    is_colbert = isinstance(classes, list) and "colbert" in str(classes[:1]).lower()
    if is_colbert and "linear.weight" in tensors and "vectors" not in result.names:
        layer = {n: tensors[f"linear.{n}"] for n in ("weight", "bias") if f"linear.{n}" in tensors}
        result.add("vectors", "linear", layer)
    for ours, theirs in result.names.items():
        has_bias = f"{theirs}.bias" in result.tensors
        if ours == "vectors":
            size = result.tensors[f"{theirs}.weight"].shape[0]
            result.heads["vectors"] = {"size": size, "bias": has_bias, "normalize": True}
        if ours == "token_weights":
            result.heads["token_weights"] = True
    return result
