"""The session that encodes: packed batches of token ids in, hidden states and the outputs of heads
out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from packhorse_weights.spec import sees, stem_of

from packhorse._native import session as _session
from packhorse.arguments import (
    Batch,
    HostBatch,
    Outputs,
    as_batch,
    import_batch,
    import_features,
    output_arrays,
    output_names,
)
from packhorse.dense_layers import DenseLayer, read_layers
from packhorse.device import stream_handle
from packhorse.load_options import LoadOptions, ModelPath
from packhorse.memory import MemoryPlan
from packhorse.names import OutputName, PairTruncation
from packhorse.packing import (
    Int32Array,
    PackedTokens,
    TokenSequence,
    as_int32,
    batch_ranges,
    pack,
)
from packhorse.pairs import as_scores, check_pair, check_scores, join_pairs
from packhorse.patches import PackedPatches
from packhorse.result import DeviceResult, FloatArray, OutputShape, RunResult
from packhorse.session import Session

if TYPE_CHECKING:
    from packhorse_weights.checkpoint import ModelFiles

OutArrays = Mapping[str, FloatArray]


class EncoderSession(Session, generates=False):
    """A `Session` of a model that gives hidden states, embeddings and what its heads make of them.

    Calls of several threads wait for each other, and the interpreter lock is not held meanwhile.
    """

    _purpose = (
        "this session gives hidden states and embeddings, and does not generate: load a causal "
        "language model, with kv_tokens over 0 where its files say otherwise"
    )

    def __init__(
        self,
        native: _session.NativeSession,
        config: dict[str, Any],
        options: LoadOptions,
        reload: Callable[[], object] | None = None,
    ) -> None:
        """Arguments as of `Session`."""
        plan = MemoryPlan.from_native(native.memory_plan())
        super().__init__(native, config, options, plan, reload)
        self._native = native

    @classmethod
    def _open(cls, path: ModelPath, model: ModelFiles, options: LoadOptions) -> EncoderSession:
        native = _session.NativeSession.load(json.dumps(model.spec), *model.weights, options)
        found = cls(native, model.spec, options, cls._again(path, options))
        if not model.spec.get("embedding", {}).get("include_prompt", True):
            found._layers = read_layers(model)
        return found

    _layers: Sequence[DenseLayer] = ()

    def layers_after_pooling(self) -> Sequence[DenseLayer]:
        """The layers after a pooling that leaves prompts out, which is computed outside of the
        session."""
        return self._layers

    @property
    def embedding_size(self) -> int:
        """The number of columns of `embedding`."""
        return self._native.outputs["embedding"][1]

    @property
    def outputs(self) -> dict[OutputName, OutputShape]:
        """The outputs that `run` can compute, by name."""
        return {name: OutputShape(*shape) for name, shape in self._native.outputs.items()}

    @property
    def max_seqlen(self) -> int:
        """The length of the longest sequence that the model takes, in tokens."""
        return self._native.max_seqlen

    @property
    def max_predictions(self) -> int:
        """The largest number of rows for which one run makes predictions."""
        return self._options.max_predictions

    @overload
    def run(
        self,
        batch: HostBatch | PackedPatches,
        outputs: Outputs = ...,
        out: OutArrays | None = ...,
        *,
        stream: Any = ...,
        on_device: Literal[False] | None = ...,
        rows: TokenSequence | None = ...,
        features: FloatArray | None = ...,
    ) -> RunResult: ...
    @overload
    def run(
        self,
        batch: Batch | PackedPatches[Any],
        outputs: Outputs = ...,
        out: None = ...,
        *,
        stream: Any = ...,
        on_device: Literal[True],
        rows: TokenSequence | None = ...,
    ) -> DeviceResult: ...
    @overload
    def run(
        self,
        batch: Batch | PackedPatches[Any],
        outputs: Outputs = ...,
        out: OutArrays | None = ...,
        *,
        stream: Any = ...,
        on_device: Literal[False],
        rows: TokenSequence | None = ...,
    ) -> RunResult: ...
    @overload
    def run(
        self,
        batch: Batch | PackedPatches[Any],
        outputs: Outputs = ...,
        out: OutArrays | None = ...,
        *,
        stream: Any = ...,
        on_device: bool | None = ...,
        rows: TokenSequence | None = ...,
    ) -> RunResult | DeviceResult: ...
    def run(
        self,
        batch: Batch | PackedPatches[Any],
        outputs: Outputs = ("hidden",),
        out: OutArrays | None = None,
        *,
        stream: Any = None,
        on_device: bool | None = None,
        rows: TokenSequence | None = None,
        features: FloatArray | None = None,
    ) -> RunResult | DeviceResult:
        """Runs one batch: `PackedTokens`, `(ids, cu_seqlens)`, or a list of id sequences; models of
        images take `PackedPatches`.

        batch      a tuple of two arrays, of NumPy or on a device, is always `(ids, cu_seqlens)`.
                   Every other list or tuple holds sequences: a list of two arrays, and a tuple of
                   two lists, are two sequences. A tuple of an array and a list is an error
        outputs    any of "hidden", "embedding", "pooled", "logits", "token_weights", "vectors",
                   "sparse" and "predictions" that the model has (`RunResult` explains them); other
                   outputs are not computed
        out        arrays to write to, by output name: float32, C-contiguous, of the exact shape
        stream     a CUDA stream, as a handle or as an object of cuda.core, PyTorch or CuPy. The run
                   starts after the work that the stream has been asked for so far, and work that it
                   is asked for from now on starts after the run. None: DLPack or the CUDA array
                   interface synchronises batches on the device, and results with their consumers
        on_device  whether results stay on the device (`DeviceResult`) or come to the host
                   (`RunResult`). None: on the device if the batch is there and there is no `out`
        rows       the tokens for which "predictions" are made: their indices in the whole batch, in
                   ascending order, on the host; at most `max_predictions`
        features   float32 [R, k]: of models that take rows beside ids (`takes_features`), such as
                   those of a tower of images, one for each of the R tokens with a certain id, in
                   order; on the host

        Raises ValueError naming the array, what was found and what was expected. If a batch on the
        device is wrong, reading or checking its results raises it. Raises RuntimeError if all
        output slots are in use or the session was closed. On the CPU, Ctrl-C ends a run between
        layers with KeyboardInterrupt, or with whatever else a signal handler raises.
        """
        self.check_open()
        packed = batch if isinstance(batch, PackedPatches) else as_batch(batch)
        names = output_names(self._native, outputs, out or ())
        handle = stream_handle(stream)
        if on_device is None:
            on_device = packed.on_device and out is None
        if on_device and out is not None:
            raise ValueError(
                "out is for results on the host, but on_device=True keeps them on the device"
            )
        if isinstance(packed, PackedPatches):
            if rows is not None or features is not None:
                raise ValueError("PackedPatches go without rows= and features=")
            if on_device:
                return self._run_patches_to_device(packed, names, handle)
            return self._run_patches(packed, names, out or {}, handle)
        if ("predictions" in names) != (rows is not None):
            raise ValueError('output "predictions" and rows= go together: give both, or neither')
        wanted = None if rows is None else as_int32("rows", rows)
        if features is not None:
            if on_device or packed.on_device:
                raise ValueError("features go with batches and results in host memory")
            features = _as_rows(features)
        if on_device:
            return self._run_to_device(packed, wanted, names, handle)
        num_rows = 0 if wanted is None else wanted.size
        arrays = output_arrays(
            self._native, names, out or {}, packed.num_tokens, packed.num_sequences, num_rows
        )
        if packed.on_device:
            views, _owner = import_batch(self._native, packed, handle)
            self._native.run_from_device(views, wanted, handle, arrays)
        else:
            self._native.wait_for(handle)
            self._run_into(packed, arrays, wanted, features)
        return RunResult(arrays, packed.cu_seqlens)

    @property
    def takes_features(self) -> int:
        """The number of columns of `features` that `run` takes beside token ids; 0: none."""
        return int(stem_of(self.config).get("rows", {}).get("features", 0))

    @property
    def takes_patches(self) -> bool:
        """True for a model of images, which runs `PackedPatches`."""
        return sees(self.config)

    def _run_patches(
        self,
        batch: PackedPatches[Any],
        names: Sequence[OutputName],
        out: OutArrays,
        stream: int,
    ) -> RunResult:
        offsets = self._offsets(batch)
        arrays = output_arrays(self._native, names, out, int(offsets[-1]), batch.num_images)
        grids = batch.grids.reshape(-1)
        if batch.on_device:
            view, _owner = import_features(self._native, batch, stream)
            self._native.run_patches_from_device(view, grids, stream, arrays)
        else:
            self._native.wait_for(stream)
            self._native.run_patches(batch.features, batch.features.shape[1], grids, arrays)
        return RunResult(arrays, offsets)

    def _run_patches_to_device(
        self, batch: PackedPatches[Any], names: Sequence[OutputName], stream: int
    ) -> DeviceResult:
        offsets, grids = self._offsets(batch), batch.grids.reshape(-1)
        if batch.on_device:
            view, owner = import_features(self._native, batch, stream)
            arrays = self._native.run_patches_on_device(view, grids, owner, names, stream)
        else:
            columns = batch.features.shape[1]
            arrays = self._native.run_patches_to_device(
                batch.features, columns, grids, names, stream
            )
        return DeviceResult(arrays, offsets)

    def _offsets(self, batch: PackedPatches[Any]) -> Int32Array:
        return batch.offsets(stem_of(self.config).get("prefix", 0))

    def _run_to_device(
        self,
        packed: PackedTokens[Any],
        rows: Int32Array | None,
        names: Sequence[OutputName],
        stream: int,
    ) -> DeviceResult:
        if packed.on_device:
            views, owner = import_batch(self._native, packed, stream)
            arrays = self._native.run_on_device(views, rows, owner, names, stream)
        else:
            arrays = self._native.run_to_device(
                packed.ids,
                packed.cu_seqlens,
                packed.type_ids,
                packed.position_ids,
                rows,
                names,
                stream,
            )
        return DeviceResult(arrays, packed.cu_seqlens)

    def explain(self, batch: Batch) -> list[str]:
        """Runs the encoder on a batch in host memory and returns which kernels it took where the
        device has a choice, and why: one line for each choice. Empty on the CPU.

        Raises as `run` does.
        """
        self.check_open()
        packed = as_batch(batch)
        if packed.on_device:
            raise ValueError("explain: the batch lies on a device, expected host memory")
        return self._native.explain(
            packed.ids, packed.cu_seqlens, packed.type_ids, packed.position_ids
        )

    def score(
        self,
        query: TokenSequence,
        documents: Iterable[TokenSequence],
        *,
        truncation: PairTruncation = "longest_first",
    ) -> FloatArray:
        """Computes how well each document answers the query: float32[len(documents)].

        query, documents  token ids without special tokens. Pairs are joined as the model's
                          tokenizer joins them
        truncation        how pairs that are too long for the model are cut: token by token off the
                          end of the longer text, or only off the end of the document

        The model must be a cross-encoder. A score is the logit of its only label after the function
        that the checkpoint applies (`heads.classifier.score` of the spec). Raises ValueError if the
        model does not score pairs, or if the query leaves no room.
        """
        check_scores(self.config)
        check_pair(self.config)
        most = self._native.max_seqlen
        longest = min(self.config.get("max_length", most), most)
        ids, types = join_pairs(self.config, longest, query, list(documents), truncation)
        has_types = stem_of(self.config).get("type_vocab_size", 0) > 1
        result = self.run_many(ids, outputs=["logits"], type_ids=types if has_types else None)
        return as_scores(self.config, result.logits)

    def run_many(
        self,
        sequences: Iterable[TokenSequence],
        outputs: Outputs = ("hidden",),
        *,
        type_ids: Sequence[TokenSequence] | None = None,
    ) -> RunResult:
        """Runs any number of id sequences, in as few batches as the plan allows, in order.

        sequences  each a list or vector of ids; unlike `run`, this takes no `(ids, cu_seqlens)`
        type_ids   one list or vector for each sequence, or None

        The result is that of one large batch, whatever the split. Raises as `run` does.
        """
        self.check_open()
        rows = [as_int32(f"sequences[{i}]", row) for i, row in enumerate(sequences)]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([row.size for row in rows], out=offsets[1:])
        cu_seqlens = as_int32("cu_seqlens", offsets)
        if type_ids is not None and len(type_ids) != len(rows):
            raise ValueError(f"type_ids has {len(type_ids)} rows, sequences have {len(rows)}")
        names = output_names(self._native, outputs)
        if "predictions" in names:
            raise ValueError('run_many: "predictions" are of rows of one batch: use run')
        arrays = output_arrays(self._native, names, {}, int(offsets[-1]), len(rows))
        for i, row in enumerate(rows):
            if row.size > self.max_tokens:
                raise ValueError(
                    f"sequences[{i}] has {row.size} tokens, max_tokens is {self.max_tokens}"
                )
        ends = offsets.tolist(), range(len(rows) + 1)
        for first, last in batch_ranges(ends, (self.max_tokens, self.max_sequences)):
            tokens = slice(int(offsets[first]), int(offsets[last]))
            part = {
                name: array[tokens if self._native.outputs[name][0] else slice(first, last)]
                for name, array in arrays.items()
            }
            types = None if type_ids is None else type_ids[first:last]
            self._run_into(pack(rows[first:last], type_ids=types), part)
        return RunResult(arrays, cu_seqlens)

    def _run_into(
        self,
        batch: PackedTokens,
        arrays: Mapping[OutputName, FloatArray],
        rows: Int32Array | None = None,
        features: FloatArray | None = None,
    ) -> None:
        self._native.run(
            batch.ids, batch.cu_seqlens, batch.type_ids, batch.position_ids, rows, arrays, features
        )

    def __repr__(self) -> str:
        return (
            f"EncoderSession({self.config.get('family')}, hidden_size={self.hidden_size}, "
            f"device='{self.device}', dtype='{self.dtype}', max_tokens={self.max_tokens}, "
            f"max_sequences={self.max_sequences})"
        )


def _as_rows(features: Any) -> FloatArray:
    """The features as a C-contiguous float32 matrix. Raises ValueError for anything else."""
    array = np.asarray(features)
    if array.ndim != 2 or not np.issubdtype(array.dtype, np.floating):
        raise ValueError(
            f"features is {array.dtype}{list(array.shape)}, expected a matrix of floats"
        )
    return np.ascontiguousarray(array, np.float32)
