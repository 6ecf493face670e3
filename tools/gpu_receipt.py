"""Runs tests/gpu on a GPU and writes a receipt, or says whether the last receipt still fits the
code.

python tools/gpu_receipt.py --run       runs the tests, writes tests/gpu/receipt.json
python tools/gpu_receipt.py --again     runs files again that failed, have changed or are new; other
                                        code must be as it was when the receipt was written
python tools/gpu_receipt.py --check     prints a warning if the receipt is missing or stale
python tools/gpu_receipt.py             prints the digest of the code as it is

The first command needs packhorse, PyTorch and transformers. Every file of tests runs in a process
of its own, several at a time, which also shows errors that occur only if others use the device.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
RECEIPT = Path("tests/gpu/receipt.json")  # relative to the root, as are the folders
COVERED = (Path("runtime"), Path("third_party"), Path("tests/gpu"))
NOT_COVERED = (Path("runtime/cpu"),)
ALSO_SHARED = (Path("pyruntime"), Path("weights_tools"), Path("tests/python"))
# They take longest, so they start first.
LONG = (
    "test_gpu_attention.py",
    "test_gpu_float8_cache.py",
    "test_gpu_int8.py",
    "test_gpu_padded_widths.py",
)
# They check the free memory of the device.
ALONE = ("test_gpu_device_io.py", "test_gpu_session.py")
COUNTED = ("passed", "failed", "skipped")
CPP_SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".inc"}
# A line of comment, or one behind code. With a quotation mark behind it, it may stand in a string.
CPP_COMMENT = re.compile(rb"^[ \t]*//[^\n]*\n|[ \t]+//[^\"\n]*$", re.MULTILINE)


def covered_files(root: Path, folders: tuple[Path, ...]) -> Iterator[Path]:
    """The files in `folders` that the receipt covers, relative to `root`."""
    for folder in folders:
        for path in (root / folder).rglob("*"):
            relative = path.relative_to(root)
            if not path.is_file() or relative == RECEIPT or "__pycache__" in relative.parts:
                continue
            if not any(relative.is_relative_to(other) for other in NOT_COVERED):
                yield relative


def digest(root: Path = ROOT) -> str:
    """Digest of every file that the receipt covers."""
    return digest_of(root, covered_files(root, COVERED))


def shared_digest(root: Path = ROOT) -> str:
    """Digest of all code that files of GPU tests have in common."""

    def is_shared(path: Path) -> bool:
        if path.is_relative_to("tests/gpu"):
            return not path.match("test_*.py")
        return path.is_relative_to("runtime") or path.suffix in (".py", ".pyx", ".pxd", ".h")

    return digest_of(root, filter(is_shared, covered_files(root, (*COVERED, *ALSO_SHARED))))


def digest_of(root: Path, paths: Iterable[Path]) -> str:
    """SHA-256 over path and content of files, in the order of their paths. Comments of C++ do not
    count: what is better said need not be run again."""
    result = hashlib.sha256()
    for path in sorted(paths, key=Path.as_posix):
        content = (root / path).read_bytes()
        if path.suffix in CPP_SUFFIXES:
            content = CPP_COMMENT.sub(b"", content)
        # The length is included so that the end of one file cannot count as the beginning of the
        # next.
        result.update(f"{path.as_posix()}\0{len(content)}\0".encode())
        result.update(content)
    return result.hexdigest()


def driver_version() -> str:
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.splitlines()[0].strip()


def run_file(path: Path) -> Counter[str]:
    """Runs one file and returns how many of its tests passed, failed and were skipped. Prints
    failures."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", str(path), "-q", "--junitxml", str(report)]
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider"], cwd=ROOT, capture_output=True, text=True
        )
        suites = ElementTree.parse(report).iter("testsuite") if report.exists() else ()
        counts: Counter[str] = Counter()
        for suite in suites:
            failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
            skipped = int(suite.attrib["skipped"])
            passed = int(suite.attrib["tests"]) - failed - skipped
            counts.update(passed=passed, failed=failed, skipped=skipped)
    if done.returncode:
        counts["failed"] = max(1, counts["failed"])  # it may have failed before its first test
        print(done.stdout, done.stderr)
    print(f"{path.name}: {time.monotonic() - start:.0f} s, {dict(counts)}", flush=True)
    return counts


def results(path: Path, counts: Counter[str]) -> dict[str, Any]:
    """Entry of the receipt for one file of tests."""
    found: dict[str, Any] = {name: counts[name] for name in COUNTED}
    found["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def kept_results(files: list[Path]) -> dict[str, Any]:
    """Entries of the last receipt for files that passed and have not changed. Exits if other code
    or the machine has changed."""
    try:
        receipt = json.loads((ROOT / RECEIPT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"{RECEIPT} cannot be read ({error}): run all tests, with --run")
    now = {**machine(), "shared": shared_digest()}
    if changed := [name for name in now if receipt.get(name) != now[name]]:
        sys.exit(f"not as in the last receipt: {', '.join(changed)}; run all tests, with --run")
    kept = {}
    for path in files:
        last = receipt["files"].get(path.name)
        if last is not None and last == results(path, Counter(last)) and not last["failed"]:
            kept[path.name] = last
    return kept


def machine() -> dict[str, str]:
    import torch

    return {
        "device": torch.cuda.get_device_name(0),
        "cuda": str(torch.version.cuda),
        "driver": driver_version(),
    }


def run(*, again: bool) -> int:
    """Runs the tests, writes the receipt and returns how many tests failed."""
    files = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
    found = kept_results(files) if again else {}
    wanted = [path for path in files if path.name not in found]
    together = [path for path in wanted if path.name not in ALONE]
    together.sort(key=lambda path: path.name not in LONG)
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        for path, counts in zip(together, pool.map(run_file, together), strict=True):
            found[path.name] = results(path, counts)
            write(found, len(files))
    for path in wanted:
        if path.name in ALONE:
            found[path.name] = results(path, run_file(path))
            write(found, len(files))
    total = write(found, len(files))
    print(f"{RECEIPT}: {total}")
    return total["failed"]


def write(found: dict[str, Any], num_files: int) -> dict[str, int]:
    """Writes the receipt of the files that have run, so that a run which is cut off can go on with
    --again; it is fresh only when all have. Returns the counts of all tests."""
    total = {name: sum(result[name] for result in found.values()) for name in COUNTED}
    receipt = {
        **machine(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        **total,
        "digest": digest() if len(found) == num_files else "not all files have run",
        "shared": shared_digest(),
        "files": dict(sorted(found.items())),
    }
    (ROOT / RECEIPT).write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")
    return total


def warning(root: Path = ROOT) -> str | None:
    """Says what is wrong with the receipt, or returns None."""
    try:
        receipt = json.loads((root / RECEIPT).read_text(encoding="utf-8"))
        last = f"{receipt['date']}, {receipt['device']}"
        if receipt["failed"]:
            return f"{RECEIPT}: {receipt['failed']} tests failed when they last ran ({last})"
        if receipt["digest"] == digest(root):
            return None
    except FileNotFoundError:
        return f"{RECEIPT} is missing: tests/gpu has not been run on a GPU"
    except (KeyError, TypeError, ValueError) as error:
        return f"{RECEIPT} cannot be read: {error!r}"
    return f"{RECEIPT} is stale: the code changed since tests/gpu last ran ({last})"


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        if (found := warning()) is not None:
            print(f"warning: {found}")
    elif sys.argv[1:] in (["--run"], ["--again"]):
        sys.exit(1 if run(again=sys.argv[1] == "--again") else 0)
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        print(digest())


if __name__ == "__main__":
    main()
