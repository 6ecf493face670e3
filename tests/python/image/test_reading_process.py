"""Files read in a process of its own: the same patches and errors as on a thread, and what happens
when a process ends."""

from __future__ import annotations

import io
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")

from packhorse.image import ImageProcessor, ImageSettings, reading_process
from packhorse.image.decoding import TooManyPixelsError
from packhorse.image.file_reader import Ahead, FileReader
from packhorse.image.reading_process import ReadingProcess
from packhorse.image.shared_memory import KEPT_BYTES
from picture_models import picture

PATCH = 16


def processor_of(side: int) -> ImageProcessor:
    return ImageProcessor(ImageSettings(resize=(side, 2 * side)), threads=1, max_pixels=1 << 20)


@pytest.fixture(scope="module")
def reader() -> Iterator[ReadingProcess]:
    made = ReadingProcess(processor_of(64), PATCH)
    made.wait()
    yield made
    made.close()


def compare(
    reader: ReadingProcess, beside: FileReader, file: bytes, ahead: Ahead | None = None
) -> None:
    assert reader.open(file, ahead) == beside.open(file, ahead)
    found, expected = reader.patches(), beside.patches()
    for name in ("features", "grids"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), strict=True)


def process_of(reader: ReadingProcess) -> int:
    return reader._process.pid


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def noise(width: int, height: int) -> bytes:
    """A file of about three bytes a pixel."""
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=0)
    return file.getvalue()


def test_patches_are_those_of_a_thread(reader: ReadingProcess) -> None:
    beside = FileReader(processor_of(64), PATCH)
    for number, form in enumerate(("JPEG", "PNG", "WEBP")):
        for size in ((1, 1), (300, 7), (40, 33)):
            compare(reader, beside, picture(number, form, size))


# A picture of 40 x 33 becomes 4 x 8 patches of 16 x 16.
WIDE = Ahead(pixels=40 * 33, scanned_pixels=40 * 33, patches=32)
NARROW = [WIDE._replace(**{name: value - 1}) for name, value in WIDE._asdict().items()]


@pytest.mark.parametrize("ahead", [WIDE, *NARROW])
def test_patches_that_are_made_ahead(reader: ReadingProcess, ahead: Ahead) -> None:
    beside = FileReader(processor_of(64), PATCH)
    file = picture(1, "PNG", (40, 33))
    for one in (None, ahead, ahead, None):
        compare(reader, beside, file, one)
    reader.open(file, ahead)
    assert (reader._ahead is None) == (ahead is not WIDE)
    compare(reader, beside, picture(2))  # those made ahead were not asked for
    broken = picture(1, "JPEG", (40, 33))[:-300]
    assert refusal(reader, broken, ahead) == refusal(beside, broken)


def refusal(
    reader: FileReader | ReadingProcess, file: bytes, ahead: Ahead | None = None
) -> tuple[type[Exception], str]:
    try:
        reader.open(file, ahead)
        reader.patches()
    except ValueError as error:
        return type(error), str(error)
    raise AssertionError("the file was read")


def test_results_do_not_change_later(reader: ReadingProcess) -> None:
    reader.open(picture(1))
    found = reader.patches().features
    before = found.copy()
    reader.open(picture(2))
    assert not np.array_equal(reader.patches().features, before)
    np.testing.assert_array_equal(found, before)


@pytest.mark.parametrize("side", [8, 1024])
def test_sizes_of_results(side: int) -> None:
    """No patch at all; and more memory than is kept, which is given back."""
    made = ReadingProcess(processor_of(side), PATCH)
    beside = FileReader(processor_of(side), PATCH)
    for file in (picture(1), noise(1020, 1000), picture(2), b"x" * 9_000_000, picture(3)):
        if file[:1] == b"x":
            with pytest.raises(ValueError, match="no JPEG, PNG or WebP"):
                made.open(file)
        elif side == 8:
            found = refusal(made, file)
            assert found == refusal(beside, file)
            assert "smaller than a patch" in found[1]
        else:
            compare(made, beside, file)
    there = os.fstat(made._memory.descriptor)
    assert there.st_size > KEPT_BYTES
    assert there.st_blocks * 512 <= KEPT_BYTES
    made.close()


def test_errors_are_those_of_a_thread(reader: ReadingProcess) -> None:
    beside = FileReader(processor_of(64), PATCH)
    good = picture(1, "JPEG", (90, 90))
    for file in (b"", b"GIF89a", good[:20], noise(1025, 1024), good[: len(good) // 2]):
        found = refusal(reader, file)
        assert found == refusal(beside, file)
        assert found[1].startswith("an image of")
    compare(reader, beside, good)
    assert refusal(reader, noise(1025, 1024))[0] is TooManyPixelsError


def test_other_errors_name_their_kind() -> None:
    made = ReadingProcess(None, PATCH)
    made.open(picture(1))
    with pytest.raises(RuntimeError, match="AttributeError: 'NoneType'"):
        made.patches()
    assert made.open(picture(1)).width == 33
    made.close()


def test_a_process_that_is_killed_is_started_again(reader: ReadingProcess) -> None:
    beside = FileReader(processor_of(64), PATCH)
    reader.open(picture(1))
    os.kill(process_of(reader), signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"has ended: signal SIGKILL"):
        reader.patches()
    gone = process_of(reader)
    compare(reader, beside, picture(1))
    assert process_of(reader) != gone
    os.kill(process_of(reader), signal.SIGKILL)  # while nothing is asked
    reader._process.wait()
    compare(reader, beside, picture(2))


@pytest.mark.parametrize("begun", [False, True])
def test_signals_for_the_server_do_not_end_it(begun: bool) -> None:
    """Not while it starts, either."""
    made = ReadingProcess(processor_of(64), PATCH)
    if begun:
        made.wait()
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(process_of(made), stop)
    same = process_of(made)
    compare(made, FileReader(processor_of(64), PATCH), picture(2))
    assert process_of(made) == same
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
    made.close()


# A child that answers questions as it was told to, whatever they are.
LIAR = """
import socket
parent = socket.socket(fileno={{socket}})
parent.recv(1 << 16)
for answer in {answers}:
    parent.recv(1 << 16)
    parent.send(bytes.fromhex(answer).replace(b"~", b" " * 70_000))
parent.recv(1)
"""
HEADER = b'{"header": [1, 1, 1]}'
AHEAD = b'{"header": [1, 1, 1], "patches": %b}'


@pytest.mark.parametrize(
    "answers",
    [
        [b'{"header": [NaN, 5, 1]}'],
        [b'{"header": [-5, 5, 1]}'],
        [b'{"header": [true, 5, 1]}'],
        [b'{"header": [5, 5]}'],
        [b'{"header": [1099511627776, 5, 1]}'],
        [b'{"header": "abc"}'],
        [b'{"grid": [1, 1]}'],
        [b'{"error": ["value"], "message": ""}'],
        [b'{"error": "value"}'],
        [b"[]"],
        [b"5"],
        [b"no JSON"],
        [b"~" + HEADER],
        [HEADER, HEADER],
        [HEADER, b'{"grid": [1048576, 1024]}'],
        [HEADER, b'{"grid": [1, 2, 3]}'],
        [HEADER, b'{"grid": [-1, -1]}'],
        [HEADER, b'{"grid": [[1, 1]]}'],
        [AHEAD % b"[]"],
        [AHEAD % b"5"],
        [AHEAD % b'{"grid": [1048576, 1024]}'],
        [AHEAD % b'{"grid": [-1, -1]}'],
        [AHEAD % b'{"error": ["value"], "message": ""}'],
    ],
)
def test_wrong_answers_end_it(answers: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """And are no fault of the image."""
    monkeypatch.setattr(
        reading_process, "_CHILD", LIAR.format(answers=[one.hex() for one in answers])
    )
    made = ReadingProcess(processor_of(64), PATCH)
    opens = len(answers) == 2 or b"patches" in answers[0]
    if opens:
        made.open(picture(1))
    with pytest.raises(RuntimeError, match="gave a wrong answer"):
        made.patches() if opens else made.open(picture(1))
    assert made._process.returncode == -signal.SIGKILL
    made.close()


def test_an_answer_that_is_not_taken_is_not_taken_later(
    reader: ReadingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory lacks, or a signal handler raises, while an answer is read."""
    beside = FileReader(processor_of(64), PATCH)
    for error in (MemoryError, KeyboardInterrupt):
        with monkeypatch.context() as patch:

            def fail(_: object, error: type[BaseException] = error) -> None:
                raise error

            patch.setattr(reading_process.json, "loads", fail)
            with pytest.raises((RuntimeError, KeyboardInterrupt)):
                reader.open(picture(1))
        compare(reader, beside, picture(2, "PNG", (50, 100)))


def test_a_process_that_hangs_is_ended() -> None:
    made = ReadingProcess(processor_of(64), PATCH)
    made.wait()
    half_a_second = struct.pack("ll", 0, 500_000)
    made._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, half_a_second)
    os.kill(process_of(made), signal.SIGSTOP)
    with pytest.raises(RuntimeError, match="no answer in 60 s"):
        made.open(picture(1))
    compare(made, FileReader(processor_of(64), PATCH), picture(1))
    made.close()


def test_a_file_that_cannot_be_opened_leaves_none_open(reader: ReadingProcess) -> None:
    for one in (reader, FileReader(processor_of(64), PATCH)):
        one.open(picture(1))
        with pytest.raises(ValueError, match="no JPEG, PNG or WebP"):
            one.open(b"x" * 5_000_000)
        with pytest.raises(RuntimeError, match="no file is open"):
            one.patches()
    there = os.fstat(reader._memory.descriptor)
    assert there.st_blocks * 512 <= KEPT_BYTES


def test_paths_that_python_does_not_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, Path("elsewhere")])
    made = ReadingProcess(processor_of(64), PATCH)
    made.wait()
    made.close()


def test_a_process_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_process, "_CHILD", "raise SystemExit(7)")
    made = ReadingProcess(processor_of(64), PATCH)
    with pytest.raises(RuntimeError, match="has ended: exit status 7"):
        made.wait()
    made.close()


def test_a_process_that_cannot_be_made(
    reader: ReadingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the system has no room for it: each file is refused, and nothing stays open."""
    os.kill(process_of(reader), signal.SIGKILL)
    reader._process.wait()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        for _ in range(2):
            with pytest.raises(OSError, match="/nowhere/python"):
                reader.open(picture(1))
            there = open_descriptors()
        with pytest.raises(OSError, match="/nowhere/python"):
            reader.open(picture(1))
        assert open_descriptors() == there
    compare(reader, FileReader(processor_of(64), PATCH), picture(1))


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    """However the parent ends."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, signal\n"
        "from packhorse.image.reading_process import ReadingProcess\n"
        "made = ReadingProcess(None, 16)\n"
        "made.wait()\n"
        "print(made._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    said = subprocess.run([sys.executable, script], capture_output=True, text=True).stdout
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{int(said)}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":  # nobody has taken note of its end
            return
        time.sleep(0.02)
    pytest.fail(f"process {said} lives on")
