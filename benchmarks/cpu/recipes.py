"""Cost in accuracy of recipes of low precision, computed in NumPy.

    python benchmarks/cpu/recipes.py minilm|smollm2|sums [--texts N] [--shortest] [--intervals]
        [--only PART ...] [--output FILE]

minilm   embeddings of all-MiniLM-L6-v2 beside float32, of the passages of `packhorse evaluate`
smollm2  log-probabilities of SmolLM2-135M-Instruct beside float32, of passages joined
sums     errors of the sums of FP8 tensor cores, by how often they are promoted

--shortest takes the N shortest of 2,000 passages instead of the first N. --intervals takes recipes
whose sums are those of FP8 tensor cores. Prints a row of a table for each recipe whose name holds
a PART, and writes them as JSON to FILE. The recipes are those of
tests/python/support/reference_low_precision.py, which the kernels are tested against. See
docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
from packhorse.evaluation.passages import read_passages
from packhorse.evaluation.statistics import (
    cosines,
    neighbour_agreement,
    pair_scores,
    rank_correlation,
)
from packhorse.text import TextTokenizer
from packhorse_weights.checkpoint import inspect_checkpoint

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "examples"), str(ROOT / "tests" / "python" / "support")]
import reference_heads  # noqa: E402
from reference_encoder import Exact, encoder  # noqa: E402
from reference_low_precision import (  # noqa: E402
    FLOAT8,
    Bounds,
    Calibration,
    Form,
    LowPrecision,
    Recipe,
    hopper_sum,
    quantize,
)
from sample import find_language_model, find_model  # noqa: E402

Row = dict[str, Any]
_BATCH = 16  # texts; what "per tensor" means follows from it
_CALIBRATION = 64  # passages, which are not those that are measured


class Model:
    def __init__(self, path: Path) -> None:
        checkpoint = inspect_checkpoint(path)
        self.spec = checkpoint.spec
        self.tensors = {
            ours: np.concatenate([part.ravel() for part in checkpoint.tensors[theirs].blocks()])
            .astype(np.float32)
            .reshape(checkpoint.tensors[theirs].shape)
            for ours, theirs in checkpoint.names.items()
        }
        self.tokenizer = TextTokenizer.load(path)

    def hidden(self, batch: packhorse.PackedTokens, arithmetic: Exact) -> Any:
        return encoder(
            self.spec, self.tensors, batch.ids, batch.cu_seqlens, arithmetic=arithmetic
        ).astype(np.float32)


def batches(model: Model, texts: list[str], longest: int) -> list[packhorse.PackedTokens]:
    ids = model.tokenizer.encode(texts, longest).ids
    return [packhorse.pack(ids[i : i + _BATCH]) for i in range(0, len(ids), _BATCH)]


# --- recipes


def _fp8(head: int, **changes: Any) -> Recipe:
    """Recipe of the kernels: a scale per token, per token and 128 columns, per token and head."""
    e4m3: Callable[..., Form] = lambda per: Form("e4m3", per)  # noqa: E731
    made = Recipe(e4m3("row"), e4m3("row"), e4m3(head), e4m3(128), other="float16")
    return replace(made, **changes)


def _all_inputs(number: Any, per: Any, weights: Form, **changes: Any) -> Recipe:
    form = Form(number, per)
    return Recipe(weights, form, form, form, **changes)


def dense_recipes(head: int) -> dict[str, Recipe]:
    e4m3, int8 = Form("e4m3"), Form("int8")
    half: Any = {"other": "float16"}
    fp8 = _fp8(head)
    found = {
        "float16: nothing but 16 bits": Recipe(other="float16"),
        "bfloat16: nothing but 16 bits": Recipe(other="bfloat16"),
        "FP8, the kernels' recipe": fp8,
        "FP8, a session's recipe: bounds from weights but for norms": FLOAT8,
        "FP8, weights alone": Recipe(e4m3, **half),
        "FP8, inputs alone, the kernels' scales": replace(fp8, weights=None),
        "FP8, norms' outputs alone": Recipe(norm=e4m3, **half),
        "FP8, attention's output alone": Recipe(attention=Form("e4m3", head), **half),
        "FP8, inner activations alone": Recipe(inner=Form("e4m3", 128), **half),
        "FP8, inputs per token": _all_inputs("e4m3", "row", e4m3, **half),
        "FP8, inputs per token and 128 columns": _all_inputs("e4m3", 128, e4m3, **half),
        "FP8, inputs per tensor": _all_inputs("e4m3", "tensor", e4m3, **half),
        "FP8, inputs static": _all_inputs("e4m3", "row", e4m3, static=True, **half),
        "FP8, weights per tensor too": replace(fp8, weights=Form("e4m3", "tensor")),
    }
    found |= {
        "int8 as on the CPU: 0 to 255 per token, float32 beside": _all_inputs("uint8", "row", int8),
        "int8 as on a GPU: -127 to 127 per token, float16 beside": _all_inputs(
            "int8", "row", int8, **half
        ),
        "int8 on a GPU with zero points: 0 to 255 per token, float16 beside": _all_inputs(
            "uint8", "row", int8, **half
        ),
        "int8, 0 to 255 per token and 128 columns": _all_inputs("uint8", 128, int8),
        "int8, -127 to 127 per token and 128 columns": _all_inputs("int8", 128, int8, **half),
        "int8, inputs per tensor": _all_inputs("int8", "tensor", int8, **half),
        "int8, inputs static": _all_inputs("int8", "row", int8, static=True, **half),
        "int8, weights alone": Recipe(int8),
        "int8, inputs alone, 0 to 255 per token": replace(
            _all_inputs("uint8", "row", int8), weights=None
        ),
    }
    for name in list(found):
        if name.endswith(("the kernels' recipe", "per tensor", "static", "beside")) and "8" in name:
            found[f"{name}, smoothed"] = replace(found[name], smooth=0.5)
    for columns in (32, 64, 128):
        for number, kind in (("int4", "symmetric"), ("uint4", "with zero points")):
            name = f"int4 weights, groups of {columns}, {kind}"
            found[name] = Recipe(Form(number, columns), **half)  # type: ignore[arg-type]
    found["int8 weights, groups of 32"] = Recipe(Form("int8", 32), **half)
    return found


def cache_recipes(head: int) -> dict[str, Recipe]:
    return {
        f"8-bit cache, {name}": Recipe(cache=Form(number, per), other="float16")  # type: ignore
        for number, per, name in (
            ("e4m3", head, "e4m3 per token and head"),
            ("int8", head, "int8 per token and head"),
            ("e4m3", "row", "e4m3 per token"),
            ("e4m3", "tensor", "e4m3 per tensor"),
        )
    }


def interval_recipes(head: int) -> dict[str, Recipe]:
    """`interval` 0: sums that are never promoted."""
    return {
        f"FP8, the kernels' recipe, {name}": _fp8(head, interval=interval)
        for interval, name in (
            (32, "promoted every 32"),
            (64, "promoted every 64"),
            (128, "promoted every 128"),
            (256, "promoted every 256"),
            (0, "never promoted"),
        )
    }


# --- models


def choose_texts(count: int, shortest: bool) -> tuple[list[str], list[str]]:
    """(those to measure, those to calibrate with, which are others)."""
    passages = [one.text for one in read_passages(max(count, 2000) + _CALIBRATION)]
    order = sorted(passages[:2000], key=len) if shortest else passages
    return order[:count], passages[-_CALIBRATION:]


def minilm(recipes: Mapping[str, Recipe], texts: list[str], others: list[str]) -> Iterator[Row]:
    model = Model(find_model())
    measured = batches(model, texts, 256)

    def embed(arithmetic: Exact) -> Any:
        return np.concatenate(
            [
                reference_heads.embedding(
                    model.spec, model.tensors, model.hidden(batch, arithmetic), batch.cu_seqlens
                )
                for batch in measured
            ]
        ).astype(np.float32)

    calibration = Calibration()
    for batch in batches(model, others, 256):
        model.hidden(batch, calibration)
    with packhorse.TextModel.load(find_model(), dtype="float32", max_length=256) as library:
        expected = library.embed(texts)
    for name, recipe in recipes.items():
        start = time.perf_counter()
        known = Bounds(model.spec, model.tensors) if recipe is FLOAT8 else calibration
        found = embed(LowPrecision(recipe, model.tensors, known))
        cos = cosines(found, expected)
        _, ten = neighbour_agreement(found, expected, 10)
        yield {
            "recipe": name,
            "cosine, smallest": float(cos.min()),
            "cosine, 1 %": float(np.percentile(cos, 1)),
            "cosine, median": float(np.median(cos)),
            "nearest 10 the same": ten,
            "rank correlation": rank_correlation(pair_scores(found), pair_scores(expected)),
            "furthest text": repr(texts[int(cos.argmin())][:30]),
            "seconds": time.perf_counter() - start,
        }


def _log_probabilities(model: Model, batch: packhorse.PackedTokens, by: Exact) -> tuple[Any, Any]:
    """(log-probability of each token but the first of its text, most probable token there)."""
    hidden = model.hidden(batch, by)
    scores, best = [], []
    for begin, end in itertools.pairwise(batch.cu_seqlens):
        rows = hidden[begin : end - 1]
        logits = rows @ model.tensors["embeddings.word"].T
        largest = logits.max(axis=1, keepdims=True)
        total = np.log(np.exp(logits - largest).sum(axis=1)) + largest[:, 0]
        targets = batch.ids[begin + 1 : end]
        scores.append(logits[np.arange(len(rows)), targets] - total)
        best.append(logits.argmax(axis=1))
    return np.concatenate(scores), np.concatenate(best)


def smollm2(recipes: Mapping[str, Recipe], texts: list[str], others: list[str]) -> Iterator[Row]:
    model = Model(find_language_model())
    measured = batches(model, texts, 256)

    def run(arithmetic: Exact) -> tuple[Any, Any]:
        found = [_log_probabilities(model, batch, arithmetic) for batch in measured]
        return np.concatenate([a for a, _ in found]), np.concatenate([b for _, b in found])

    calibration = Calibration()
    for batch in batches(model, others[:16], 256):
        model.hidden(batch, calibration)
    expected, best = run(LowPrecision(Recipe(), model.tensors))
    yield {"recipe": "float32", "perplexity": float(np.exp(-expected.mean())), "tokens": len(best)}
    for name, recipe in recipes.items():
        start = time.perf_counter()
        found, other = run(LowPrecision(recipe, model.tensors, calibration))
        difference = np.abs(found - expected)
        yield {
            "recipe": name,
            "perplexity": float(np.exp(-found.mean())),
            "difference, mean": float(difference.mean()),
            "difference, largest": float(difference.max()),
            "most probable the same": float((other == best).mean()),
            "seconds": time.perf_counter() - start,
        }


def sums(_recipes: object, _texts: object, _others: object) -> Iterator[Row]:
    """Relative error (root mean square over that of the results) of sums of random e4m3 numbers;
    "one sign": no number is negative, so that the sum grows with its length."""
    random = np.random.default_rng(0)
    for columns in (384, 768, 1536, 3072, 4096):
        for name in ("both signs", "one sign"):
            x, w = random.normal(0, 1, (64, columns)), random.normal(0, 1, (64, columns))
            if name == "one sign":
                x, w = np.abs(x), np.abs(w)
            a, b = (quantize(part, Form("e4m3")).q for part in (x, w))
            exact = a.astype(np.float64) @ b.T.astype(np.float64)
            row: Row = {"recipe": f"{columns} columns, {name}"}
            for interval in (32, 64, 128, 256, 512, None):
                error = hopper_sum(a, b, interval) - exact
                size = np.sqrt(np.square(error).mean() / np.square(exact).mean())
                row["never" if interval is None else str(interval)] = float(size)
            rounded = np.sqrt(
                np.square(
                    quantize(x, Form("e4m3")).values() @ quantize(w, Form("e4m3")).values().T
                    - x @ w.T
                ).mean()
                / np.square(x @ w.T).mean()
            )
            yield row | {"of rounding to e4m3": float(rounded)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("minilm", "smollm2", "sums"))
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--shortest", action="store_true", help="the shortest of 2,000 passages")
    parser.add_argument("--only", nargs="+", default=[""])
    parser.add_argument(
        "--intervals", action="store_true", help="compare intervals of promoting sums"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    head = {"minilm": 32, "smollm2": 64}.get(options.what, 0)
    recipes = interval_recipes(head) if options.intervals else dense_recipes(head)
    if options.what == "smollm2" and not options.intervals:
        recipes |= cache_recipes(head)
    chosen = {
        name: one for name, one in recipes.items() if any(part in name for part in options.only)
    }
    run = {"minilm": minilm, "smollm2": smollm2, "sums": sums}[options.what]
    rows: list[Row] = []
    for row in run(chosen, *choose_texts(options.texts, options.shortest)):
        rows.append(row)
        shown = [one if isinstance(one, str) else f"{one:.4g}" for one in row.values()]
        if len(rows) <= 2:
            print("| " + " | ".join(row) + " |")
        print("| " + " | ".join(shown) + " |", flush=True)
        if options.output is not None:
            given = {name: value for name, value in vars(options).items() if name != "output"}
            named = {**given, "rows": rows}
            options.output.write_text(json.dumps(named, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
