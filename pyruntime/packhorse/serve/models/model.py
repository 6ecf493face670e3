"""A model that is served: its sessions, its queue, and the threads that run it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from packhorse_weights.spec import hears

from packhorse.heads import classifier_of, methods_for
from packhorse.names import OutputName
from packhorse.packing import pack
from packhorse.serve.errors import ServeError
from packhorse.serve.models.generating import Engine
from packhorse.serve.models.hearing import Hearing, SpeechModel
from packhorse.serve.models.queue import TokenQueue
from packhorse.serve.models.queued_request import QueuedRequest
from packhorse.serve.models.throughput import ThroughputEstimator
from packhorse.serve.models.tokenizing import TokenizerPool, TokenizingTask, run_tasks
from packhorse.serve.models.weight import MUCH, weight
from packhorse.serve.models.worker import Worker
from packhorse.serve.observability.metrics import Metrics
from packhorse.serve.settings import ModelSettings, Settings
from packhorse.text import TextModel
from packhorse.text.parts import PartRunner, Request
from packhorse.text.runner import Task, TextRunner

AnyTask = Task[Any, Any, Any]
Made = TypeVar("Made")
_MOST_TASKS = 256
_KEPT_WEIGHT = 512  # limit of the options of a task that is kept: about 4 KB, and 1 MB of all
_FEW_CHARACTERS = 1000  # take the event loop less than a millisecond
_FEW_ITEMS = 16
_MUCH_TEXT = 2048  # tokens whose results take the event loop a few milliseconds
_MOST_NUMBERS = 64_000_000  # limit for the results of one request: 256 MB
_FEW_TOKENS = 16  # a request of fewer says little about others
_LEARN = 0.02  # weight of one request in what is known of all
_WARM_UP = (4, 64)  # sequences, tokens of each
_LOOK_S = 0.02  # seconds between two looks at an engine that is to be closed
_MOST_AUDIOS = 256  # that are transcribed at once; each has a thread, and the bytes of its file
_PIECES = 8  # pieces of a batch: what a request has beyond one piece may run in another batch


class Outcome(NamedTuple):
    """Results of a request, and the work that they took."""

    found: Any
    tokens: int
    work: QueuedRequest


class Adapter(NamedTuple):
    """A LoRA adapter of a model, by whose name it is asked for.

    path     its folder
    created  when it was loaded, in seconds since 1970
    """

    name: str
    path: str
    created: int


class ServedModel:
    """A model under a name, loaded once for each device. Made by `load_model`."""

    def __init__(
        self,
        settings: ModelSettings,
        server: Settings,
        replicas: Sequence[TextModel],
        pool: TokenizerPool,
        metrics: Metrics,
    ) -> None:
        self.settings = settings
        self.name = settings.name
        self.path = settings.path
        self.created = int(time.time())
        self.replicas = tuple(replicas)
        self._pool = pool
        self._metrics = metrics
        self._tasks: dict[Hashable, Any] = {}
        self._characters_per_token = 3.0
        session = self.text.session
        self.runner.most_windows = server.max_client_batch_size
        # A model of speech generates, but from audio alone.
        self.speakers = [one for one in replicas if isinstance(one, SpeechModel)]
        self.generates = session.generates and not self.speakers
        self.methods = frozenset(_methods(session))
        self.adapters: dict[str, Adapter] = {}
        self._heard: list[Hearing] = []  # audios that are transcribed
        workers = [one for one in replicas for _ in range(1 if one.session.device == "cpu" else 2)]
        throughput = ThroughputEstimator(
            server.max_batch_ms / 1000, session.max_tokens, len(workers)
        )
        self.queue = TokenQueue(throughput, server.max_queue_tokens, server.max_wait_s)
        self._runner = None if session.generates else PartRunner(self.text.encoder_session)
        self.engines = [Engine(one) for one in replicas] if self.generates else []
        # While a GPU runs one batch, another worker packs the next one.
        self._workers = [] if session.generates else [self._worker(one) for one in workers]
        for replica in () if session.generates else replicas:
            throughput.note(*_warm_up(replica))
        for worker in self._workers:
            worker.start()

    @property
    def text(self) -> TextModel:
        """The first replica: what all of them have in common is asked of it."""
        return self.replicas[0]

    @property
    def device(self) -> str:
        """Device of the first replica."""
        return str(self.text.session.device)

    @property
    def devices(self) -> list[str]:
        """The device of each replica."""
        return [replica.session.device for replica in self.replicas]

    @property
    def memory_bytes(self) -> int:
        """Planned for all replicas together."""
        return sum(one.session.memory_plan.total_bytes for one in self.replicas)

    @property
    def runner(self) -> TextRunner:
        return self.text._runner

    def _worker(self, replica: TextModel) -> Worker:
        session = replica.encoder_session
        return Worker(
            f"{self.name}@{session.device}",
            self.queue,
            PartRunner(session),
            self._metrics.of_batch(self.name),
            [PartRunner(one.encoder_session) for one in self.replicas if one is not replica],
        )

    @property
    def healthy(self) -> bool:
        """True if all its threads run."""
        return all(worker.is_alive() for worker in self._workers)

    def require(self, method: str, what: str) -> None:
        """Raises ServeError where the model is not made for it; `what` names such models."""
        if method not in self.methods:
            able = ", ".join(sorted(self.methods))
            raise ServeError("unsuited", f"model {self.name!r} is not {what}; it can: {able}")

    def task(self, make: Callable[..., Made], **options: Any) -> Made:
        """A task with these options; requests with equal ones share it, and with it batches.
        Raises ServeError for options that are not acceptable."""
        key = (make, *options.items())
        kept = weight(options) <= _KEPT_WEIGHT
        found: Made | None = self._tasks.get(key) if kept else None
        if found is None:
            try:
                found = make(self.runner, **options)
            except ValueError as error:
                raise ServeError("validation", str(error)) from None
            if kept:
                if len(self._tasks) >= _MOST_TASKS:
                    self._tasks.clear()
                self._tasks[key] = found
        return found

    async def run(
        self, task: AnyTask, items: list[Any], client: str, deadline: float, wait: Any
    ) -> Outcome:
        """The results of a task for some items, when they have run.

        client, deadline  as of `QueuedRequest`
        wait              awaits a `QueuedRequest`, and gives up when the client does

        Raises ServeError, ClientGoneError.
        """
        work = QueuedRequest(client, deadline, *self.estimate(items))
        self.queue.admit(work)
        try:
            job = TokenizingTask(work, task, items, self._put)
            if self.queue.requests == 1 and work.characters <= _FEW_CHARACTERS and _are_few(items):
                for failed in run_tasks([job]):  # nothing else waits: a thread would only cost time
                    failed.finish()
            else:
                self._pool.submit(job)
            await wait(work)
        except BaseException:
            self.queue.cancel(work)
            raise
        assert work.result is not None
        finish = partial(task.finish, items, work.kept, work.result)
        much = work.tokens > _MUCH_TEXT or work.numbers > MUCH
        return Outcome(await asyncio.to_thread(finish) if much else finish(), work.tokens, work)

    def _put(self, work: QueuedRequest, request: Request, kept: Any) -> None:
        """Puts a request that is tokenized into the queue. Called on a thread of the tokenizer."""
        assert self._runner is not None
        work.numbers = self._runner.numbers(request)
        if work.numbers > _MOST_NUMBERS:
            raise ServeError(
                "too_large",
                f"the model's results would be {work.numbers} numbers, at most {_MOST_NUMBERS} are "
                "made for one request: send fewer texts",
            )
        piece = self.queue.throughput.batch_tokens // _PIECES
        result, parts = self._runner.cut(request, max(1, piece))
        work.result, work.kept = result, kept
        tokens = int(result.cu_seqlens[-1])
        if work.characters and tokens > _FEW_TOKENS:
            found = work.characters / tokens
            self._characters_per_token += _LEARN * (found - self._characters_per_token)
        self.queue.put(work, parts)

    def estimate(self, items: list[Any]) -> tuple[int, int]:
        """(about how many tokens the items have, before anybody has counted them; characters)"""
        most = self.text.max_length
        tokens = characters = 0
        for item in items:
            if isinstance(item, list):  # token ids
                tokens += min(most, len(item))
                continue
            length = len(item) if isinstance(item, str) else len(item[0]) + len(item[1])
            characters += length
            tokens += min(most, 2 + int(length / self._characters_per_token))
        return tokens, characters

    def add_adapter(self, name: str, path: str) -> None:
        """Adds a LoRA adapter to all replicas. Blocks. Raises as `GenerationSession.add_adapter`,
        and ValueError where the model does not generate."""
        if not self.generates:
            raise ValueError(f"model {self.name!r} does not generate, and so takes no adapters")
        added: list[Engine] = []
        try:
            for engine in self.engines:
                engine.session.add_adapter(name, path)
                added.append(engine)
        except BaseException:
            for engine in added:
                engine.session.remove_adapter(name)
            raise
        self.adapters = {**self.adapters, name: Adapter(name, path, int(time.time()))}

    def remove_adapter(self, name: str) -> None:
        """Requests that run go on with it. Raises ValueError where there is no such adapter."""
        for engine in self.engines:
            engine.session.remove_adapter(name)
        self.adapters = {key: one for key, one in self.adapters.items() if key != name}

    def stats(self) -> dict[str, int]:
        """Counts of a model that generates: `GenerationSession.stats`, summed over all replicas."""
        found: Counter[str] = Counter()
        for engine in self.engines:
            found.update(engine.session.stats)
        return found

    def engine(self) -> Engine:
        """The replica that has the least to do."""
        return min(self.engines, key=lambda engine: engine.active)

    def hear(self, audio: bytes, options: dict[str, Any], deadline_s: float) -> Hearing:
        """Begins to transcribe an audio; `heard` ends that. Raises ServeError where there are too
        many."""
        if len(self._heard) >= _MOST_AUDIOS:
            raise ServeError("overloaded", "too many audios are being transcribed", retry_after=1)
        model = self.speakers[len(self._heard) % len(self.speakers)]
        found = Hearing(model.audio, audio, options, deadline_s)
        self._heard.append(found)
        return found

    def heard(self, hearing: Hearing) -> None:
        """The audio is done, or nobody waits for it any more."""
        hearing.leave()
        self._heard.remove(hearing)

    async def close(self) -> None:
        """Runs what was admitted, and frees the model."""
        self.queue.close()
        while self._heard or any(engine.active for engine in self.engines):
            await asyncio.sleep(_LOOK_S)
        for engine in self.engines:
            engine.news.close()
        await asyncio.to_thread(self._free)

    def _free(self) -> None:
        for worker in self._workers:
            worker.join()
        for replica in self.replicas:
            replica.close()


def _are_few(items: list[Any]) -> bool:
    """Texts, or ids of texts, that are looked at in less than a millisecond."""
    return len(items) <= _FEW_ITEMS and sum(map(len, items)) <= _FEW_CHARACTERS


def _warm_up(replica: TextModel) -> tuple[int, float]:
    """(tokens, seconds) of a batch, after one that pays for what only the first one needs."""
    session = replica.encoder_session
    count, size = _WARM_UP
    size = min(size, session.max_seqlen, session.max_tokens)
    count = max(1, min(count, session.max_sequences, session.max_tokens // size))
    output: OutputName = "logits" if "logits" in session.outputs else "embedding"
    batch = pack([np.zeros(size, np.int32)] * count)
    for _ in range(2):
        begin = time.monotonic()
        session.run(batch, outputs=[output])
        seconds = time.monotonic() - begin
    return count * size, seconds


def _methods(session: Any) -> list[str]:
    """Methods that a model supports: "embed", and names of methods of `TextModel`."""
    config = session.config
    if hears(config):
        return ["transcribe"]
    if session.generates:
        return ["generate"]
    found = [name for name in methods_for(config) if name not in ("generate", "embed")]
    if session.max_predictions == 0 and "fill_mask" in found:
        found.remove("fill_mask")
    splade = config.get("heads", {}).get("masked_lm", {}).get("sparse")
    if not classifier_of(config) and not splade:
        found += ["embed", "embed_all"]
    return found
