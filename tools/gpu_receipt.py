"""The receipt of the last run of tests/gpu on a GPU, and whether it still fits the code.

PACKHORSE_GPU_RECEIPT=1 pytest tests/gpu      writes tests/gpu/receipt.json
python tools/gpu_receipt.py --check           prints a warning where it is missing or stale
python tools/gpu_receipt.py                   prints the digest of the code as it is
"""

from __future__ import annotations

import datetime
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECEIPT = Path("tests/gpu/receipt.json")  # relative to the root, as are the folders
COVERED = (Path("runtime"), Path("third_party"), Path("tests/gpu"))
NOT_COVERED = (Path("runtime/cpu"),)


def covered_files(root: Path) -> Iterator[Path]:
    """What the receipt speaks for, relative to `root`, in an order of its own."""
    for folder in COVERED:
        for path in (root / folder).rglob("*"):
            relative = path.relative_to(root)
            if not path.is_file() or relative == RECEIPT or "__pycache__" in relative.parts:
                continue
            if not any(relative.is_relative_to(other) for other in NOT_COVERED):
                yield relative


def digest(root: Path = ROOT) -> str:
    """SHA-256 over path and content of every covered file, in the order of their paths."""
    result = hashlib.sha256()
    for path in sorted(covered_files(root), key=Path.as_posix):
        content = (root / path).read_bytes()
        # The length keeps one file's end from passing for the next one's beginning.
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


def write(device: str, cuda: str, counts: dict[str, int], root: Path = ROOT) -> Path:
    """counts: how many tests passed, failed and were skipped."""
    receipt: dict[str, Any] = {
        "device": device,
        "cuda": cuda,
        "driver": driver_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        **{name: counts.get(name, 0) for name in ("passed", "failed", "skipped")},
        "digest": digest(root),
    }
    path = root / RECEIPT
    path.write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")
    return path


def warning(root: Path = ROOT) -> str | None:
    """What is wrong with the receipt, or None."""
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
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        print(digest())


if __name__ == "__main__":
    main()
