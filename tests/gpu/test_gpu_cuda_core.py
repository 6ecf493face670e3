"""cuda.core's own objects: buffers as batches, streams that order runs, events around them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import packhorse
import pytest
import torch
from consumers import BATCH, OUTPUTS, CudaCore, load, on_device
from models import tiny_spec, write_model
from tiny_tokenizer import add_tokenizer

core = pytest.importorskip("cuda.core")

ROOT = Path(__file__).parents[2]
LATE = 200_000_000  # clock cycles for which a stream is kept busy: some 100 ms


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> packhorse.Session:
    return load(write_model(tmp_path_factory.mktemp("cuda_core"), tiny_spec()))


def test_a_run_is_ordered_and_timed_by_a_stream(session: packhorse.Session) -> None:
    """The ids are written late on the stream: buffers order nothing, the stream does. The events
    take in the wait and the run, and the host waits for neither."""
    library = CudaCore()
    expected = session.run(BATCH, outputs=OUTPUTS)
    real, batch = on_device(BATCH, library), on_device(BATCH, library)
    batch.ids.fill(0, stream=library.stream)
    session.run(batch, outputs=OUTPUTS, stream=library.stream).release()  # loads kernels
    library.stream.sync()
    options = core.EventOptions(timing_enabled=True)
    begin, end = (library.device.create_event(options) for _ in range(2))
    stream = torch.cuda.ExternalStream(library.stream.__cuda_stream__()[1])
    library.stream.record(begin)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LATE)
    batch.ids.copy_from(real.ids, stream=library.stream)
    result = session.run(batch, outputs=OUTPUTS, stream=library.stream)
    library.stream.record(end)
    assert not end.is_done, "the host waited"
    found = {name: library.take(getattr(result, name)) for name in OUTPUTS}
    for name in OUTPUTS:
        assert found[name].tobytes() == getattr(expected, name).tobytes(), name
    end.sync()
    assert end - begin > 10
    result.release()


def test_bytes_that_are_no_int32_are_refused(session: packhorse.Session) -> None:
    library = CudaCore()
    odd = library.device.allocate(13, stream=library.stream)
    with pytest.raises(ValueError, match="ids has 13 bytes, expected elements of int32"):
        session.run((odd, library.put([0, 3])), stream=library.stream)


def test_the_example(tmp_path: Path) -> None:
    folder = add_tokenizer(write_model(tmp_path / "model", tiny_spec(vocab_size=100)))
    command = [sys.executable, ROOT / "examples/cuda_core.py", folder, "one text", "another"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert lines[0].startswith("2 texts in ")
    cosines = np.array(" ".join(lines[1:]).translate(str.maketrans("[]", "  ")).split(), float)
    np.testing.assert_allclose(cosines[[0, 3]], 1, atol=2e-3)
