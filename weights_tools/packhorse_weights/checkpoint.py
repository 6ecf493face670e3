"""Finds what a model folder holds: its config, its weights in any of the known forms, and its
pooling."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from packhorse_weights.adapters.merged import merge_adapter, refuse_adapter_alone
from packhorse_weights.adapters.peft import ADAPTER_CONFIG
from packhorse_weights.architectures import as_encoder, find_architecture, open_clip
from packhorse_weights.architectures.towers import check_tower, tower_part
from packhorse_weights.classifier import (
    find_head,
    read_classifier,
    read_pair,
    read_score,
)
from packhorse_weights.config import Config, language_part
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import has_file, read_json
from packhorse_weights.formats.ctranslate2_folder import find_ctranslate2, open_ctranslate2
from packhorse_weights.formats.gguf.file import GgufFile
from packhorse_weights.formats.gguf.model import find_gguf, open_gguf
from packhorse_weights.formats.quantized.float8 import FLOAT8
from packhorse_weights.formats.quantized.folder import named_weights, open_quantized
from packhorse_weights.formats.safetensors import read_safetensors
from packhorse_weights.hub.cache import find_model
from packhorse_weights.layout import weight_shapes
from packhorse_weights.naming import find_prefix, map_layers, map_names
from packhorse_weights.quantization.per_channel import QUANTIZED_DTYPES, float8_tensors
from packhorse_weights.quantization.stored import (
    STORED,
    TABLE,
    read_stored,
    stored_spec,
    stored_tensors,
)
from packhorse_weights.reranker import (
    Reranker,
    answer_tokens,
    answer_weight,
    check_reads_templates,
    read_reranker,
    scores_sequences,
    texts_of,
)
from packhorse_weights.sentence_transformers.modules import known_modules, read_parts
from packhorse_weights.sentence_transformers.pooling import (
    AskedPooling,
    override_embedding,
    read_max_length,
    read_modules,
)
from packhorse_weights.sentence_transformers.static_embedding import find_static, read_static
from packhorse_weights.sentence_transformers.transformer import config_overrides
from packhorse_weights.spec import (
    Spec,
    from_layer,
    has_encoder_decoder,
    longest_text,
    with_stem,
)
from packhorse_weights.tensor import WEIGHT_DTYPES, LazyTensor, Tensor, cast, default_dtype
from packhorse_weights.vocabulary import read_lm_head, read_masked_lm
from packhorse_weights.weight_files import Format, has_weights, read_weights

# The folder of the text tower in the converted folder of a model with two.
TEXT_TOWER = "text"


@dataclass(frozen=True)
class Checkpoint:
    """A model as it lies on disk. Only headers of its files have been read."""

    spec: Spec
    names: dict[str, str]  # ours -> theirs
    tensors: dict[str, Tensor]  # theirs -> view of the file, including heads that nothing uses
    files: list[Path]  # files of the weights
    format: Format
    folder: Path  # holds config.json and the tokenizer; for a GGUF file, which holds both, the file
    converted: bool  # packhorse.json and our names
    pooling_reason: str  # why sequences are pooled as `embedding.pooling` of the spec says
    elsewhere: bool = False  # whether some tensors lie in other files than `files`
    # A GGUF file as it was read, for other readers of it while this is in use (`read_gguf`).
    opened: GgufFile | None = None

    @property
    def is_quantized(self) -> bool:
        """True if it was converted with `quantize`. Its sessions then have that dtype."""
        return self._quantized_dtype is not None

    @property
    def _quantized_dtype(self) -> str | None:
        known = QUANTIZED_DTYPES.values()
        found = (tensor.dtype for tensor in self.tensors.values() if tensor.dtype in known)
        return next(found, None) if self.converted else None

    @property
    def stored_dtype(self) -> str:
        """The dtype of most elements of the model; "int8" or "float8" for a folder quantised to it,
        "stored" where some matrices are quantised in groups."""
        if (quantized := self._quantized_dtype) is not None:
            return quantized
        if stored_spec(self.spec, self._used) is not None:
            return STORED
        counts: Counter[str] = Counter()
        for theirs in self.names.values():
            counts[self.tensors[theirs].dtype] += self.tensors[theirs].size
        return max(counts, key=counts.__getitem__, default="float32")

    @property
    def _used(self) -> dict[str, Tensor]:
        return {ours: self.tensors[theirs] for ours, theirs in self.names.items()}

    @property
    def table_dtype(self) -> str | None:
        """The dtype of the table of words."""
        table = self.tensors.get(self.names.get(TABLE, ""))
        return None if table is None else table.dtype

    def spec_in(self, dtype: str) -> Spec:
        """The spec of a session of this dtype: it says what stays as it is stored."""
        found = stored_spec(self.spec, self._used) if dtype == STORED else None
        return _with_table(self.spec if found is None else found, self.table_dtype, dtype)

    def default_dtype(self, device: str, generates: bool = False) -> str:
        """The dtype of a session that is not asked for another: see `tensor.default_dtype`."""
        return default_dtype(device, self.stored_dtype, generates, self.spec.get("family"))


@dataclass(frozen=True)
class ModelFiles:
    """Files and tensors that a session loads from.

    spec: docs/developer/spec.md. names: ours -> theirs, for every tensor of the spec.
    safetensors: files that hold the tensors under *their* names, where `tensors` is None.
    tensors: otherwise, the tensors under *our* names, C-contiguous, float32, float16 or bfloat16
        (as uint16); they are read-only and may be views of a mapped file. `data` of those that a
        GGUF file holds in another form (`LazyTensor`) is made each time that it is asked for.
    """

    spec: Spec
    safetensors: list[Path]
    names: dict[str, str]
    tensors: dict[str, Tensor] | None
    stored_dtype: str  # Checkpoint.stored_dtype
    opened: GgufFile | None = None  # Checkpoint.opened
    table_dtype: str | None = None  # Checkpoint.table_dtype

    @property
    def weights(self) -> tuple[list[Path], dict[str, str], dict[str, Tensor] | None]:
        """(files, names of tensors in them, tensors), as a session of the runtime takes them."""
        return self.safetensors, self.names if self.tensors is None else {}, self.tensors

    def in_dtype(self, dtype: str) -> ModelFiles:
        """The model as a session of this dtype loads it: with "stored", weights that are quantised
        in groups are handed over as they are, and with "float8" those in e4m3 (docs/weights.md)."""
        spec, tensors = self.spec, self.tensors
        if dtype == FLOAT8 and tensors is not None:
            tensors = float8_tensors(tensors) or tensors
        elif dtype == STORED and tensors is not None:
            found = stored_spec(spec, tensors)
            assert found is not None
            spec, tensors = found, stored_tensors(spec, tensors)
        return replace(self, spec=_with_table(spec, self.table_dtype, dtype), tensors=tensors)


def _with_table(spec: Spec, stored: str | None, dtype: str) -> Spec:
    """The spec of a session of this dtype, in which activations are float32 or not: it says where
    the table of words, of which only rows are read, may stay as it is stored."""
    if has_encoder_decoder(spec):  # whose table may be read by both stacks
        return spec
    widened = stored in ("float16", "bfloat16") and dtype in ("float32", "int8", STORED)
    return with_stem(spec, table_dtype=stored) if widened else spec


def model_folder(folder: Path) -> Path:
    """The folder of config.json. sentence-transformers may keep the transformer in a subfolder."""
    if (static := find_static(folder)) is not None:
        return static
    for module in read_modules(folder)[:1]:
        is_model = module.kind in ("Transformer", "MLMTransformer")
        if is_model and has_file(module.path / "config.json"):
            return module.path
    return folder


def embeds_by_files(path: Path) -> bool:
    """True if the files say how the model pools: those that sentence-transformers wrote, and GGUF
    files of embedders."""
    if (gguf := find_gguf(path)) is not None:
        return open_gguf(gguf).pooling is not None
    root = path if path.is_dir() else path.parent
    return bool(read_modules(root)) or has_file(root / "1_Pooling" / "config.json")


def _without_lm(checkpoint: Checkpoint) -> Checkpoint:
    """A model that is to embed has no use for the head of a causal language model."""
    if checkpoint.converted or "lm" not in checkpoint.spec.get("heads", {}):
        return checkpoint
    spec = dict(checkpoint.spec)
    heads = {name: head for name, head in spec.pop("heads").items() if name != "lm"}
    if heads:
        spec["heads"] = heads
    names = {ours: name for ours, name in checkpoint.names.items() if not ours.startswith("lm.")}
    return replace(checkpoint, spec=spec, names=names)


def inspect_checkpoint(
    path: str | PathLike[str],
    reranker: Reranker | None = None,
    pooling: AskedPooling = None,
    normalize: bool | None = None,
    *,
    revision: str | None = None,
    max_seqlen: int | None = None,
    tower: str | None = None,
) -> Checkpoint:
    """Opens a model folder, a GGUF file, or one weight file (.safetensors, .bin, .pt) beside its
    config.json.

    Converted folders, Hugging Face folders and sentence-transformers folders are known, and folders
    that hold nothing but a GGUF file. Tensors are views of the files: nothing is loaded.

    path, revision: a folder, a file, or the name of a repository and a revision of it, as for
    `find_model`.
    reranker: the template in which a generative reranker reads pairs, by its name or its fields
    (docs/text.md).

    pooling: how a sequence becomes one vector, whatever the files say: "cls", "mean", "max",
    "last", "mean_sqrt", "weighted_mean" (docs/developer/spec.md), or a list, put side by side.
    normalize: whether that vector is brought to length 1, likewise.
    max_seqlen: length of the longest sequence of a session; no more than the model takes.
    tower: of a model of images and texts, the half that is meant: "vision" (None) or "text".

    Raises CheckpointError with the reason, and FileNotFoundError where there is nothing at `path`.
    """
    check_tower(tower)
    checkpoint = _open(find_model(path, revision), reranker, tower)
    if pooling is not None or normalize is not None:
        checkpoint = _without_lm(checkpoint)
    spec = override_embedding(checkpoint.spec, pooling, normalize)
    if max_seqlen is not None:
        spec = _shortened(spec, max_seqlen)
    reason = checkpoint.pooling_reason if pooling is None else "asked for"
    return replace(checkpoint, spec=spec, pooling_reason=reason)


def _shortened(spec: Spec, max_seqlen: int) -> Spec:
    """The spec of a session that takes sequences of this length at most. What the spec leaves to
    its position table, the runtime checks."""
    if has_encoder_decoder(spec):
        stacks = {
            name: {**stack, "max_seqlen": min(max_seqlen, stack["max_seqlen"])}
            for name, stack in spec["stacks"].items()
        }
        return {**spec, "stacks": stacks}
    longest = spec.get("max_seqlen")
    if isinstance(longest, int) and not 1 <= max_seqlen <= longest:
        raise CheckpointError(
            f"max_seqlen is {max_seqlen}, expected 1 to the model's longest sequence, {longest}"
        )
    return {**spec, "max_seqlen": max_seqlen}


def _open_static(root: Path, folder: Path, file: Path | None) -> Checkpoint:
    static = read_static(folder, file)
    parts = read_parts(known_modules(root), root, folder, Config({}, str(folder)), {})
    normalize = parts.embedding["normalize"] or static.normalize
    spec = {**static.spec, "embedding": {**parts.embedding, "normalize": normalize}}
    tensors = {static.name: static.table, **parts.tensors}
    layers = {"embeddings.word": static.name, **parts.names}
    names = map_layers(spec, layers, tensors, str(static.files[0]))
    return Checkpoint(
        spec,
        names,
        tensors,
        static.files,
        static.format,
        folder,
        converted=False,
        pooling_reason="a table of embeddings: the mean of a text's rows",
        elsewhere=static.is_made or bool(parts.tensors),
    )


def _open_ctranslate2(path: Path) -> Checkpoint:
    if has_file(path.parent / ADAPTER_CONFIG):
        raise CheckpointError(
            f"{path.parent}: an adapter beside a model of CTranslate2, whose layers have no "
            "names of transformers: put it into the folder that the model was converted from"
        )
    model = open_ctranslate2(path)
    return Checkpoint(
        model.spec,
        {name: name for name in weight_shapes(model.spec)},
        model.tensors,
        [path],
        "ctranslate2",
        path.parent,
        converted=False,
        pooling_reason="it is read for text to text",
    )


def _open(path: Path, reranker: Reranker | None, tower: str | None) -> Checkpoint:
    """Opens a checkpoint in the format that its files have."""
    if tower == "text" and has_file(path / TEXT_TOWER / "packhorse.json"):
        path = path / TEXT_TOWER
    gguf = find_gguf(path)
    root, file = (path, None) if path.is_dir() else (path.parent, path)
    if gguf is not None:
        root = gguf  # the file is all of the model: files beside it are not looked at
    if has_file(root / "packhorse.json"):
        spec = read_json(root / "packhorse.json")
        weights = file or root / "model.safetensors"
        if file is None and not has_file(weights):
            raise CheckpointError(f"{root}: packhorse.json, but no model.safetensors")
        spec, tensors = read_stored(spec, read_safetensors(weights), str(weights))
        if reranker is not None:
            raise CheckpointError(
                f"{root}: is converted already, and a reranker is named when converting"
            )
        same = {name: name for name in tensors}
        return Checkpoint(
            spec, same, tensors, [weights], "safetensors", root, True, "packhorse.json says so"
        )
    if (static := find_static(root)) is not None:
        if reranker is not None:
            raise CheckpointError(f"{root}: reranker: a table of embeddings scores no pairs")
        return _open_static(root, static, file)

    if gguf is None and (found := find_ctranslate2(root, file)) is not None:
        if reranker is not None:
            raise CheckpointError(f"{root}: reranker: a model that translates scores no pairs")
        return _open_ctranslate2(found)

    modules = known_modules(root)
    folder = model_folder(root)
    pooling: str | None = None
    format: Format
    opened: GgufFile | None = None
    if gguf is not None:
        fields, tensors, pooling, opened = open_gguf(gguf)
        files, format = [gguf], "gguf"
        config = Config(fields, str(gguf))
    elif not has_file(folder / "config.json") and has_file(folder / open_clip.CONFIG):
        path = folder / open_clip.CONFIG
        config = open_clip.tower_config(read_json(path), str(path), tower)
        named = (folder / name for name in open_clip.WEIGHTS)
        file = file or next((path for path in named if has_file(path)), None)
    else:
        if not has_file(folder / "config.json"):
            refuse_adapter_alone(root)
            raise CheckpointError(f"{folder}: no config.json and no packhorse.json")
        fields = read_json(folder / "config.json") | config_overrides(folder)
        config = tower_part(language_part(Config(fields, str(folder / "config.json"))), tower)
    if modules:
        config = as_encoder(config)
    model_type, family = find_architecture(config)
    if gguf is None:
        if file is None and not has_weights(folder):
            refuse_adapter_alone(folder)
            file = named_weights(folder)
        tensors, files, format = read_weights(folder, file)
        tensors = open_quantized(config, folder, tensors)

    spec = from_layer(family.spec(model_type, config))
    prefix = find_prefix(family, tensors, str(files[0]))
    made = {} if family.made is None else family.made(config, prefix, tensors)
    tensors = {**tensors, **made}
    pooler = family.names.get("pooler")
    has_pooler = pooler is not None and f"{prefix}{pooler}.weight" in tensors
    if (max_length := read_max_length(folder, longest_text(spec))) is not None:
        spec["max_length"] = max_length
    heads: Spec = {"pooler": {"activation": family.pooler_activation}} if has_pooler else {}
    if (head := find_head(family, config, tensors)) is not None:
        heads["classifier"] = read_classifier(head, config, tensors, has_pooler, root)
        if heads["classifier"]["input"] != "tokens" and (pair := read_pair(folder)) is not None:
            spec["pair"] = pair
    parts = read_parts(modules, root, folder, config, tensors)
    if family.pooled is not None and not modules:
        pooled = family.pooled(config, prefix, tensors)
        parts.embedding, parts.pooling_reason = dict(pooled.embedding), pooled.reason
        parts.names |= pooled.names
        parts.heads |= pooled.heads
        spec |= pooled.fields
    if pooling is not None:
        parts.embedding["pooling"], parts.pooling_reason = pooling, "pooling_type says so"
    if reranker is not None or parts.answers is not None:
        template = read_reranker(reranker)
        check_reads_templates(family, config, heads.get("classifier"))
        spec["template"] = texts_of(template)
        spec.pop("pair", None)
        if not scores_sequences(heads.get("classifier")):
            tokens = answer_tokens(template, folder, config, parts.answers)
            weight = answer_weight(family, prefix, config, tensors, tokens)
            parts.add("classifier", "answers of the LM head", {"weight": weight})
            heads["classifier"] = {
                "input": "last",
                "bias": False,
                "labels": [str(template["yes"])],
                "score": read_score(config, root),
            }
    layers = {**(head.names if head else {}), **parts.names}
    heads |= parts.heads
    if (masked_lm := read_masked_lm(family, prefix, config, tensors)) is not None:
        heads["masked_lm"] = masked_lm[0] | parts.sparse
        layers |= masked_lm[1]
    elif parts.sparse:
        raise CheckpointError(f"{root}: SpladePooling, but no head of a masked language model")
    lm_head = read_lm_head(family, prefix, config, tensors)
    if lm_head is not None and "template" not in spec and not embeds_by_files(gguf or root):
        heads["lm"] = lm_head[0]
        layers |= lm_head[1]
    if family.text_head is not None:
        heads = {"lm": family.text_head.options(config, tensors)}
        layers = dict(family.text_head.names)
    if heads:
        spec["heads"] = heads
    spec["embedding"] = parts.embedding
    elsewhere = bool(made) or bool(parts.tensors.keys() - tensors.keys())
    tensors = {**tensors, **parts.tensors}
    names = map_names(family, prefix, spec, layers, tensors, str(files[0]))
    if gguf is None:
        tensors = merge_adapter(folder, spec, names, tensors)
    return Checkpoint(
        spec, names, tensors, files, format, folder, False, parts.pooling_reason, elsewhere, opened
    )


def resolve_model(
    path: str | PathLike[str],
    reranker: Reranker | None = None,
    pooling: AskedPooling = None,
    normalize: bool | None = None,
    *,
    revision: str | None = None,
    max_seqlen: int | None = None,
    tower: str | None = None,
) -> ModelFiles:
    """Files and tensors of the model at `path`, for a session: see `inspect_checkpoint`,
    `ModelFiles`."""
    checkpoint = inspect_checkpoint(
        path, reranker, pooling, normalize, revision=revision, max_seqlen=max_seqlen, tower=tower
    )
    return files_of(checkpoint)


def files_of(checkpoint: Checkpoint) -> ModelFiles:
    """Files and tensors of a checkpoint that is open, for a session."""
    used = {ours: checkpoint.tensors[theirs] for ours, theirs in checkpoint.names.items()}
    quantized = QUANTIZED_DTYPES.values()
    known = (*WEIGHT_DTYPES, *quantized) if checkpoint.is_quantized else WEIGHT_DTYPES
    readable = all(
        tensor.dtype in known and not isinstance(tensor, LazyTensor) for tensor in used.values()
    )
    if checkpoint.format == "safetensors" and readable and not checkpoint.elsewhere:
        return ModelFiles(
            checkpoint.spec,
            checkpoint.files,
            checkpoint.names,
            None,
            checkpoint.stored_dtype,
            table_dtype=checkpoint.table_dtype,
        )
    tensors: dict[str, Tensor] = {}
    for name, tensor in used.items():
        dtype = tensor.dtype if tensor.dtype in WEIGHT_DTYPES else "float32"
        tensor = cast(tensor, dtype, name)
        if isinstance(tensor, LazyTensor):
            tensors[name] = tensor
            continue
        flags = tensor.data.flags
        plain = flags.c_contiguous and flags.aligned
        data = tensor.data if plain else tensor.data.copy(order="C")
        tensors[name] = Tensor(data, dtype)
    return ModelFiles(
        checkpoint.spec,
        [],
        checkpoint.names,
        tensors,
        checkpoint.stored_dtype,
        checkpoint.opened,
        checkpoint.table_dtype,
    )
