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
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
RECEIPT = Path("tests/gpu/receipt.json")  # relative to the root, as are the folders
COVERED = (Path("runtime"), Path("third_party"), Path("tests/gpu"))
NOT_COVERED = (Path("runtime/cpu"),)
# They check the free memory of the device.
ALONE = ("test_gpu_device_io.py", "test_gpu_session.py")
COUNTED = ("passed", "failed", "skipped")


def covered_files(root: Path) -> Iterator[Path]:
    """The files that the receipt covers, relative to `root`, in a fixed order."""
    for folder in COVERED:
        for path in (root / folder).rglob("*"):
            relative = path.relative_to(root)
            if not path.is_file() or relative == RECEIPT or "__pycache__" in relative.parts:
                continue
            if not any(relative.is_relative_to(other) for other in NOT_COVERED):
                yield relative


def is_test(path: Path) -> bool:
    return path.is_relative_to("tests/gpu") and path.match("test_*.py")


def digest(root: Path = ROOT, *, tests: bool = True) -> str:
    """SHA-256 over path and content of every covered file, in the order of their paths, with the
    files of tests or without them."""
    result = hashlib.sha256()
    for path in sorted(covered_files(root), key=Path.as_posix):
        if is_test(path) and not tests:
            continue
        content = (root / path).read_bytes()
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
    """What the receipt says of one file of tests."""
    found: dict[str, Any] = {name: counts[name] for name in COUNTED}
    found["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def kept_results(files: list[Path]) -> dict[str, Any]:
    """Of the last receipt: files that passed and are the same. Exits if other code has changed."""
    receipt = json.loads((ROOT / RECEIPT).read_text(encoding="utf-8"))
    if receipt.get("code") != digest(tests=False):
        sys.exit("the code has changed since the last receipt: run all tests, with --run")
    kept = {}
    for path in files:
        last = receipt["files"].get(path.name)
        if last is not None and last == results(path, Counter(last)) and not last["failed"]:
            kept[path.name] = last
    return kept


def run(*, again: bool) -> int:
    """Runs the tests, writes the receipt and returns how many tests failed."""
    import torch

    files = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
    found = kept_results(files) if again else {}
    wanted = [path for path in files if path.name not in found]
    together = [path for path in wanted if path.name not in ALONE]
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        for path, counts in zip(together, pool.map(run_file, together), strict=True):
            found[path.name] = results(path, counts)
    for path in wanted:
        if path.name in ALONE:
            found[path.name] = results(path, run_file(path))
    total = {name: sum(result[name] for result in found.values()) for name in COUNTED}
    receipt = {
        "device": torch.cuda.get_device_name(0),
        "cuda": str(torch.version.cuda),
        "driver": driver_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        **total,
        "digest": digest(),
        "code": digest(tests=False),
        "files": dict(sorted(found.items())),
    }
    (ROOT / RECEIPT).write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")
    print(f"{RECEIPT}: {total}")
    return total["failed"]


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
