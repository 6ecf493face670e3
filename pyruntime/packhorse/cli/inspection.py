"""`packhorse inspect`: what a model is, and what a session of it takes."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import packhorse_weights

from packhorse import plan_memory
from packhorse.cli.tables import show_rows


def _bytes(count: int) -> str:
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def show(
    path: Path,
    dtype: str,
    max_tokens: int,
    max_sequences: int,
    reranker: packhorse_weights.Reranker | None,
) -> None:
    """Prints two tables. Raises ValueError for a model that cannot be read or run."""
    checkpoint = packhorse_weights.inspect_checkpoint(path, reranker)
    spec = checkpoint.spec
    # First, because it checks the spec: what follows may then rely on its fields.
    plan = plan_memory(spec, dtype=dtype, max_tokens=max_tokens, max_sequences=max_sequences)
    used = [checkpoint.tensors[theirs] for theirs in checkpoint.names.values()]
    dtypes = Counter(tensor.dtype for tensor in used)
    heads = spec["num_heads"]
    embedding = spec.get("embedding", {})
    pooling = embedding.get("pooling", "not said")

    rows = {
        "family": spec.get("family", "not said"),
        "form": "converted" if checkpoint.converted else f"Hugging Face ({checkpoint.format})",
        "weights": f"{', '.join(dtypes)}, {_bytes(sum(t.data.nbytes for t in used))}"
        + (f" in {len(checkpoint.files)} files" if len(checkpoint.files) > 1 else ""),
        "parameters": f"{sum(math.prod(tensor.shape) for tensor in used):,}",
        "vocabulary": f"{spec['vocab_size']:,}",
        "hidden size": str(spec["hidden_size"]),
        "layers": str(spec["num_layers"]),
        "heads": f"{heads} of {spec.get('head_dim', spec['hidden_size'] // heads)}",
        "feed-forward": f"{spec['intermediate_size']}, {spec['ffn']['activation']}",
        "longest sequence": f"{spec.get('max_seqlen') or spec['positions']['count']} tokens"
        + (f", tokenizer truncates to {spec['max_length']}" if "max_length" in spec else ""),
        "pooler head": "yes" if "pooler" in spec.get("heads", {}) else "no",
        "embedding": (" + ".join(pooling) if isinstance(pooling, list) else str(pooling))
        + (", normalised to length 1" if embedding.get("normalize") else ""),
    }
    show_rows(str(path), rows.items())

    memory = [
        ("weights", _bytes(plan.weights.bytes)),
        ("arena", _bytes(plan.arena.bytes)),
        *((f"  {buffer.name}", _bytes(buffer.bytes)) for buffer in plan.arena.buffers),
        ("total", _bytes(plan.total_bytes)),
    ]
    title = f"Memory at {max_tokens} tokens, {max_sequences} sequences, {dtype}"
    show_rows(f"{title} (buffers never in use together share bytes)", memory, numbers=True)
