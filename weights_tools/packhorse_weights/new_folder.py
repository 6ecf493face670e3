"""A folder that appears complete or not at all, whatever ends the process that writes it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def _sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(first: Path, second: Path) -> bool:
    """Gives each of two names what the other one names, in one step. Returns False where the C
    library or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    names = os.fsencode(first), os.fsencode(second)
    if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    found = ctypes.get_errno()
    if found in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(found, os.strerror(found), str(second))


def _replace(scratch: Path, destination: Path) -> None:
    """Puts `scratch` in the place of `destination`, and removes what was there."""
    old: Path | None = None
    if not destination.exists() or not any(destination.iterdir()):
        scratch.rename(destination)
    elif _exchange(scratch, destination):
        old = scratch
    else:
        old = scratch.with_suffix(".replaced")
        destination.rename(old)
        try:
            scratch.rename(destination)
        except BaseException:
            old.rename(destination)
            raise
    _sync(destination.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _lock(folder: Path) -> int | None:
    """Locks a folder for as long as the descriptor that is returned is open, which the end of this
    process closes. Returns None where the file system has no locks. Raises BlockingIOError if it is
    locked, and FileNotFoundError if it is gone."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.stat()  # somebody may have locked it before, to remove it
    except (BlockingIOError, FileNotFoundError):
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_abandoned(destination: Path) -> None:
    """Removes what processes left that were killed while they wrote the same folder. Those that
    still write have locked theirs."""
    for folder in destination.parent.glob(f".{glob.escape(destination.name)}.*.partial"):
        with contextlib.suppress(OSError):
            descriptor = _lock(folder)
            if descriptor is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)


def _make_scratch(destination: Path) -> tuple[Path, int | None]:
    """An empty folder beside `destination`, and the descriptor that locks it."""
    while True:
        name = f".{destination.name}.{secrets.token_hex(4)}.partial"
        with contextlib.suppress(FileExistsError, BlockingIOError, FileNotFoundError):
            (destination.parent / name).mkdir()
            return destination.parent / name, _lock(destination.parent / name)


@contextlib.contextmanager
def new_folder(destination: Path) -> Iterator[Path]:
    """Gives an empty scratch folder beside `destination`, on the same file system. When the block
    ends, the folder is written through to the disk and takes the place of `destination`, which may
    be absent, empty or a folder that is to be replaced. If the block raises, the scratch folder is
    removed, and `destination` is as it was.

    At every moment, and after a power cut, `destination` is what it was or the complete new folder.
    An old folder and the new one exchange their names in one step. Only where the file system
    cannot do that, there is a moment without `destination`, in which the old folder is named
    `.NAME.*.replaced`.

    Raises OSError, whose message names a file or `destination`.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(destination)
    scratch, descriptor = _make_scratch(destination)
    try:
        yield scratch
        for path in scratch.rglob("*"):
            _sync(path)
        _sync(scratch)
        _replace(scratch, destination)
    except BaseException as error:
        shutil.rmtree(scratch, ignore_errors=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            raise OSError(error.errno, error.strerror, str(destination)) from error
        raise
    finally:
        if descriptor is not None:
            os.close(descriptor)
