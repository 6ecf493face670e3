"""Commands that read lines of text: one for each method of `TextModel`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from packhorse.cli.cluster import Cluster, embed_folders
from packhorse.cli.options import (
    Activation,
    Dimensions,
    Errors,
    File,
    Load,
    LoadBundle,
    LoadForTexts,
    Model,
    Prompts,
    Reading,
    Stride,
    TopK,
    VectorDtype,
    VectorFormat,
)
from packhorse.load_options import BATCH, MACHINE, POOLING


def embed(
    model: Model,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Text, one per line, UTF-8; - is stdin. With --ray, files and folders.",
        ),
    ],
    prompts: Prompts,
    load: Annotated[Load, LoadBundle(MACHINE, BATCH, POOLING)],
    cluster: Cluster,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write, .npy or .jsonl; by default lines of JSON to stdout. With --ray, a "
            "folder.",
        ),
    ] = None,
    format: VectorFormat = None,
    truncate_dim: Dimensions = None,
    output_dtype: VectorDtype = "float32",
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For int8 and uint8: a .npy file of float32 embeddings of at least 100 texts like "
            "yours, made with the same options; their ranges are taken.",
        ),
    ] = None,
    errors: Errors = "strict",
) -> None:
    """Embed each line of a text: one vector per line, in order."""
    from packhorse.cli import embedding

    if len(files) > 1 and not cluster.ray:
        raise typer.BadParameter(f"{len(files)} files, expected one (several need --ray)")

    options = prompts.arguments() | {
        "truncate_dim": truncate_dim,
        "dtype": output_dtype,
        "ranges": embedding.read_ranges(calibration, output_dtype),
    }
    if cluster.ray:
        if format is not None or errors != "strict":
            raise ValueError(
                f"--{'errors' if format is None else 'format'} has no effect with --ray"
            )
        embed_folders(model, files, output, cluster, load, options)
        return
    cluster.check_unused()
    target = None if output is None else Path(output)
    embedding.embed_file(model, Path(files[0]), errors, target, format, load, options)


def embed_sparse(
    model: Model, file: File, prompts: Prompts, reading: Reading, load: LoadForTexts
) -> None:
    """Print the sparse vector of each line (SPLADE, BGE-M3): ids of tokens, and their weights."""
    from packhorse.cli import results

    job = results.FileRun(model, file, reading, load)
    find = partial(results.sparse_vectors, prompts=prompts.arguments())
    job.print_results("embedding", find)


def embed_tokens(
    model: Model, file: File, prompts: Prompts, reading: Reading, load: LoadForTexts
) -> None:
    """Print the vectors of each line's tokens (ColBERT, BGE-M3)."""
    from packhorse.cli import results

    job = results.FileRun(model, file, reading, load)
    find = partial(results.token_vectors, prompts=prompts.arguments())
    job.print_results("embedding", find)


def score(
    model: Model,
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="Text that the lines should answer.")
    ],
    file: File,
    reading: Reading,
    load: Annotated[Load, LoadBundle(MACHINE, BATCH, "reranker")],
    top_k: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Print only the N best lines, best first, when all are scored."
        ),
    ] = None,
    instruction: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Instruction that says what makes a line a good answer, for generative rerankers.",
        ),
    ] = None,
    activation: Activation = None,
) -> None:
    """Score how well each line of a text answers a query, with a reranker."""
    from packhorse.cli import results

    job = results.FileRun(model, file, reading, load)
    options = {"instruction": instruction, "activation": activation}
    find = partial(results.scores, query=query, options=options)
    job.print_results("scoring", find, best=top_k)


def classify(
    model: Model,
    file: File,
    reading: Reading,
    load: LoadForTexts,
    top_k: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Number of labels for each line, best first; by default one."
        ),
    ] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Each line is two texts with a tab between them.")
    ] = False,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Strategy that joins tokens to entities: simple (default), first, average, max; "
            "none: they are not.",
        ),
    ] = None,
    stride: Stride = None,
    activation: Activation = None,
) -> None:
    """Label each line of a text, or find the entities in it, whichever the model does."""
    from packhorse.cli import results

    job = results.FileRun(model, file, reading, load)
    of_texts = {"top_k": top_k, "activation": activation}
    of_tokens = {"strategy": strategy, "stride": stride}
    find = partial(results.labels, pairs=pairs, of_texts=of_texts, of_tokens=of_tokens)
    job.print_results("classifying", find)


def answer(
    model: Model,
    question: Annotated[
        str, typer.Argument(metavar="QUESTION", help="Question asked of every line.")
    ],
    file: File,
    reading: Reading,
    load: LoadForTexts,
    top_k: TopK = 1,
    max_answer_length: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most tokens of an answer.")
    ] = 15,
    stride: Stride = None,
    allow_none: Annotated[
        bool, typer.Option("--allow-none", help='Allow "" as the answer, where the line has none.')
    ] = False,
) -> None:
    """Find the part of each line that answers a question."""
    from packhorse.cli import results

    options = {
        "top_k": top_k,
        "max_answer_length": max_answer_length,
        "stride": stride,
        "allow_none": allow_none,
    }
    job = results.FileRun(model, file, reading, load)
    job.print_results("answering", partial(results.answers, question=question, options=options))


def fill_mask(
    model: Model,
    file: File,
    reading: Reading,
    load: LoadForTexts,
    top_k: TopK = 5,
    max_masks: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Most masks in one batch; a line with more is an error."
        ),
    ] = 64,
) -> None:
    """Predict the masked words of each line."""
    from packhorse.cli import results

    job = results.FileRun(model, file, reading, load | {"max_predictions": max_masks})
    job.require("fill_mask")  # the session's own error would speak of its plan
    job.print_results("filling", partial(results.masks, top_k=top_k))


TEXT_COMMANDS = (embed, score, classify, answer, fill_mask, embed_sparse, embed_tokens)
