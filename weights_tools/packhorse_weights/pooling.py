"""How a sequence becomes one vector: the files that sentence-transformers writes."""

from __future__ import annotations

import json
from pathlib import Path

from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import child, read_bytes, read_json

# Names of sentence-transformers -> ours; None: not supported.
_MODES: dict[str, str | None] = {
    "cls": "cls",
    "mean": "mean",
    "max": "max",
    "lasttoken": "last",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": None,
}
# The older form: one flag for each mode.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """(kind, folder) of each module of modules.json in order; empty where there is no such file."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    try:
        modules = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise CheckpointError(f"{path}: expected a list of modules")
    return [
        (str(m.get("type")).rpartition(".")[2], child(folder, m.get("path"), str(path)))
        for m in modules
    ]


def pooling_mode(path: Path) -> str:
    """`embedding.pooling` of the spec, from the config of a Pooling module."""
    config = read_json(path)
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for flag, mode in _FLAGS.items() if config.get(flag) is True]
    elif isinstance(modes, str):
        modes = [modes]
    if config.get("include_prompt") is False:
        raise CheckpointError(f"{path}: include_prompt = false is not supported")
    if not isinstance(modes, list) or not modes:
        raise CheckpointError(f"{path}: no pooling mode is set")
    if len(modes) > 1:
        raise CheckpointError(
            f"{path}: a concatenation of pooling modes ({', '.join(map(str, modes))}) is not "
            "supported"
        )
    mode = modes[0]
    ours = _MODES.get(mode) if isinstance(mode, str) else None
    if ours is None:
        known = ", ".join(name for name, value in _MODES.items() if value)
        raise CheckpointError(
            f"{path}: pooling mode {mode!r:.80} is not supported; supported: {known}"
        )
    return ours


def read_max_length(folder: Path, max_seqlen: int) -> int | None:
    """Where a tokenizer should truncate, special tokens included; None where nothing says so."""
    found: list[object] = [
        read_json(path).get("max_seq_length")
        for path in sorted(folder.glob("sentence_*_config.json"))
    ]
    tokenizer = folder / "tokenizer_config.json"
    if tokenizer.is_file():
        found.append(read_json(tokenizer).get("model_max_length"))
    for value in found:
        if type(value) is int and value > 0:
            return min(value, max_seqlen)  # "no limit" is written as a huge number
    return None
