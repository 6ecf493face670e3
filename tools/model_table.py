"""Writes docs/developer/notebook/model_errors.md: the error of every tiny model of tests/golden by
device and dtype.

    python tools/model_table.py            this machine's devices; columns of others are kept

Needs packhorse installed (or on PYTHONPATH) and pytest. The errors are those that the tests check:
the largest absolute difference from transformers in float32 over all numbers of the batch, for the
first of OUTPUTS that a model has. Causal language models are loaded as rerankers, whose error is
that of the difference of two tokens' logits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import packhorse

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "developer" / "notebook" / "model_errors.md"
COLUMNS = (("cpu", "float32"), ("cpu", "bfloat16"), ("cuda", "float16"), ("cuda", "bfloat16"))
HEADER = f"|model|{'|'.join(f'{device} {dtype}' for device, dtype in COLUMNS)}|"
RULE = f"|---|{'---:|' * len(COLUMNS)}"
# If a model has none of these, "embedding" is used if it is more than one pooling of "hidden",
# otherwise "hidden".
OUTPUTS = ("sparse", "predictions", "vectors", "logits")
YES, NO = 61, 7  # any two token ids
RERANKER = {"text": "{query}{document}", "yes": YES, "no": NO}


def measure(folder: Path, device: str, dtype: str) -> str | None:
    """Returns the error, or why the model does not run, or None if the device does not have this
    dtype."""
    golden = dict(np.load(folder / "golden.npz"))
    answers = golden.get("last_logits")
    if answers is not None:
        golden["logits"] = answers[:, [YES]] - answers[:, [NO]]
    batch = packhorse.PackedTokens(golden["ids"], golden["cu_seqlens"], golden["type_ids"])
    try:
        packhorse.plan_memory(ROOT / "tests" / "golden" / "bert-gelu", device, dtype)
    except RuntimeError:
        return None
    rows = golden.get("prediction_rows")
    try:
        session = packhorse.Session.load(
            folder,
            device,
            dtype,
            kv_tokens=0,
            max_tokens=golden["ids"].size,
            max_sequences=16,
            max_predictions=0 if rows is None else rows.size,
            reranker=None if answers is None else RERANKER,
        )
    except (RuntimeError, ValueError) as error:
        return f"refused: {error}".split(" is not supported")[0]
    embedding = session.config["embedding"]
    more = "dense" in embedding or isinstance(embedding["pooling"], list)
    last = "embedding" if more else "hidden"
    output = next((name for name in OUTPUTS if name in golden), last)
    rows = rows if output == "predictions" else None
    found = getattr(session.run(batch, outputs=[output], rows=rows), output)
    return f"{np.abs(found - golden[output]).max():.1e}"


def read_table(page: str) -> dict[str, list[str]]:
    """Reads model -> the cells of COLUMNS from the page."""
    lines = page[page.index(HEADER) :].splitlines()[2:]
    table = [line.strip("|").split("|") for line in lines]
    return {name: cells for name, *cells in table}


def main() -> None:
    page = PAGE.read_text()
    known = read_table(page)
    folders = sorted(path.parent for path in (ROOT / "tests" / "golden").glob("*/golden.npz"))
    devices = {name.split(":")[0]: name for name in packhorse.available_devices()}
    lines = [HEADER, RULE]
    for folder in folders:
        cells = known.get(folder.name, ["-"] * len(COLUMNS))
        for column, (device, dtype) in enumerate(COLUMNS):
            error = measure(folder, devices[device], dtype) if device in devices else None
            if error is not None:
                cells[column] = error
                print(json.dumps([folder.name, device, dtype, error]), file=sys.stderr)
        lines.append(f"|{folder.name}|{'|'.join(cells)}|")
    PAGE.write_text(page[: page.index(HEADER)] + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
