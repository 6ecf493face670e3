"""A model in some dtypes beside the same model in float32."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from packhorse_weights.spec import has_encoder_decoder, hears

from packhorse.dtypes import choose_dtype, dtypes_of
from packhorse.evaluation.embeddings import Embed, EmbedSparse, EmbedTokens
from packhorse.evaluation.generators import Generate
from packhorse.evaluation.heads import Answer, Classify, ClassifyTokens, Score
from packhorse.evaluation.items import Entry
from packhorse.evaluation.measures import Comparison, Evaluation
from packhorse.evaluation.passages import read_passages
from packhorse.evaluation.task import Task
from packhorse.heads import methods_for
from packhorse.load_options import READING, LoadOptions, ModelPath
from packhorse.planning import plan_memory
from packhorse.text import TextModel

Progress = Callable[[int, int | None], object]
_TASKS: Mapping[str, type[Task]] = {
    one.name: one
    for one in (
        Embed,
        Score,
        Classify,
        ClassifyTokens,
        Answer,
        EmbedSparse,
        EmbedTokens,
        Generate,
    )
}


def _is_quantized(stored: str) -> bool:
    """True if weights stored in this dtype cannot be loaded in float32."""
    try:
        choose_dtype("float32", "cpu", stored)
    except ValueError:
        return True
    return False


def _choose_task(model: ModelPath, spec: Mapping[str, Any], load: Mapping[str, Any]) -> str:
    """The task that a model is compared by. A model that gives several kinds of vectors, or that
    fills masks, is compared by its embeddings."""
    reading = {name: load[name] for name in READING if name in load}
    if LoadOptions(**reading).generates(model, dict(spec)):
        return "generate"
    methods = [method for method in methods_for(spec) if method in _TASKS]
    several = {"embed_sparse", "embed_tokens"} <= set(methods)
    own = [method for method in methods if method != "generate"]
    return "embed" if several or not own else own[0]


def _choose_dtypes(
    model: ModelPath, stored: str, device: str, reading: Mapping[str, Any], kv_tokens: int
) -> list[str]:
    """Dtypes other than float32 that the device and the files have."""
    found = []
    for name in dtypes_of(device):
        try:
            dtype = choose_dtype(name, device, stored)
        except ValueError:  # the files have their weights in another form
            continue
        try:
            plan_memory(model, device, dtype, kv_tokens=kv_tokens, **reading)
        except RuntimeError:  # this processor has no arithmetic of it
            continue
        if name != "float32":
            found.append(name)
    if not found:
        raise RuntimeError(f"{fspath(model)}: {device} has no dtype to compare with float32")
    return found


def _digest(items: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(items).encode()).hexdigest()[:16]


def evaluate(
    model: str | PathLike[str],
    texts: Iterable[Entry] | None = None,
    *,
    dtypes: Sequence[str] | None = None,
    device: str = "cpu",
    task: str | None = None,
    reference: str | PathLike[str] | None = None,
    count: int | None = None,
    source: str = "texts of the caller",
    progress: Progress | None = None,
    **load: Any,
) -> Evaluation:
    """Compares a model in some dtypes with the same model in float32 on the CPU, on text.

    model      a folder or name, as of `TextModel.load`
    texts      str, or mappings with the fields of the task: "text", and "text_pair" of classifiers;
               "query" and "documents" of rerankers; "question" and "context" of readers. Of str a
               reranker or reader takes the first lines as queries or questions. None: docstrings of
               Python's library (`read_passages`)
    dtypes     by default all but float32 that the device and the model's files have
    task       the method of `TextModel` to compare; None: what the model is for
    reference  the model in float32, where `model` itself holds int8 weights; None: `model`
    count      most texts; None: 2,000, or 100 of a model that generates, whose texts are cut at 512
               tokens and of which the first 16 are gone on with by 64 greedy tokens
    source     what the texts are, for people
    progress   called with (texts done, texts in total), of all dtypes together
    load       other arguments of `TextModel.load`; `kv_cache_dtype` is of the dtypes that are
               compared, not of the reference

    Raises ValueError: a task that the model or `texts` do not fit; fewer texts than the task takes;
    and what `TextModel.load` raises. RuntimeError: a dtype that the device does not have.
    """
    from packhorse_weights import inspect_checkpoint

    if task is not None and task not in _TASKS:
        raise ValueError(f"task {task!r:.80} is not one of {', '.join(_TASKS)}")
    reading = {name: load[name] for name in READING if name in load}
    checkpoint = inspect_checkpoint(model, **reading)
    if has_encoder_decoder(checkpoint.spec):
        made = "speech" if hears(checkpoint.spec) else "texts"
        raise ValueError(
            f"{fspath(model)} makes texts of {made}: evaluate compares vectors, scores, labels and "
            "language models"
        )
    stored = checkpoint.stored_dtype
    if reference is None and _is_quantized(stored):
        raise ValueError(
            f"{fspath(model)} holds its weights in {stored} alone: name the model that it was "
            "converted from as the reference in float32"
        )
    chosen = _TASKS[task or _choose_task(model, checkpoint.spec, load)]()
    if not dtypes:
        kv_tokens = chosen.load["kv_tokens"]
        dtypes = _choose_dtypes(model, stored, device, reading, kv_tokens)
    count = chosen.default_count if count is None else count
    if texts is None:
        texts = [passage.text for passage in read_passages(count)]
        source = f"documentation of Python {platform.python_version()}"
    entries = [entry for _, entry in zip(range(count), texts, strict=False)]
    items = chosen.items(entries)
    if len(items) < chosen.least:
        raise ValueError(f"{source}: {len(items)} texts, expected at least {chosen.least}")

    def results(path: ModelPath, device: str, dtype: str, number: int, options: Any) -> Any:
        def report(done: int, total: int | None) -> None:
            if progress is not None and total is not None:
                progress(number * total + done, (1 + len(dtypes)) * total)

        given: Any = {**chosen.load, **options, "device": device, "dtype": dtype}
        with TextModel.load(path, **given, progress=False) as loaded:
            return loaded.session.device, chosen.run(loaded, items, report)

    exact = {name: value for name, value in load.items() if name != "kv_cache_dtype"}
    if reference is not None:
        exact.pop("revision", None)
    if progress is not None:
        progress(0, None)
    _, expected = results(reference or model, "cpu", "float32", 0, exact)
    comparisons = []
    for number, dtype in enumerate(dtypes, 1):
        place, found = results(model, device, dtype, number, load)
        cache = load.get("kv_cache_dtype")
        name = dtype if cache is None else f"{dtype}, cache in {cache}"
        comparisons.append(Comparison(name, place, *chosen.compare(found, expected)))
    return Evaluation(
        model=fspath(model),
        reference=fspath(reference or model),
        task=chosen.name,
        source=source,
        count=len(items),
        digest=_digest(items),
        comparisons=comparisons,
    )
