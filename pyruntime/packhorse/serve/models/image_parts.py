"""Requests of images cut into parts that fit into a batch, as `text.parts` does for texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from packhorse_weights.spec import stem_of

from packhorse.encoder_session import EncoderSession
from packhorse.names import OutputName
from packhorse.packing import batch_ranges
from packhorse.patches import PackedPatches, join
from packhorse.result import FloatArray, RunResult
from packhorse.text.parts import Size


class ImageRequest(NamedTuple):
    """Any number of images, and one output that is wanted of each."""

    images: PackedPatches
    output: OutputName


class ImagePart(NamedTuple):
    """As much of a request as one batch may hold. out: the rows that belong to it, to be written.
    kind: only parts of one kind can be in one batch."""

    images: PackedPatches
    output: OutputName
    size: Size
    out: Mapping[str, FloatArray]

    @property
    def kind(self) -> tuple[OutputName]:
        return (self.output,)


class ImagePartRunner:
    """Cuts requests for one session, and runs the parts. Any number of threads may use it."""

    def __init__(self, session: EncoderSession) -> None:
        self._session = session
        self._prefix = int(stem_of(session.config).get("prefix", 0))
        self.limits: Size = (session.max_tokens, session.max_sequences, 0)
        # Limit for one image.
        self.most_tokens = min(session.max_tokens, session.max_seqlen)

    def fits(self, size: Size) -> bool:
        """True if one batch may hold so much."""
        return all(number <= limit for number, limit in zip(size, self.limits, strict=True))

    def tokens(self, images: PackedPatches) -> int:
        """Rows of the model for images: their patches, and the prefix of each."""
        return int(images.offsets(self._prefix)[-1])

    def numbers(self, request: ImageRequest) -> int:
        """Counts the numbers of the output of a request."""
        return request.images.num_images * self._session.outputs[request.output].columns

    def cut(self, request: ImageRequest, max_tokens: int) -> tuple[RunResult, list[ImagePart]]:
        """(the result of the request, whose array is not written yet; the parts to write it)

        max_tokens  most tokens of a part that has more than one image
        """
        images, name = request
        offsets = images.offsets(self._prefix)
        ends = offsets.tolist(), range(images.num_images + 1)
        columns = self._session.outputs[name].columns
        array = np.empty((images.num_images, columns), np.float32)
        parts = []
        for first, last in batch_ranges(ends, (min(max_tokens, self.limits[0]), self.limits[1])):
            size = ends[0][last] - ends[0][first], last - first, 0
            parts.append(ImagePart(images[first:last], name, size, {name: array[first:last]}))
        return RunResult({name: array}, offsets), parts

    def run(self, parts: Sequence[ImagePart]) -> None:
        """Runs parts of one kind, which fit into a batch together. Raises as
        `EncoderSession.run`."""
        (name,) = parts[0].kind
        if len(parts) == 1:
            self._session.run(parts[0].images, outputs=[name], out=parts[0].out)
            return
        rows = self._session.run(join([part.images for part in parts]), outputs=[name])[name]
        begin = 0
        for part in parts:
            end = begin + part.size[1]
            part.out[name][:] = rows[begin:end]
            begin = end
