"""Writes docs/experiments/model_errors.md: the error of every tiny model of tests/golden by device
and dtype.

    python tools/model_table.py            this machine's devices; rows of others are kept

Needs packhorse installed (or on PYTHONPATH) and pytest. The errors are those that the tests check:
the largest absolute difference from transformers in float32 over all numbers of the batch, for the
first of OUTPUTS that a model has. Causal language models are loaded as rerankers, whose error is
that of the difference of two tokens' logits.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import packhorse
from packhorse_weights import resolve_model

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "experiments" / "model_errors.md"
HEADER = ("| family | model | device | dtype | error |", "|---|---|---|---|---|")
DTYPES = ("float32", "float16", "bfloat16")
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


def rows(page: str) -> dict[tuple[str, str, str], tuple[str, str]]:
    """Reads (model, device, dtype) -> (family, error) from the page."""
    row = re.compile(r"^\| (.+?) \| (.+?) \| (.+?) \| (b?float\d+) \| (.+?) \|$", re.M)
    return {(found[2], found[3], found[4]): (found[1], found[5]) for found in row.finditer(page)}


def main() -> None:
    page = PAGE.read_text()
    table = rows(page)
    folders = sorted(path.parent for path in (ROOT / "tests" / "golden").glob("*/golden.npz"))
    names = {folder.name for folder in folders}
    table = {key: value for key, value in table.items() if key[0] in names}
    for folder in folders:
        family = resolve_model(folder).spec["family"]
        for name in packhorse.available_devices():
            device = name.split(":")[0]
            for dtype in DTYPES:
                error = measure(folder, name, dtype)
                if error is not None:
                    table[folder.name, device, dtype] = (str(family), error)
                    print(json.dumps([folder.name, device, dtype, error]), file=sys.stderr)
    ordered = sorted(table.items(), key=lambda row: (row[1][0], row[0]))
    lines = [
        f"| {family} | {model} | {device} | {dtype} | {error} |"
        for (model, device, dtype), (family, error) in ordered
    ]
    start = page.index(HEADER[0])
    PAGE.write_text("\n".join([page[:start] + HEADER[0], HEADER[1], *lines]) + "\n")


if __name__ == "__main__":
    main()
