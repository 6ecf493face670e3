"""A model of images that is served, and the model of texts beside it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from packhorse.image import ImageModel
from packhorse.image.file_reader import Ahead, Header, Reader, expected_patches
from packhorse.names import OutputName
from packhorse.patches import PackedPatches, join
from packhorse.result import FloatArray, RunResult
from packhorse.serve.errors import ServeError
from packhorse.serve.models.image_inputs import MOST_SCANNED, ImageInput, PixelBudget
from packhorse.serve.models.image_parts import ImagePartRunner, ImageRequest
from packhorse.serve.models.image_readers import ImageReaders
from packhorse.serve.models.model import ServedModel
from packhorse.serve.models.queue import TokenQueue
from packhorse.serve.models.queued_request import QueuedRequest
from packhorse.serve.models.served import AnyTask, Served
from packhorse.serve.models.tokenizing import TokenizerPool, TokenizingTask
from packhorse.serve.observability.metrics import Metrics
from packhorse.serve.settings import ModelSettings, Settings
from packhorse.text import TextModel
from packhorse.text.giving_up import checkpoint

_WARM_UP = 4  # images
# Threads that share the pixels of one largest image: photos of phones have a third of these.
_DECODING_TOGETHER = 4
_SIDE_BY_SIDE = 4  # threads that read images of one request, and leave the others to other requests
_ANY_GRID = 16  # patches in a row and a column, where images may have any size


class ImageReading:
    """A task whose items are images of a request, and whose results are rows of an output, by
    `shape`. Made for one request: those of several are never read together."""

    def __init__(
        self,
        model: ServedImages,
        output: OutputName,
        shape: Callable[[FloatArray], Any] = lambda rows: rows,
    ) -> None:
        self._model = model
        self._output = output
        self._shape = shape

    def prepare(self, images: list[ImageInput], first: int) -> Any:
        """The `ImageRequest` of some of the images, which are decoded one after the other."""
        read = []
        for one in images:
            checkpoint()
            read.append(self._model.read(one))
        return ImageRequest(join(read), self._output), None

    def finish(self, _images: object, _kept: None, result: RunResult) -> Any:
        return self._shape(result[self._output])


class _Gathered:
    """Requests of slices, which become one when the last has come."""

    def __init__(self, count: int, put: Callable[[Any, ImageRequest, None], None]) -> None:
        self._found: dict[int, ImageRequest] = {}
        self._count = count
        self._put = put
        self._lock = threading.Lock()

    def put(self, number: int, work: Any, request: ImageRequest, _kept: None) -> None:
        with self._lock:
            self._found[number] = request
            if len(self._found) < self._count:
                return
        found = [self._found[i] for i in range(self._count)]
        images = join([one.images for one in found])
        self._put(work, ImageRequest(images, found[0].output), None)


class ServedImages(Served):
    """A model of images under a name, loaded once for each device. Made by `load_model`.

    texts  the model of texts of the same checkpoint, under the same name; None: there is none
    """

    def __init__(
        self,
        settings: ModelSettings,
        server: Settings,
        replicas: Sequence[ImageModel],
        pool: TokenizerPool,
        metrics: Metrics,
    ) -> None:
        first = replicas[0]
        processor: Any = first.processor
        if processor is None:
            raise ValueError(
                f"{settings.path}: no preprocessor_config.json, which says how it sees images"
            )
        processor.max_pixels = server.max_image_pixels
        # Each thread resizes the image that it has decoded. Loops over several threads take turns,
        # and one that gets its turn on busy cores waits for all of them.
        processor.threads = 1
        self._model = first
        self._patch_size = int(first.session.config["image"]["patch_size"])
        self._most_bytes = server.max_image_bytes
        threads, apart = server.image_readers(first.session.device)
        most = server.max_image_pixels
        total = most * -(-threads // _DECODING_TOGETHER)
        self._budget = PixelBudget(most, total)
        self.texts: ServedModel | None = None
        methods = ["embed_images"]
        if "logits" in first.session.outputs:
            methods.append("classify_images")
        with ExitStack() as undo:
            if first.has_texts:
                texts = [one.texts for one in replicas]
                self.texts = ServedModel(settings, server, texts, pool, metrics)
                undo.callback(self.texts.queue.close)
                methods += ["zero_shot", *self.texts.methods]
            own_pool = TokenizerPool(threads, "image")
            undo.callback(own_pool.close)
            self._readers = ImageReaders(processor, self._patch_size, threads, apart=apart)
            undo.callback(self._readers.close)
            super().__init__(
                settings,
                server,
                replicas,
                own_pool,
                metrics,
                make_runner=lambda one: ImagePartRunner(one.session),
                warm_up=_warm_up,
                methods=methods,
            )
            undo.callback(self.queue.close)
            share = min(most, total // threads)  # pixels that each thread may always decode
            self._ahead = Ahead(share, MOST_SCANNED, self._runner.most_tokens)
            self._readers.wait()
            undo.pop_all()

    @property
    def text(self) -> TextModel:
        """The model of texts. Raises ServeError where there is none."""
        return self.required_texts.text

    @property
    def required_texts(self) -> ServedModel:
        """The model of texts. Raises ServeError where there is none."""
        if self.texts is None:
            raise ServeError("unsuited", f"model {self.name!r} takes images and no texts")
        return self.texts

    @property
    def images(self) -> ImageModel:
        """The first replica: what all of them have in common is asked of it."""
        return self._model

    @property
    def memory_bytes(self) -> int:
        return super().memory_bytes + (0 if self.texts is None else self.texts.memory_bytes)

    @property
    def queues(self) -> list[TokenQueue]:
        return [self.queue, *([] if self.texts is None else self.texts.queues)]

    @property
    def healthy(self) -> bool:
        return super().healthy and (self.texts is None or self.texts.healthy)

    def read(self, image: ImageInput) -> PackedPatches:
        """The patches of an image. Raises ServeError for what is no image, or too much of one."""
        file = image.file(self._most_bytes)
        with self._readers.one() as reader:
            with self._budget.room(self._ahead.pixels):
                header = image.header(reader, file, self._budget.most, self._ahead)
                if header.pixels <= self._ahead.pixels:
                    return self._made(image, reader, header)
            with self._budget.room(header.pixels):
                return self._made(image, reader, header)

    def _made(self, image: ImageInput, reader: Reader, header: Header) -> PackedPatches:
        processor: Any = self._model.processor
        try:
            # Narrow images may become very long ones, which are not made.
            expected = expected_patches(processor.settings, self._patch_size, header)
            self._check_tokens(image, expected)
            found = reader.patches()
        except ValueError as error:
            image.wrong(f": {error}")
        self._check_tokens(image, self._runner.tokens(found))
        return found

    def _check_tokens(self, image: ImageInput, tokens: int) -> None:
        most = self._runner.most_tokens
        if tokens > most:
            image.wrong(f" becomes {tokens} patches, the model takes {most}")

    def estimate(self, items: list[Any]) -> tuple[int, int]:
        return len(items) * _tokens_of_one(self._model), 0

    def _jobs(self, work: QueuedRequest, task: AnyTask, items: list[Any]) -> list[TokenizingTask]:
        if len(items) < 2:
            return super()._jobs(work, task, items)
        size = -(-len(items) // _SIDE_BY_SIDE)
        slices = [items[begin : begin + size] for begin in range(0, len(items), size)]
        gathered = _Gathered(len(slices), self._put)
        return [
            TokenizingTask(work, task, some, partial(gathered.put, number), by_itself=True)
            for number, some in enumerate(slices)
        ]

    async def close(self) -> None:
        if self.texts is not None:
            self.texts.queue.close()
        self.queue.close()
        await asyncio.to_thread(self._free)

    def _free(self) -> None:
        if self.texts is not None:
            self.texts._free()
        super()._free()
        self._pool.close()
        self._readers.close()


def _grid(model: ImageModel) -> tuple[int, int]:
    """Rows and columns of the patches of a typical image."""
    image = model.session.config["image"]
    size = image.get("size") or [_ANY_GRID * int(image["patch_size"])] * 2
    return int(size[0]) // int(image["patch_size"]), int(size[1]) // int(image["patch_size"])


def _tokens_of_one(model: ImageModel) -> int:
    rows, columns = _grid(model)
    return rows * columns + 1


def _warm_up(model: ImageModel) -> tuple[int, float]:
    """(tokens, seconds) of a batch, after one that pays for what only the first one needs."""
    session, grid = model.session, _grid(model)
    image = session.config["image"]
    most = min(session.max_sequences, session.max_tokens // (_tokens_of_one(model) + 8))
    count = max(1, min(_WARM_UP, most))
    elements = int(image["patch_size"]) ** 2 * int(image["channels"])
    batch = PackedPatches(np.zeros((count * grid[0] * grid[1], elements)), [grid] * count)
    output: OutputName = "logits" if "logits" in session.outputs else "embedding"
    for _ in range(2):
        begin = time.monotonic()
        session.run(batch, outputs=[output])
        seconds = time.monotonic() - begin
    return count * _tokens_of_one(model), seconds
