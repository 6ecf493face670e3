"""The session that generates: prompts of token ids in, tokens out."""

from __future__ import annotations

import atexit
import json
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from packhorse.generation.drafts import open_draft
from packhorse.generation.plan import GenerationMemoryPlan
from packhorse.generation.request import GenerationRequest
from packhorse.generation.sampling import Sampling
from packhorse.load_options import LoadOptions, ModelPath
from packhorse.logs import LOGGER
from packhorse.packing import Int32Array, TokenSequence, as_int32
from packhorse.result import FloatArray
from packhorse.session import Session

if TYPE_CHECKING:
    from packhorse_weights.checkpoint import ModelFiles
    from typing_extensions import Unpack

    from packhorse._native.generation import NativeGenerationSession, NativeMailbox, NativeRequest
    from packhorse.load_options import LoadCall
    from packhorse.names import AskedDtype


class GenerationSession(Session, generates=True):
    """A `Session` of a causal language model, or of an encoder with a decoder, that generates.

    An engine with a thread of its own runs the requests of all callers together. Methods may be
    called from any thread.
    """

    memory_plan: GenerationMemoryPlan
    _purpose = (
        "this session generates text: load the model with kv_tokens=0 for hidden states and "
        "embeddings"
    )

    if TYPE_CHECKING:

        @classmethod
        def load(  # type: ignore[override]
            cls,
            path: ModelPath,
            device: str = ...,
            dtype: AskedDtype | None = ...,
            *,
            progress: bool | None = ...,
            **options: Unpack[LoadCall],
        ) -> GenerationSession: ...

    def __init__(
        self,
        native: NativeGenerationSession,
        config: dict[str, Any],
        options: LoadOptions,
        eos_ids: tuple[int, ...] = (),
        reload: Callable[[], object] | None = None,
    ) -> None:
        """`eos_ids`: the tokens that end a sequence. Other arguments as of `Session`."""
        plan = GenerationMemoryPlan.of_generation(native.memory_plan())
        super().__init__(native, config, options, plan, reload)
        self._engine = native
        self._eos_ids = eos_ids
        _sessions.add(self)

    @classmethod
    def _open(cls, path: ModelPath, model: ModelFiles, options: LoadOptions) -> GenerationSession:
        """The tokens that end a sequence are read from the model's files."""
        from packhorse_weights.generation_files import read_generation

        from packhorse._native.generation import NativeGenerationSession

        files = read_generation(path, revision=options.revision, settings=False)
        spec, draft = json.dumps(model.spec), open_draft(options)
        native = NativeGenerationSession.load(spec, *model.weights, options, files.eos_ids, draft)
        # Whoever loads it again shall have a cache of the same size, whatever memory is free there.
        size = native.memory_plan()[-2] if options.kv_tokens is None else options.kv_tokens
        reload = cls._again(path, replace(options, kv_tokens=size))
        return cls(native, model.spec, options, files.eos_ids, reload)

    def generate(
        self,
        prompts: Iterable[TokenSequence],
        sampling: Sampling | None = None,
        *,
        sources: Iterable[TokenSequence] | None = None,
    ) -> list[Any]:
        """Generates from any number of prompts, each the ids of a sequence, and waits for all.

        sampling  settings of each prompt's request; None: `Sampling()`, the most probable tokens
        sources   of a model with an encoder: what it reads for each prompt, with which the decoder
                  begins (its start token, and a prefix of the target where there is one)

        Gives a `GeneratedTokens` for each prompt, in order; for `n` over 1 a list of n of them.
        Ctrl-C, or an error, cancels what still runs.

        Raises ValueError: a prompt or source that is empty, has an id that the model does not know,
        or can never fit into the context or the cache; sources that are missing, or more or fewer
        than prompts; settings that are not acceptable. RuntimeError: the session was closed, or a
        request failed.
        """
        if sampling is None:
            sampling = Sampling()
        if sampling.mask is not None:
            raise ValueError("sampling.mask is of one request alone: use submit for each prompt")
        # Requests that have not ended, their sizes, and prompts to be submitted together.
        running: deque[NativeRequest] = deque()
        sizes: deque[int] = deque()
        ready: list[Int32Array] = []
        ready_sources: list[Int32Array] = []
        read = None if sources is None else iter(sources)
        found: list[Any] = []

        def submit() -> None:
            self.check_open()
            self._engine.submit_all(ready, sampling, _FOREVER, running, ready_sources)
            sizes.extend(ids.size for ids in ready)
            ready.clear()
            ready_sources.clear()

        def collect() -> None:
            try:
                results = GenerationRequest(running[0], sizes.popleft(), sampling).results()
            except RuntimeError as error:
                raise RuntimeError(f"prompts[{len(found)}]: {error}") from None
            running.popleft()
            found.append(results[0] if sampling.n == 1 else results)

        try:
            count = 0
            for i, ids in enumerate(prompts):
                count = i + 1
                if len(running) + len(ready) == self.max_queue:
                    submit()
                    collect()
                ready.append(_prompt(f"prompts[{i}]", ids))
                if read is not None:
                    source = next(read, None)
                    if source is None:
                        raise ValueError(f"there are {i} sources, expected one for each prompt")
                    ready_sources.append(as_int32(f"sources[{i}]", source))
            if read is not None and next(read, None) is not None:
                raise ValueError(f"there are more sources than prompts, which are {count}")
            submit()
            while running:
                collect()
        finally:
            for native in running:
                native.cancel()
        return found

    def submit(
        self,
        ids: TokenSequence,
        sampling: Sampling | None = None,
        *,
        source: TokenSequence | None = None,
        timeout_s: float = 0.0,
    ) -> GenerationRequest:
        """Starts generating from one prompt and gives the request without waiting for it.

        source     of a model with an encoder: what it reads, as in `generate`
        timeout_s  seconds to wait for a place where `max_queue` requests wait already

        Raises as `generate`, and RuntimeError where there was no place in time.
        """
        self.check_open()
        sampling = Sampling() if sampling is None else sampling
        prompt = _prompt("ids", ids)
        read = None if source is None else as_int32("source", source)
        native = self._engine.submit(prompt, sampling, timeout_s, read)
        return GenerationRequest(native, prompt.size, sampling)

    def submit_features(
        self,
        ids: TokenSequence,
        features: FloatArray,
        sampling: Sampling | None = None,
        *,
        timeout_s: float = 0.0,
    ) -> GenerationRequest:
        """As `submit`, in a model whose encoder reads audio.

        features  float32 [frames, `frame_features`], as `packhorse.audio.log_mel` makes them; an
                  even number of frames, up to 2 * `max_source_tokens`

        Requests of equal frames share what the encoder makes of them, while the cache holds it.
        Raises as `submit`, and ValueError for frames of another size or that are not finite.
        """
        self.check_open()
        sampling = Sampling() if sampling is None else sampling
        prompt = _prompt("ids", ids)
        frames = np.ascontiguousarray(features, np.float32)
        if frames.ndim != 2:
            raise ValueError(f"features has the shape {frames.shape}, expected [frames, filters]")
        native = self._engine.submit_features(prompt, sampling, timeout_s, frames)
        return GenerationRequest(native, prompt.size, sampling)

    def add_adapter(self, name: str, folder: ModelPath) -> None:
        """Adds a LoRA adapter, which requests may name from then on (`Sampling.adapter`). Requests
        of others go on meanwhile.

        folder  as PEFT saved it: adapter_config.json and adapter_model.safetensors or .bin

        Raises FileNotFoundError; ValueError for a name that is taken, an adapter of another model,
        of a rank above `max_adapter_rank`, or with what is not supported; RuntimeError where
        `max_adapters` are there already.
        """
        from packhorse_weights import read_adapter

        self.check_open()
        if not isinstance(name, str) or not name:
            raise ValueError(f"name is {name!r:.80}, expected a text")
        adapter = read_adapter(folder, self.config)
        if self._options.max_adapters and adapter.rank > self._options.max_adapter_rank:
            raise ValueError(
                f"{folder}: rank {adapter.rank}, but max_adapter_rank is "
                f"{self._options.max_adapter_rank}: load the session with a higher one"
            )
        self._engine.add_adapter(name, adapter.tensors)
        LOGGER.info("added the adapter %s of rank %d from %s", name, adapter.rank, folder)

    def remove_adapter(self, name: str) -> None:
        """Later requests cannot name the adapter; those that were submitted go on with it, and
        its place is free when the last of them has ended.

        Raises ValueError where there is no such adapter.
        """
        self.check_open()
        self._engine.remove_adapter(name)

    @property
    def adapters(self) -> tuple[str, ...]:
        """The adapters that requests may name, in the order in which they were added."""
        return tuple(self._engine.adapters())

    def mailbox(self) -> NativeMailbox:
        """Collects which of several requests have news (`GenerationRequest.listen`)."""
        return self._engine.mailbox()

    @property
    def stats(self) -> dict[str, int]:
        """Counts of the engine: its state at this moment, and totals since it was loaded.

        "queued" and "running" sequences; "pages" of the cache, which are "pages_used" by running
        sequences, "pages_cached" for prompts that begin alike, or "pages_free"; "steps",
        "computed_tokens" (of prompts, of output, and those computed again), "new_tokens",
        "preemptions", "prefix_hit_tokens" (taken from the cache), "finished_requests";
        "drafted_tokens" and, of them, "accepted_tokens".
        """
        return self._engine.stats()

    @property
    def max_context(self) -> int:
        """Tokens of the longest sequence, prompt and output, that the model and the cache take."""
        return self._engine.max_context

    @property
    def max_source_tokens(self) -> int:
        """Tokens of the longest source that the encoder and the cache take; 0: there is no
        encoder."""
        return self._engine.max_source

    @property
    def frame_features(self) -> int:
        """Numbers of each frame of audio that the encoder reads; 0: it reads no audio."""
        return self._engine.frame_features

    @property
    def vocab_size(self) -> int:
        """Number of tokens that there are logits of."""
        return self._engine.vocab_size

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a sequence, as the model's files say."""
        return self._eos_ids

    @property
    def max_seqlen(self) -> int:
        """The length of the longest sequence, prompt and output: `max_context`."""
        return self.max_context

    @property
    def max_queue(self) -> int:
        """Requests that may wait to be started."""
        return self._options.max_queue

    def __repr__(self) -> str:
        return (
            f"GenerationSession({self.config.get('family')}, hidden_size={self.hidden_size}, "
            f"device='{self.device}', dtype='{self.dtype}', "
            f"kv_tokens={self.memory_plan.kv_tokens}, max_context={self.max_context})"
        )


def _prompt(name: str, ids: TokenSequence) -> Int32Array:
    prompt = as_int32(name, ids)
    if not prompt.size:
        raise ValueError(f"{name} is empty, expected a prompt of at least one token")
    return prompt


_FOREVER = 1e18  # seconds
_sessions: weakref.WeakSet[GenerationSession] = weakref.WeakSet()


def _close_all() -> None:
    """Closes sessions before the interpreter ends: an engine that is to call a mask would wait for
    it forever."""
    native = sys.modules.get("packhorse._native.generation")
    if native is not None:
        native.end_masks()
    for session in list(_sessions):
        session.close()


atexit.register(_close_all)
