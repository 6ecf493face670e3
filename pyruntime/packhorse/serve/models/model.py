"""A model of texts that is served: its sessions, its queue, and the threads that run it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from packhorse_weights.spec import has_encoder_decoder

from packhorse.heads import classifier_of, methods_for
from packhorse.names import OutputName
from packhorse.packing import pack
from packhorse.serve.errors import ServeError
from packhorse.serve.models.generating import Engine
from packhorse.serve.models.queued_request import QueuedRequest
from packhorse.serve.models.served import Adapter, Served
from packhorse.serve.models.tokenizing import TokenizerPool
from packhorse.serve.models.weight import weight
from packhorse.serve.observability.metrics import Metrics
from packhorse.serve.settings import ModelSettings, Settings
from packhorse.text import TextModel
from packhorse.text.parts import PartRunner
from packhorse.text.runner import TextRunner

Made = TypeVar("Made")
_MOST_TASKS = 256
_KEPT_WEIGHT = 512  # limit of the options of a task that is kept: about 4 KB, and 1 MB of all
_FEW_CHARACTERS = 1000  # take the event loop less than a millisecond
_FEW_ITEMS = 16
_FEW_TOKENS = 16  # a request of fewer says little about others
_LEARN = 0.02  # weight of one request in what is known of all
_WARM_UP = (4, 64)  # sequences, tokens of each
_LOOK_S = 0.02  # seconds between two looks at an engine that is to be closed


class ServedModel(Served):
    """A model of texts under a name, loaded once for each device. Made by `load_model`."""

    def __init__(
        self,
        settings: ModelSettings,
        server: Settings,
        replicas: Sequence[TextModel],
        pool: TokenizerPool,
        metrics: Metrics,
    ) -> None:
        session = replicas[0].session
        generates = session.generates
        super().__init__(
            settings,
            server,
            replicas,
            pool,
            metrics,
            make_runner=None if generates else _part_runner,
            warm_up=_warm_up,
            methods=_methods(session),
        )
        self.generates = generates
        self.engines = [Engine(one) for one in replicas] if generates else []
        self._characters_per_token = 3.0
        self.runner.most_windows = server.max_client_batch_size

    @property
    def text(self) -> TextModel:
        """The first replica: what all of them have in common is asked of it."""
        found: TextModel = self.replicas[0]
        return found

    @property
    def runner(self) -> TextRunner:
        return self.text._runner

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

    def _is_quick(self, work: QueuedRequest, items: list[Any]) -> bool:
        return work.characters <= _FEW_CHARACTERS and _are_few(items)

    def _learn(self, work: QueuedRequest, tokens: int) -> None:
        if work.characters and tokens > _FEW_TOKENS:
            found = work.characters / tokens
            self._characters_per_token += _LEARN * (found - self._characters_per_token)

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

    def languages(self) -> dict[str, Any] | None:
        """Fields of `LanguageSide`, for "source" and "target"."""
        if self.text._to_text is None:
            return None
        sides = self.text._to_text.languages()
        return {
            name: side._asdict() for name, side in zip(("source", "target"), sides, strict=True)
        }

    def engine(self) -> Engine:
        """The replica that has the least to do."""
        return min(self.engines, key=lambda engine: engine.active)

    async def close(self) -> None:
        """Runs what was admitted, and frees the model."""
        self.queue.close()
        while any(engine.active for engine in self.engines):
            await asyncio.sleep(_LOOK_S)
        for engine in self.engines:
            engine.news.close()
        await asyncio.to_thread(self._free)


def _part_runner(replica: TextModel) -> PartRunner:
    return PartRunner(replica.encoder_session)


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
    if session.generates:
        return methods_for(config) if has_encoder_decoder(config) else ["generate"]
    found = [name for name in methods_for(config) if name not in ("generate", "embed")]
    if session.max_predictions == 0 and "fill_mask" in found:
        found.remove("fill_mask")
    splade = config.get("heads", {}).get("masked_lm", {}).get("sparse")
    if not classifier_of(config) and not splade:
        found += ["embed", "embed_all"]
    return found
