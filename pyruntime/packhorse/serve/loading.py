"""Models loaded as the settings say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packhorse.serve.metrics import Metrics
from packhorse.serve.model import ServedModel
from packhorse.serve.settings import ModelSettings, Settings
from packhorse.serve.tokenizing import TokenizerPool
from packhorse.text import TextModel


def load_model(
    settings: ModelSettings, server: Settings, pool: TokenizerPool, metrics: Metrics
) -> ServedModel:
    """Loads a model on each of its devices, and starts its threads. Raises as `TextModel.load`."""
    given = server.of_model(settings)
    options: dict[str, Any] = {
        "dtype": given.dtype,
        "max_length": given.max_length,
        "max_tokens": given.max_batch_tokens,
        "kv_tokens": given.kv_tokens,
        "revision": given.revision,
        "pooling": _poolings(given.pooling),
        "normalize": given.normalize,
        "reranker": _template(given.reranker),
    }
    replicas: list[TextModel] = []
    try:
        for device in given.device or ("cpu",):
            threads = given.threads if device == "cpu" else None
            replicas.append(TextModel.load(given.path, device, threads=threads, **options))
        return ServedModel(given, server, replicas, pool, metrics)
    except BaseException:
        for replica in replicas:
            replica.close()
        raise


def _poolings(pooling: str | None) -> Any:
    names = [] if pooling is None else pooling.split(",")
    return names[0] if len(names) == 1 else names or None


def _template(reranker: str | None) -> Any:
    if reranker is None or not reranker.endswith(".json"):
        return reranker
    from packhorse_weights.files import read_json

    return read_json(Path(reranker))
