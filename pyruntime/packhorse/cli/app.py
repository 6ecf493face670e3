"""The commands and their options; each one's work is done in a module of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from packhorse import __version__
from packhorse.cli.progress import byte_progress

app = typer.Typer(
    help="Transformer inference that never computes on padding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Model = Annotated[Path, typer.Argument(help="A converted or Hugging Face model folder.")]
ComputeDtype = Annotated[str, typer.Option(help="float32, bfloat16, int8; on a GPU 16 bits.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens of the largest batch.")]
MaxSequences = Annotated[int, typer.Option(min=1, help="Sequences of the largest batch.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; by default all cores.")]
PinThreads = Annotated[
    bool, typer.Option("--pin-threads", help="Keep each CPU worker on one core.")
]
Device = Annotated[str, typer.Option(help="cpu, or cuda where the build has it.")]
File = Annotated[Path, typer.Argument(help="Text, one per line, UTF-8; - is stdin.")]
TextMaxTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens of the largest batch; by default 8192 or more.")
]
Reranker = Annotated[
    str | None,
    typer.Option(help="Template of a generative reranker: qwen3, or a JSON file with its fields."),
]
MaxLength = Annotated[
    int | None, typer.Option(min=1, help="Tokens of the longest sequence; by default the model's.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"packhorse {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


def _load_options(
    device: str,
    dtype: str,
    max_length: int | None,
    threads: int | None,
    pin_threads: bool,
    max_tokens: int | None,
) -> dict[str, Any]:
    return {
        "device": device,
        "dtype": dtype,
        "max_length": max_length,
        "threads": threads,
        "pin_threads": pin_threads,
        "max_tokens": max_tokens,
    }


def _template(reranker: str | None) -> Any:
    """The name of a template, or the fields in a file."""
    if reranker is None or not reranker.endswith(".json"):
        return reranker
    from packhorse_weights.files import read_json

    return read_json(Path(reranker))


@app.command()
def convert(
    src: Annotated[Path, typer.Argument(help="Model folder, or a weight file beside config.json.")],
    dst: Annotated[Path, typer.Argument(help="Folder to write.")],
    dtype: Annotated[
        str | None, typer.Option(help="float32, float16 or bfloat16; by default as they are.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a folder converted before.")
    ] = False,
    quantize: Annotated[
        str | None, typer.Option(help="int8: store the blocks' dense layers so, for dtype int8.")
    ] = None,
    reranker: Reranker = None,
) -> None:
    """Write a model as packhorse.json and model.safetensors, with its tokenizer."""
    import packhorse_weights

    template = _template(reranker)
    with byte_progress("converting") as report:
        packhorse_weights.convert(src, dst, dtype, report, overwrite, quantize, template)
    print(dst)


@app.command()
def inspect(
    path: Model,
    dtype: ComputeDtype = "float32",
    max_tokens: MaxTokens = 8192,
    max_sequences: MaxSequences = 256,
    reranker: Reranker = None,
) -> None:
    """Show what a model is, and the memory that a session of it would take."""
    from packhorse.cli import inspection

    inspection.show(path, dtype, max_tokens, max_sequences, _template(reranker))


@app.command()
def embed(
    model: Model,
    file: File,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; by default stdout.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(help="npy or jsonl; by default what the name of the output says, or jsonl."),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Text to put before every line.")] = None,
    prompt_name: Annotated[
        str | None, typer.Option(help="The model's prompt of this name.")
    ] = None,
    truncate_dim: Annotated[
        int | None, typer.Option(min=1, help="Only the first dimensions (Matryoshka).")
    ] = None,
    output_dtype: Annotated[
        str, typer.Option(help="float32, float16, binary or ubinary (packed bits).")
    ] = "float32",
    device: Device = "cpu",
    dtype: ComputeDtype = "float32",
    max_length: MaxLength = None,
    threads: Threads = None,
    pin_threads: PinThreads = False,
    max_tokens: TextMaxTokens = None,
) -> None:
    """Embed each line of a text: one vector per line, in order."""
    from packhorse.cli import embedding

    if output_dtype in ("int8", "uint8"):
        raise ValueError(f"output dtype {output_dtype} needs ranges: TextModel.embed takes them")
    load = _load_options(device, dtype, max_length, threads, pin_threads, max_tokens)
    options = {
        "prompt": prompt,
        "prompt_name": prompt_name,
        "truncate_dim": truncate_dim,
        "dtype": output_dtype,
    }
    embedding.embed_file(model, file, output, format, load, options)


@app.command()
def score(
    model: Model,
    query: Annotated[str, typer.Argument(help="What the lines should answer.")],
    file: File,
    instruction: Annotated[
        str | None, typer.Option(help="What makes a line a good one, for generative rerankers.")
    ] = None,
    reranker: Reranker = None,
    device: Device = "cpu",
    dtype: ComputeDtype = "float32",
    max_length: MaxLength = None,
    threads: Threads = None,
    pin_threads: PinThreads = False,
    max_tokens: TextMaxTokens = None,
) -> None:
    """Score each line of a text against a query, by a cross-encoder: a line of JSON each."""
    from packhorse.cli import labelling

    load = _load_options(device, dtype, max_length, threads, pin_threads, max_tokens)
    labelling.score_file(model, query, file, instruction, load | {"reranker": _template(reranker)})


@app.command()
def classify(
    model: Model,
    file: File,
    top_k: Annotated[int, typer.Option(min=1, help="How many labels of each line.")] = 1,
    device: Device = "cpu",
    dtype: ComputeDtype = "float32",
    max_length: MaxLength = None,
    threads: Threads = None,
    pin_threads: PinThreads = False,
    max_tokens: TextMaxTokens = None,
) -> None:
    """Label each line of a text, or find the entities in it: a line of JSON each."""
    from packhorse.cli import labelling

    load = _load_options(device, dtype, max_length, threads, pin_threads, max_tokens)
    labelling.classify_file(model, file, top_k, load)


@app.command()
def evaluate(
    model: Model,
    dtype: ComputeDtype = "int8",
    file: Annotated[
        Path | None,
        typer.Option(help="Text, one per line, UTF-8; by default Python's documentation."),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="Folder of the float32 model, where MODEL is stored quantised."),
    ] = None,
    count: Annotated[int, typer.Option(min=2, help="Texts at most.")] = 2000,
    max_length: MaxLength = None,
    threads: Threads = None,
) -> None:
    """Compare embeddings in a dtype with those in float32, on real text."""
    from packhorse.cli import evaluation

    evaluation.run(model, reference or model, dtype, file, count, max_length, threads)


@app.command()
def bench(
    model: Model,
    dtype: ComputeDtype = "float32",
    max_length: MaxLength = None,
    sequences: Annotated[int, typer.Option(min=1, help="Sequences of each batch.")] = 32,
    threads: Threads = None,
    pin_threads: PinThreads = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure.")] = 5.0,
    reranker: Reranker = None,
) -> None:
    """Measure tokens per second on batches of uneven lengths."""
    from packhorse.cli import benchmark

    template = _template(reranker)
    benchmark.run(model, dtype, max_length, sequences, threads, pin_threads, seconds, template)
