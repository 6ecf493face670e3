"""The session: a model that is loaded once and runs packed batches from any thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

import numpy as np
from packhorse_weights.spec import stem_of

from packhorse._native import session as _session
from packhorse.arguments import (
    Batch,
    HostBatch,
    Outputs,
    as_batch,
    import_batch,
    output_arrays,
    output_names,
)
from packhorse.device import check_device, stream_handle
from packhorse.dtypes import choose_dtype
from packhorse.load_arguments import check_load
from packhorse.logs import note_loaded
from packhorse.memory import MemoryPlan
from packhorse.names import (
    AskedDtype,
    AttentionAlgorithm,
    CacheDtype,
    OutputName,
    PairTruncation,
    Pooling,
)
from packhorse.options import (
    GenerationOptions,
    ModelPath,
    SessionOptions,
    refuse_adapters,
    refuse_cache_dtype,
    refuse_drafts,
)
from packhorse.packing import Int32Array, PackedTokens, TokenSequence, as_int32, pack
from packhorse.pairs import as_scores, check_pair, check_scores, join_pairs
from packhorse.progress_bar import shows_loading
from packhorse.result import DeviceResult, FloatArray, RunResult
from packhorse.session_properties import SessionProperties

if TYPE_CHECKING:
    from packhorse.generation import GenerationRequest, Sampling

OutArrays = Mapping[str, FloatArray]


class Session(SessionProperties):
    """A loaded model, made by `Session.load`. After any error a session stays usable.

    One session may be called from many threads at once: calls wait for each other, and the
    interpreter lock is not held meanwhile. After fork(), load a new one. Pickling stores the path
    and the options with which the session was loaded; unpickling loads it again. A copy is the
    session itself.

    `close`, or the end of a `with` block, frees its memory.
    """

    def __init__(
        self,
        native: _session.NativeSession,
        config: dict[str, Any],
        options: SessionOptions,
        reload: Callable[[], Session] | None = None,
    ) -> None:
        """`reload` loads the same session again and can be pickled. If it is None, this session
        cannot be pickled."""
        super().__init__(native, reload)
        self._native = native
        self._options = options
        self._max_predictions = options.max_predictions
        self.config = config
        self.memory_plan = MemoryPlan.from_native(native.memory_plan())

    @classmethod
    @shows_loading
    def load(
        cls,
        path: ModelPath,
        device: str = "cpu",
        dtype: AskedDtype | None = None,
        max_tokens: int | None = None,
        max_sequences: int | None = None,
        threads: int | None = None,
        pin_threads: bool = False,
        memory_limit: int | str | None = None,
        output_slots: int = 2,
        max_predictions: int = 0,
        reranker: str | Mapping[str, Any] | None = None,
        attention_algorithm: AttentionAlgorithm = "auto",
        pooling: Pooling | Sequence[Pooling] | None = None,
        normalize: bool | None = None,
        *,
        revision: str | None = None,
        kv_tokens: int | None = None,
        max_queue: int = 4096,
        prefix_cache: bool = True,
        max_adapters: int = 0,
        max_adapter_rank: int = 16,
        draft: ModelPath | None = None,
        draft_dtype: AskedDtype | None = None,
        draft_tokens: int | None = None,
        kv_cache_dtype: CacheDtype | None = None,
        progress: bool | None = None,
    ) -> Session:
        """Loads a converted folder or a Hugging Face model.

        path           a folder or weight file; or the name of a repository ("org/model"), which
                       is looked up in the Hugging Face cache and, if it is not there,
                       downloaded through huggingface_hub (docs/models.md)
        device         one of `available_devices()`
        dtype          dtype of weights and activations; sums are float32. "float32", "bfloat16" or
                       "int8" (only dense layers and the head of a model that generates, quantised
                       when loaded; the rest is float32) on the
                       CPU, "float16" or "bfloat16" on CUDA devices, and there of models that encode
                       "int8", too, and on Hopper "float8" (dense layers in int8 or e4m3, the rest
                       in float16). "stored": matrices that the files hold in 4 to 8 bits with
                       scales of groups (GGUF, GPTQ, AWQ) stay so; the rest is float32, on CUDA
                       float16 (docs/weights.md). None: "int8" or
                       "float8" if the folder was converted to it; otherwise, on the CPU, "stored"
                       if there are such matrices, else "float32", and on CUDA "bfloat16" if the
                       weights are stored in it, else "float16"
        max_tokens     number of tokens of the largest batch that `run` takes. For a session that
                       generates: number of tokens of one step, pieces of all prompts and running
                       sequences together. None: 8192, or 2048 for a session that generates
        max_sequences  number of sequences of the largest batch, or of sequences that are generated
                       at once. None: 256, or 64 for a session that generates, but not more than
                       `max_tokens`
        threads        CPU threads, including the caller's; None: all cores that it may use.
                       Sessions of a process share their threads and take turns on them; with 1 a
                       session runs on its caller only
        pin_threads    whether each CPU worker stays on one core of the affinity mask; the caller's
                       thread is never pinned
        memory_limit   bytes that weights, arena and cache together may take; None: no limit
        output_slots   number of runs whose results may stay on the device at the same time;
                       ignored on the CPU
        max_predictions  largest number of rows for which one run makes predictions of the language
                       model, masked or causal; with 0 the head for them is not loaded
        reranker       for language models that score pairs by "yes" and "no": the template in which
                       they read a pair, by its name or its fields (docs/text.md)
        attention_algorithm  the algorithm on CUDA devices, as `packhorse.ops.attention` names it
        pooling        how a sequence becomes one vector, "embedding": "cls", "mean", "max", "last",
                       "mean_sqrt", "weighted_mean", or several of them side by side; None: as the
                       files say, otherwise the mean, or the last token for causal language models
                       (docs/models.md#pooling)
        normalize      whether that vector is scaled to length 1; None: as the files say
        revision       branch, tag or commit hash of a repository; None: main
        kv_tokens      number of tokens, of all sequences together, whose keys and values the cache
                       of a session that generates holds (`GenerationSession`). 0: the session gives
                       hidden states and embeddings. None: causal language models generate, with a
                       cache of the default size (docs/generation.md#the-cache);
                       models with files of sentence-transformers, and those that are loaded with
                       `reranker`, `pooling`, `normalize` or `max_predictions`, do not
                       (docs/generation.md)
        max_queue      number of requests that may wait to be started, in a session that generates
        prefix_cache   whether prompts that begin alike share keys and values in the cache
        max_adapters   number of LoRA adapters that a session that generates may have at once
                       (`GenerationSession.add_adapter`); their memory is planned
        max_adapter_rank  largest rank of each
        draft          speculative decoding in a session that generates: what drafts the tokens that
                       one step checks together, "ngram" (what followed the last tokens where they
                       stood before) or a smaller model of the same vocabulary, given as `path` is.
                       The output is the same, bit for bit. None: one token in each step
                       (docs/generation.md)
        draft_dtype    of the draft model, as `dtype`
        draft_tokens   most tokens that are drafted for a sequence in a step; None: 8
        kv_cache_dtype of keys and values in the cache of a session that generates: "float8" (e4m3
                       with a scale for each token and head of keys), or None for the dtype of
                       the activations (docs/generation.md)
        progress       whether stderr says for how many seconds the model has been loading, once
                       they are more than two; None: where it is a terminal

        Raises FileNotFoundError if there is no such model, saying what to run; ValueError if the
        model cannot be read, is not supported, or cannot generate though `kv_tokens` asks for it;
        MemoryError if the plan exceeds the limit or the memory of the device; RuntimeError if the
        device or the dtype is not available.
        """
        check_load(locals())
        began = monotonic()
        # Imported late, because running a model does not need the readers of checkpoints.
        from packhorse_weights import resolve_model
        from packhorse_weights.generation_files import generates

        check_device(device)
        model = resolve_model(path, reranker, pooling, normalize, revision=revision)
        dtype = choose_dtype(dtype, device, model.stored_dtype)
        model = model.in_dtype(dtype)
        tensors = model.tensors
        weights = (
            model.safetensors,
            model.names if tensors is None else {},
            tensors,
        )
        # Other processes may have another working directory.
        place = Path(path).absolute() if Path(path).exists() else path
        asked = (reranker, pooling, normalize, max_predictions)
        if generates(path, model.spec, kv_tokens, *asked, revision=revision):
            from packhorse.generation.loading import load_generation

            generation = GenerationOptions.make(
                device,
                dtype,
                kv_tokens,
                max_tokens,
                max_sequences,
                threads,
                pin_threads,
                memory_limit,
                max_queue,
                prefix_cache,
                max_adapters,
                max_adapter_rank,
                draft,
                draft_dtype,
                draft_tokens,
                kv_cache_dtype,
            )
            generating = load_generation(cls, place, revision, model.spec, weights, generation)
            return note_loaded(generating, place, began)
        refuse_adapters(max_adapters)
        refuse_drafts(draft)
        refuse_cache_dtype(kv_cache_dtype)
        options = SessionOptions(
            device=device,
            dtype=dtype,
            max_tokens=8192 if max_tokens is None else max_tokens,
            max_sequences=256 if max_sequences is None else max_sequences,
            threads=threads,
            pin_threads=pin_threads,
            memory_limit=memory_limit,
            output_slots=output_slots,
            max_predictions=max_predictions,
            attention_algorithm=attention_algorithm,
        )
        native = _session.NativeSession.load(json.dumps(model.spec), *weights, options)
        reload = partial(
            cls.load,
            place,
            reranker=reranker,
            pooling=pooling,
            normalize=normalize,
            revision=revision,
            kv_tokens=0,
            **asdict(options),
        )
        return note_loaded(cls(native, model.spec, options, reload), place, began)

    @overload
    def run(
        self,
        batch: HostBatch,
        outputs: Outputs = ...,
        out: OutArrays | None = ...,
        *,
        stream: Any = ...,
        on_device: Literal[False] | None = ...,
        rows: TokenSequence | None = ...,
    ) -> RunResult: ...
    @overload
    def run(
        self,
        batch: Batch,
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
        batch: Batch,
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
        batch: Batch,
        outputs: Outputs = ...,
        out: OutArrays | None = ...,
        *,
        stream: Any = ...,
        on_device: bool | None = ...,
        rows: TokenSequence | None = ...,
    ) -> RunResult | DeviceResult: ...
    def run(
        self,
        batch: Batch,
        outputs: Outputs = ("hidden",),
        out: OutArrays | None = None,
        *,
        stream: Any = None,
        on_device: bool | None = None,
        rows: TokenSequence | None = None,
    ) -> RunResult | DeviceResult:
        """Runs one batch: `PackedTokens`, `(ids, cu_seqlens)`, or a list of id sequences.

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

        Raises ValueError naming the array, what was found and what was expected. If a batch on the
        device is wrong, reading or checking its results raises it. Raises RuntimeError if all
        output slots are in use or the session was closed. On the CPU, Ctrl-C ends a run between
        layers with KeyboardInterrupt, or with whatever else a signal handler raises.
        """
        self.check_open()
        packed = as_batch(batch)
        names = output_names(self._native, outputs, out or ())
        handle = stream_handle(stream)
        if on_device is None:
            on_device = packed.on_device and out is None
        if on_device and out is not None:
            raise ValueError(
                "out is for results on the host, but on_device=True keeps them on the device"
            )
        if ("predictions" in names) != (rows is not None):
            raise ValueError('output "predictions" and rows= go together: give both, or neither')
        wanted = None if rows is None else as_int32("rows", rows)
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
            self._run_into(packed, arrays, wanted)
        return RunResult(arrays, packed.cu_seqlens)

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
        for first, last in self._split(rows):
            tokens = slice(int(offsets[first]), int(offsets[last]))
            part = {
                name: array[tokens if self._native.outputs[name][0] else slice(first, last)]
                for name, array in arrays.items()
            }
            types = None if type_ids is None else type_ids[first:last]
            self._run_into(pack(rows[first:last], type_ids=types), part)
        return RunResult(arrays, cu_seqlens)

    def generate(
        self, prompts: Iterable[TokenSequence], sampling: Sampling | None = None
    ) -> list[Any]:
        """Generates from any number of prompts, each the ids of a sequence, and waits for all.

        sampling  settings of each prompt's request; None: `Sampling()`, the most probable tokens

        Gives a `GeneratedTokens` for each prompt, in order; for `n` over 1 a list of n of them.
        Ctrl-C, or an error, cancels what still runs.

        Raises ValueError: a session that does not generate; a prompt that is empty, has an id that
        the model does not know, or can never fit into the context or the cache; settings that are
        not acceptable. RuntimeError: the session was closed, or a request failed.
        """
        self._refuse_generation("generate")

    def submit(
        self, ids: TokenSequence, sampling: Sampling | None = None, *, timeout_s: float = 0.0
    ) -> GenerationRequest:
        """Starts generating from one prompt and gives the request without waiting for it.

        timeout_s  seconds to wait for a place where `max_queue` requests wait already

        Raises as `generate`, and RuntimeError where there was no place in time.
        """
        self._refuse_generation("submit")

    def _refuse_generation(self, method: str) -> NoReturn:
        raise ValueError(
            f"{method}: this session gives hidden states and embeddings, and does not generate: "
            "load a causal language model, with kv_tokens over 0 where its files say otherwise"
        )

    def _split(self, rows: Sequence[Int32Array]) -> Iterator[tuple[int, int]]:
        """Yields ranges [first, last) of sequences that each fit the plan."""
        for i, row in enumerate(rows):
            if row.size > self.max_tokens:
                raise ValueError(
                    f"sequences[{i}] has {row.size} tokens, max_tokens is {self.max_tokens}"
                )
        first = tokens = 0
        for i, row in enumerate(rows):
            if tokens + row.size > self.max_tokens or i - first == self.max_sequences:
                yield first, i
                first, tokens = i, 0
            tokens += row.size
        if first < len(rows):
            yield first, len(rows)

    def _run_into(
        self,
        batch: PackedTokens,
        arrays: Mapping[OutputName, FloatArray],
        rows: Int32Array | None = None,
    ) -> None:
        self._native.run(
            batch.ids, batch.cu_seqlens, batch.type_ids, batch.position_ids, rows, arrays
        )

    def __repr__(self) -> str:
        return (
            f"Session({self.config.get('family')}, hidden_size={self.hidden_size}, "
            f"device='{self.device}', dtype='{self.dtype}', max_tokens={self.max_tokens}, "
            f"max_sequences={self.max_sequences})"
        )
