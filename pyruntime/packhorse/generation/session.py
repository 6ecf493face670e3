"""The session that generates: prompts of token ids in, tokens out."""

from __future__ import annotations

import atexit
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from packhorse_weights.spec import stack_of

from packhorse.generation.plan import GenerationMemoryPlan
from packhorse.generation.request import GenerationRequest
from packhorse.generation.sampling import Sampling
from packhorse.lifetime import SessionLifetime
from packhorse.logs import LOGGER
from packhorse.names import OutputName
from packhorse.options import GenerationOptions, ModelPath
from packhorse.packing import Int32Array, TokenSequence, as_int32
from packhorse.result import OutputShape
from packhorse.session import Session

if TYPE_CHECKING:
    from packhorse._native.generation import NativeGenerationSession, NativeMailbox, NativeRequest


class GenerationSession(Session):
    """A `Session` of a causal language model, as `Session.load` gives it for one: it generates, and
    gives no hidden states or embeddings.

    An engine with a thread of its own runs the requests of all callers together. Methods may be
    called from any thread.
    """

    memory_plan: GenerationMemoryPlan

    def __init__(
        self,
        native: NativeGenerationSession,
        config: dict[str, Any],
        options: GenerationOptions,
        reload: Callable[[], Session] | None = None,
    ) -> None:
        """`reload`: as of `Session`."""
        SessionLifetime.__init__(self, native, reload)
        self._engine = native
        self._options: GenerationOptions = options
        self._max_predictions = 0
        self._max_queue, self._eos_ids = options.max_queue, options.eos_ids
        self.config = config
        self.memory_plan = GenerationMemoryPlan.of_generation(native.memory_plan())
        _sessions.add(self)

    def generate(
        self, prompts: Iterable[TokenSequence], sampling: Sampling | None = None
    ) -> list[Any]:
        """As `Session.generate`."""
        if sampling is None:
            sampling = Sampling()
        if sampling.mask is not None:
            raise ValueError("sampling.mask is of one request alone: use submit for each prompt")
        # What was submitted and has not ended, its sizes, and prompts to be submitted together.
        running: deque[NativeRequest] = deque()
        sizes: deque[int] = deque()
        ready: list[Int32Array] = []
        found: list[Any] = []

        def submit() -> None:
            self.check_open()
            self._engine.submit_all(ready, sampling, _FOREVER, running)
            sizes.extend(ids.size for ids in ready)
            ready.clear()

        def collect() -> None:
            try:
                results = GenerationRequest(running[0], sizes.popleft(), sampling).results()
            except RuntimeError as error:
                raise RuntimeError(f"prompts[{len(found)}]: {error}") from None
            running.popleft()
            found.append(results[0] if sampling.n == 1 else results)

        try:
            for i, ids in enumerate(prompts):
                if len(running) + len(ready) == self._max_queue:
                    submit()
                    collect()
                ready.append(_prompt(f"prompts[{i}]", ids))
            submit()
            while running:
                collect()
        finally:
            for native in running:
                native.cancel()
        return found

    def submit(
        self, ids: TokenSequence, sampling: Sampling | None = None, *, timeout_s: float = 0.0
    ) -> GenerationRequest:
        """As `Session.submit`."""
        return self._submit("ids", ids, sampling or Sampling(), timeout_s)

    def _submit(
        self, name: str, ids: TokenSequence, sampling: Sampling, timeout_s: float
    ) -> GenerationRequest:
        self.check_open()
        prompt = _prompt(name, ids)
        native = self._engine.submit(prompt, sampling, timeout_s)
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
        """What the engine does at this moment, and what it has done since it was loaded.

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
    def vocab_size(self) -> int:
        """Number of tokens that there are logits of."""
        return self._engine.vocab_size

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a sequence, as the model's files say."""
        return self._eos_ids

    @property
    def generates(self) -> bool:
        """True."""
        return True

    @property
    def hidden_size(self) -> int:
        """The model's hidden size."""
        return int(stack_of(self.config)["hidden_size"])

    @property
    def embedding_size(self) -> int:
        """Refused with a ValueError: the session gives no embeddings."""
        self._refuse("embedding_size")

    @property
    def outputs(self) -> dict[OutputName, OutputShape]:
        """Empty: the session generates, and gives no outputs of `run`."""
        return {}

    @property
    def max_seqlen(self) -> int:
        """As `max_context`."""
        return self.max_context

    @property
    def max_queue(self) -> int:
        """Requests that may wait to be started."""
        return self._max_queue

    def _refuse(self, method: str) -> NoReturn:
        raise ValueError(
            f"{method}: this session generates text: load the model with kv_tokens=0 for hidden "
            "states and embeddings"
        )

    def run(self, *_args: Any, **_options: Any) -> NoReturn:
        """Refused with a ValueError: the session generates."""
        self._refuse("run")

    def run_many(self, *_args: Any, **_options: Any) -> NoReturn:
        """Refused with a ValueError: the session generates."""
        self._refuse("run_many")

    def score(self, *_args: Any, **_options: Any) -> NoReturn:
        """Refused with a ValueError: the session generates."""
        self._refuse("score")

    def explain(self, *_args: Any, **_options: Any) -> NoReturn:
        """Refused with a ValueError: the session generates."""
        self._refuse("explain")

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
    """Before the interpreter ends: an engine that is to call a mask would wait for it forever."""
    native = sys.modules.get("packhorse._native.generation")
    if native is not None:
        native.end_masks()
    for session in list(_sessions):
        session.close()


atexit.register(_close_all)
