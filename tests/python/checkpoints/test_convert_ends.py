"""However a conversion ends, the destination is what it was or a complete model: the disk is full,
the process is killed, the power fails. `nox -s test-crash` kills more processes
(PACKHORSE_KILLS)."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import packhorse_weights
import pytest
from checkpoints import BERT, GOLDEN
from packhorse_weights import CheckpointError, convert, inspect_checkpoint, new_folder

KILLS = int(os.environ.get("PACKHORSE_KILLS", "3"))
OTHER = GOLDEN / "bert-relu"
PATH = str(Path(packhorse_weights.__file__).parents[1])

# Converts in turn one model and the other, over the same folder, until it is killed.
ENDLESS = """
import sys
sys.path.insert(0, sys.argv[1])
from packhorse_weights import convert
print("ready", flush=True)
while True:
    for source in sys.argv[2:4]:
        convert(source, sys.argv[4], overwrite=True)
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, bytes]]:
    """Contents of the two models as converted folders."""
    folder = tmp_path_factory.mktemp("wholes")
    return [contents(convert(source, folder / source.name)) for source in (BERT, OTHER)]


def test_killed_at_any_moment(tmp_path: Path, wholes: list[dict[str, bytes]]) -> None:
    out = tmp_path / "out"
    convert(BERT, out)
    rng = random.Random(KILLS)
    for _ in range(KILLS):
        command = [sys.executable, "-c", ENDLESS, PATH, str(BERT), str(OTHER), str(out)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.random() * 0.05)
        process.kill()
        process.wait()
        process.stdout.close()
        assert contents(out) in wholes
    # The next one takes away what they left.
    convert(OTHER, out, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_conversion_that_still_runs_keeps_its_scratch_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with new_folder.new_folder(out) as scratch:
        (scratch / "file").write_text("mine")
        convert(BERT, out)
        assert (scratch / "file").read_text() == "mine"
        shutil.rmtree(out)
    assert contents(out) == {"file": b"mine"}


def test_a_full_disk(tmp_path: Path, wholes: list[dict[str, bytes]]) -> None:
    """The limit of a file's size stands for the disk: writes beyond it fail in the same way."""
    out = tmp_path / "out"
    convert(BERT, out)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for size in (0, 100, 50_000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
            with pytest.raises(OSError, match="out") as caught:
                convert(OTHER, out, overwrite=True)
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            assert caught.value.errno == errno.EFBIG
            assert contents(out) == wholes[0]
            assert [path.name for path in tmp_path.iterdir()] == ["out"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


class Disk:
    """Notes what a conversion asks of the system, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        exchange, rename, sync = new_folder._exchange, Path.rename, new_folder._sync

        def noted_sync(path: Path) -> None:
            self.calls.append(("sync", path.name))
            sync(path)

        def noted_exchange(first: Path, second: Path) -> bool:
            self.calls.append(("rename", second.name))
            return exchange(first, second)

        def noted_rename(self_: Path, target: Any) -> Path:
            self.calls.append(("rename", Path(target).name))
            return rename(self_, target)

        monkeypatch.setattr(new_folder, "_sync", noted_sync)
        monkeypatch.setattr(new_folder, "_exchange", noted_exchange)
        monkeypatch.setattr(Path, "rename", noted_rename)


@pytest.mark.parametrize("exists", [False, True])
def test_everything_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    out = tmp_path / "out"
    if exists:
        convert(OTHER, out)
    disk = Disk(monkeypatch)
    convert(BERT, out, overwrite=True)
    at = disk.calls.index(("rename", "out"))
    synced = [name for call, name in disk.calls[:at] if call == "sync"]
    assert sorted(synced[:-1]) == sorted(contents(out))  # the files, then their folder
    assert synced[-1].startswith(".out.")
    assert disk.calls[at + 1 :] == [("sync", tmp_path.name)]


def test_file_systems_without_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wholes: list[dict[str, bytes]]
) -> None:
    monkeypatch.setattr(new_folder, "_exchange", lambda *_: False)
    convert(BERT, tmp_path / "out")
    convert(OTHER, tmp_path / "out", overwrite=True)
    assert contents(tmp_path / "out") == wholes[1]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_names_with_letters_that_mean_more(tmp_path: Path) -> None:
    (tmp_path / ".other.0.partial").mkdir()
    convert(BERT, tmp_path / "[o]*")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.0.partial", "[o]*"]


@pytest.mark.parametrize("cut", [8, 1000, -1])
def test_half_a_file_of_weights_is_refused(tmp_path: Path, cut: int) -> None:
    """A copy that was broken off leaves such a file."""
    convert(BERT, tmp_path / "out")
    path = tmp_path / "out" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match="model.safetensors"):
        inspect_checkpoint(tmp_path / "out")
