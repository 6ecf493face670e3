"""Ids and embeddings that stay on the GPU, by NVIDIA's own cuda.core and without PyTorch.

    pip install 'packhorse[text,cuda]'
    python examples/cuda_core.py MODEL TEXT ...

MODEL is a folder that has tokenizer.json. The ids lie in buffers of cuda.core, the run is put on a
stream of it between two events, and the embeddings are read where the session has left them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
from cuda.core import Buffer, Device, EventOptions
from cuda.core.utils import StridedMemoryView
from tokenizers import Tokenizer


def embed(folder: Path, texts: list[str]) -> tuple[np.ndarray[Any, Any], float]:
    """The embeddings [texts, size], copied to the host, and the milliseconds of the run."""
    device = Device(0)
    device.set_current()
    stream = device.create_stream()

    def host(array: np.ndarray[Any, Any]) -> Buffer:
        return Buffer.from_handle(array.ctypes.data, array.nbytes, owner=array)

    def to_device(values: list[int]) -> Buffer:
        array = np.array(values, np.int32)
        buffer = device.allocate(array.nbytes, stream=stream)
        buffer.copy_from(host(array), stream=stream)
        return buffer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    sequences = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    lengths = [len(ids) for ids in sequences]
    batch = packhorse.PackedTokens(  # a Buffer has no dtype: it is read as int32
        to_device([token for ids in sequences for token in ids]),
        to_device([0, *np.cumsum(lengths).tolist()]),
    )

    session = packhorse.Session.load(
        folder, "cuda:0", max_tokens=sum(lengths), max_sequences=len(texts)
    )
    begin, end = (device.create_event(EventOptions(timing_enabled=True)) for _ in range(2))
    for _ in range(2):  # the first run loads kernels
        stream.record(begin)
        with session.run(batch, outputs="embedding", stream=stream) as result:
            stream.record(end)
            view = StridedMemoryView.from_dlpack(result.embedding, stream.__cuda_stream__()[1])
            embeddings = np.empty(view.shape, view.dtype)
            there = Buffer.from_handle(view.ptr, embeddings.nbytes, owner=view)
            host(embeddings).copy_from(there, stream=stream)
            stream.sync()
    return embeddings, end - begin


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    embeddings, milliseconds = embed(Path(sys.argv[1]), sys.argv[2:])
    print(f"{len(embeddings)} texts in {milliseconds:.3f} ms on the GPU; cosines:")
    print(np.round(embeddings @ embeddings.T, 3))


if __name__ == "__main__":
    main()
