"""Embeds files of texts, or a dataset, on a cluster: Parquet out, every fragment once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import numpy as np

from packhorse.load_options import ONLY_SPEED, ModelPath
from packhorse.ray.embedder import check_options, portable_path, require_ray

if TYPE_CHECKING:
    import ray.data

    from packhorse.ray.fragments import Fragment
    from packhorse.ray.places import Folder
    from packhorse.ray.worker import EmbeddingJob

Inputs = str | PathLike[str] | Sequence[str | PathLike[str]]

_STAGED = "_input"  # in the output folder: a copy of a dataset, which has no fragments of its own
_MOST_BLOCKS = 10_000  # fragments share blocks from there on: Ray keeps an account of each block


@dataclass(frozen=True)
class Embedded:
    """Result of a call of `embed`.

    output     the folder
    fragments  how many parts of the input there are, each with a file in the folder
    skipped    how many of them had been done before
    rows       how many rows were embedded now
    """

    output: str
    fragments: int
    skipped: int
    rows: int


def embed(
    inputs: ray.data.Dataset | Inputs,
    model: ModelPath,
    *,
    output: str | PathLike[str],
    column: str = "text",
    embedding_column: str = "embedding",
    keep: Sequence[str] | None = None,
    workers: int | None = None,
    num_cpus: int | None = None,
    num_gpus: float = 0,
    fragment_bytes: int = 1 << 24,
    load: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], object] | None = None,
    **options: Any,
) -> Embedded:
    """Writes Parquet files with an embedding of every text of the inputs to the folder `output`.

    The input is cut into fragments: whole row groups of a Parquet file, whole lines of others. An
    actor reads a fragment itself, and its results appear as one file, whole or not at all. A call
    after a worker, the driver or a machine was killed does what is missing and nothing else, and so
    does a call with more files. Rows keep their order; a row whose text is null has a null
    embedding. One call at a time may write to a folder.

    inputs            Parquet files (`.parquet`), JSON lines (`.jsonl`, `.ndjson`) or lines of text
                      (`.txt`; the latter two also as .gz, .zst, .bz2): paths, folders, patterns, or
                      URIs (s3://, gs://, hdfs://). Or a Dataset of Ray, which is copied to the
                      output folder first, and is removed from there at the end
    model             a folder that all machines have, or a name on the Hugging Face hub
    output            a folder on a disk that all machines share, or a URI
    column            the column of texts; of text files, what it is called in the output
    embedding_column  the new column: lists of a fixed size, of the dtype that `options` say
    keep              columns of the input to copy; None: all
    workers           how many sessions; None: as many as the cluster has room for
    num_cpus          CPUs of each, its threads; None: up to 4 of a machine, with a GPU 1
    num_gpus          GPUs of each; a fraction lets several share one
    fragment_bytes    about how much text is in a fragment, uncompressed: what is lost at most when
                      a worker dies. A row group is never cut
    load              arguments of `TextModel.load`
    progress          called with (fragments done, fragments in total)
    options           arguments of `TextModel.embed`, such as `prompt_name` or `dtype`

    Uses the Ray that is initialised, or initialises it (`ray.init`).

    Raises FileNotFoundError for inputs that are not there; ValueError for input that has no such
    column, for a folder that was begun with other settings, and for arguments that are wrong;
    RuntimeError if fragments failed: all others have been written, the first error is named, and a
    call with the same arguments tries them again; and if no worker can load the model.
    ModuleNotFoundError without the extra `ray`.
    """
    require_ray()
    import ray

    from packhorse.ray.places import Folder
    from packhorse.ray.worker import EmbeddingJob

    if fragment_bytes < 1:
        raise ValueError(f"fragment_bytes is {fragment_bytes}, expected at least 1")
    check_options(options)
    model = portable_path(model)
    folder = Folder(fspath(output))
    settings = {
        "model": model,
        "column": column,
        "embedding_column": embedding_column,
        "keep": None if keep is None else list(keep),
        "load": _said({k: v for k, v in (load or {}).items() if k not in ONLY_SPEED}),
        "options": _said(options),
    }
    fragments = _plan(inputs, folder, settings, fragment_bytes, column)
    folder.remove_partial()
    done = folder.names()
    todo = [fragment for fragment in fragments if fragment.output not in done]
    skipped = len(fragments) - len(todo)
    rows, errors = 0, []
    if todo:
        if not ray.is_initialized():
            ray.init()
        embedder = {"column": column, "embedding_column": embedding_column, "load": load, **options}
        job = EmbeddingJob(model, embedder, column, embedding_column, keep, folder)
        finished = skipped
        for outcome in _run(todo, job, workers, num_cpus, num_gpus):
            finished += 1
            rows += int(outcome["rows"])
            if outcome["error"]:
                errors.append(str(outcome["error"]))
            if progress is not None:
                progress(finished, len(fragments))
        folder.remove_partial()
    if errors:
        raise RuntimeError(
            f"{len(errors)} of {len(fragments)} fragments failed, the others are written; the same "
            f"call again tries them again. The first: {errors[0]}"
        )
    missing = {fragment.output for fragment in fragments} - folder.names()
    if missing:
        raise RuntimeError(f"{folder.place}: {len(missing)} files are missing: {min(missing)}")
    folder.remove(_STAGED)
    return Embedded(folder.place, len(fragments), skipped, rows)


def _said(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as a plan keeps them: without those that say nothing, in values of JSON."""
    values = {name: value for name, value in given.items() if value is not None}
    if values.get("dtype") == "float32":
        del values["dtype"]
    if "ranges" in values:
        values["ranges"] = np.asarray(values["ranges"]).tolist()
    return values


def _plan(
    inputs: Any, folder: Folder, settings: Mapping[str, Any], fragment_bytes: int, column: str
) -> list[Fragment]:
    """The fragments of the inputs and of those that the folder was given before."""
    import ray.data

    from packhorse.ray.fragments import SUFFIXES
    from packhorse.ray.places import find_files
    from packhorse.ray.plan import Plan

    plan = Plan.read(folder)
    if plan is not None:
        plan.check_settings(settings, folder)
    if isinstance(inputs, ray.data.Dataset):
        if plan is not None:  # the copy was complete when the plan was written
            return list(plan.fragments())
        folder.remove(_STAGED)
        inputs.write_parquet(f"{folder.place}/{_STAGED}")
        inputs = f"{folder.place}/{_STAGED}"
    places = [inputs] if isinstance(inputs, str | PathLike) else list(inputs)
    files = find_files([fspath(place) for place in places], SUFFIXES)
    plan = plan or Plan(settings, [])
    if plan.add(files, fragment_bytes, column):
        plan.write(folder)
    return list(plan.fragments())


def _run(
    fragments: Sequence[Fragment],
    job: EmbeddingJob,
    workers: int | None,
    num_cpus: int | None,
    num_gpus: float,
) -> Iterator[Mapping[str, Any]]:
    """Yields the outcome of each fragment as it comes. Actors that die are replaced, and what they
    had is given out again."""
    import ray.data
    import ray.exceptions

    from packhorse.ray.worker import FragmentWorker

    cpus = _cpus(num_cpus, num_gpus)
    room = _room(cpus, num_gpus)
    blocks = min(len(fragments), _MOST_BLOCKS)
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    with ray.data.DataContext.current(context):
        dataset = ray.data.from_items(
            [fragment._asdict() for fragment in fragments], override_num_blocks=blocks
        ).map_batches(
            FragmentWorker,
            fn_constructor_args=[job],
            batch_size=1,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(
                size=min(workers or room, blocks),
                # One call reads or writes while another computes; both share the session's batches.
                max_concurrent_calls_per_actor=2,
                enable_true_multi_threading=True,
            ),
            num_cpus=cpus,
            num_gpus=num_gpus or None,
        )
        try:
            yield from dataset.iter_rows()
        except ray.exceptions.RayError as error:  # its last line is the error of a worker itself
            said = str(error).strip().rpartition("\n")[2]
            raise RuntimeError(f"the workers cannot go on: {said}") from error


def _cpus(num_cpus: int | None, num_gpus: float) -> int:
    """CPUs of a worker."""
    import ray

    if num_cpus is not None:
        if num_cpus < 1:
            raise ValueError(f"num_cpus is {num_cpus}, expected at least 1")
        return num_cpus
    if num_gpus:
        return 1
    sizes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    return min(4, max(sizes, default=1)) or 1


def _room(cpus: int, num_gpus: float) -> int:
    """Number of workers that the cluster has room for now. Raises ValueError for none."""
    import ray

    room = 0
    for node in ray.nodes():
        if node["Alive"]:
            there = node["Resources"]
            counts = [there.get("CPU", 0) // cpus]
            if num_gpus:
                counts.append(there.get("GPU", 0) // num_gpus)
            room += int(min(counts))
    if room == 0:
        raise ValueError(
            f"no machine of the cluster has {cpus} CPUs and {num_gpus:g} GPUs for a worker"
        )
    return room
