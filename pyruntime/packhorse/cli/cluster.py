"""`packhorse embed --ray`: files to Parquet files of vectors, on the machines of a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

_CLUSTER = "On a Ray cluster (--ray)"  # heading of these options in the help


@dataclass(frozen=True)
class Cluster:
    """Options of a command that may run on a Ray cluster."""

    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            rich_help_panel=_CLUSTER,
            help="Embed whole files on a Ray cluster: FILE... are Parquet files, JSON lines, lines "
            "of text, or folders of them; --output is a folder of Parquet files. Run again, it "
            "does what is missing.",
        ),
    ] = False
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            rich_help_panel=_CLUSTER,
            help="The cluster, such as auto or host:6379; by default RAY_ADDRESS, or a cluster "
            "of this machine alone.",
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            rich_help_panel=_CLUSTER,
            help="Sessions; by default as many as there is room for.",
        ),
    ] = None
    cpus_per_worker: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            rich_help_panel=_CLUSTER,
            help="CPUs of each, its threads; by default up to 4, with a GPU 1.",
        ),
    ] = None
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="N",
            rich_help_panel=_CLUSTER,
            help="GPUs of each, or a part of one; by default 1 with --device cuda.",
        ),
    ] = None
    column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_CLUSTER,
            help="The column or field of texts; by default text.",
        ),
    ] = None
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_CLUSTER,
            help="A column to copy to the output; may be repeated; by default all.",
        ),
    ] = None

    def check_unused(self) -> None:
        """Raises ValueError for an option that has no effect without --ray."""
        for name, value in vars(self).items():
            if value not in (None, False):
                raise ValueError(f"--{name.replace('_', '-')} has no effect without --ray")


def embed_folders(
    model: str,
    inputs: Sequence[str],
    output: str | None,
    cluster: Cluster,
    load: dict[str, Any],
    embed: dict[str, Any],
) -> None:
    """Embeds files on the cluster, and says on stderr what was done."""
    import packhorse.ray
    from packhorse.cli.progress import count_progress
    from packhorse.ray.embedder import require_ray

    if output is None:
        raise ValueError("--ray needs a folder to write to: name one with -o")
    if "-" in inputs:
        raise ValueError("--ray reads files, not stdin")
    gpus, device = cluster.gpus_per_worker, load.get("device", "cpu")
    if gpus is None:
        gpus = 0 if device == "cpu" else 1
    if (gpus == 0) != (device == "cpu"):
        raise ValueError(f"--gpus-per-worker {gpus:g} with --device {device}")
    require_ray()
    _connect(cluster.address)
    with count_progress("embedding") as report:
        done = packhorse.ray.embed(
            inputs,
            model,
            output=output,
            column=cluster.column or "text",
            keep=cluster.keep or None,
            workers=cluster.workers,
            num_cpus=cluster.cpus_per_worker,
            num_gpus=gpus,
            load=load,
            progress=report,
            **embed,
        )
    print(
        f"packhorse: {done.rows} rows to {done.output}, "
        f"{done.fragments - done.skipped} of {done.fragments} parts"
        + (f"; {done.skipped} were there already" if done.skipped else ""),
        file=sys.stderr,
    )


def _connect(address: str | None) -> None:
    """Connects to the cluster, without a word of Ray's but of what goes wrong."""
    import logging

    import ray

    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError as error:
            raise RuntimeError(f"no Ray cluster at {address}: {error}") from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)
