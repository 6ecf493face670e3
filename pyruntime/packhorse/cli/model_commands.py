"""Commands about a model: convert, inspect, evaluate, bench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from packhorse.cli.options import Errors, Load, LoadBundle, Model
from packhorse.cli.progress import byte_progress
from packhorse.load_options import BATCH, GENERATION, MACHINE, POOLING

_OF_BENCH = ("reranker", "attention_algorithm", "max_length")


def convert(
    src: Model,
    dst: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write.")],
    load: Annotated[Load, LoadBundle(POOLING, "reranker", "revision")],
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Store weights as float32, float16 or bfloat16; by default each as it is. stored: "
            "keep matrices that are quantised in groups (GGUF, GPTQ, AWQ)."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace FOLDER if it is a converted model.")
    ] = False,
    quantize: Annotated[
        str | None,
        typer.Option(
            help="int8, fp8: store the dense layers of the blocks in int8 or float8. int4: in 4 "
            "bits, in groups."
        ),
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(
            help="Input features that share a scale with --quantize: 32, 64 or 128; by default 32 "
            "for int4, and a whole row for int8."
        ),
    ] = None,
) -> None:
    """Write a model as packhorse.json and model.safetensors, with its tokenizer."""
    import packhorse_weights

    if group_size is not None:
        load["group_size"] = group_size
    with byte_progress("converting") as report:
        packhorse_weights.convert(src, dst, dtype, report, overwrite, quantize, **load)
    print(dst)


def inspect(
    model: Model,
    load: Annotated[Load, LoadBundle(MACHINE, BATCH, POOLING, GENERATION, "reranker", plans=True)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a model is and gives, and the memory that a session of it would take."""
    from packhorse.cli import inspection, inspection_view

    found = inspection.describe(model, load)
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        inspection_view.show(found)


def evaluate(
    model: Model,
    load: Annotated[Load, LoadBundle(MACHINE, BATCH, POOLING, "reranker", "kv_cache_dtype")],
    texts: Annotated[
        Path | None,
        typer.Argument(
            metavar="[TEXTS]",
            help="Text, one per line, or JSON lines (.jsonl); - is stdin; by default Python's "
            "documentation.",
        ),
    ] = None,
    errors: Errors = "strict",
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="The model in float32, if MODEL itself is stored in int8."
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Method to compare: embed, embed_sparse, embed_tokens, score, classify, "
            "classify_tokens, answer or generate; by default what the model is for.",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Most texts to compare; by default 2000, or 100 to generate."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the histograms as SVG.")
    ] = None,
    fail_under: Annotated[
        str | None,
        typer.Option(
            metavar="GRADE", help="close or usable: exit status 3 if a dtype is less than that."
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help="Exit status 3 if a measure of JSON is worse, such as cosine_min=0.99; repeated.",
        ),
    ] = None,
) -> None:
    """Compare a dtype, or several (--dtype bfloat16,int8), with float32, on real text."""
    from packhorse.cli import evaluation

    reached = evaluation.run(
        model,
        texts,
        load,
        errors=errors,
        reference=reference,
        task=task,
        count=count,
        as_json=as_json,
        svg=svg,
        fail_under=fail_under,
        require=require or (),
    )
    if not reached:
        raise typer.Exit(evaluation.EXIT_BELOW)


def bench(
    model: Model,
    load: Annotated[Load, LoadBundle(MACHINE, POOLING, *_OF_BENCH)],
    sequences: Annotated[
        int, typer.Option(min=1, metavar="N", help="Sequences in each batch.")
    ] = 32,
    seconds: Annotated[
        float, typer.Option(min=0.1, metavar="S", help="Seconds of measuring.")
    ] = 5.0,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Say which kernels run where the device has a choice."),
    ] = False,
) -> None:
    """Measure tokens per second on batches of uneven lengths."""
    from packhorse.cli import benchmark

    benchmark.run(model, load, sequences, seconds, explain)


MODEL_COMMANDS = (inspect, convert, evaluate, bench)
