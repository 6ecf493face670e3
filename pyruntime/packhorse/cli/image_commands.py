"""Commands that give a result for each image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from packhorse.cli.options import Dimensions, Load, LoadBundle, Model, VectorDtype, VectorFormat
from packhorse.load_options import BATCH, MACHINE

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...",
        help="Images (JPEG, PNG, WebP), folders of them, or patterns in quotes ('shots/**/*.jpg'); "
        "-: stdin names a file in each line.",
    ),
]
ImageErrors = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="Images that cannot be read. strict: stop there. skip: leave them out; the others "
        "keep their numbers.",
    ),
]
LoadForImages = Annotated[Load, LoadBundle(MACHINE, BATCH, plans=True)]


def embed_images(
    model: Model,
    paths: Paths,
    load: LoadForImages,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write, .npy or .jsonl; by default lines of JSON to stdout.",
        ),
    ] = None,
    format: VectorFormat = None,
    names: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the paths of the images there, one a line, as the vectors."
        ),
    ] = None,
    truncate_dim: Dimensions = None,
    output_dtype: VectorDtype = "float32",
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For int8 and uint8: a .npy file of float32 embeddings of at least 100 images "
            "like yours; their ranges are taken.",
        ),
    ] = None,
    errors: ImageErrors = "strict",
) -> None:
    """Embed images: one vector for each, in order."""
    from packhorse.cli import embedding, images
    from packhorse.cli.writers import check_output

    # A file of names says which images were left out.
    chosen = check_output(output, format, "strict" if names is not None else errors, "image")
    ranges = embedding.read_ranges(calibration, output_dtype)
    run = images.ImageRun(model, paths, errors, load)
    images.embed_images(run, output, chosen, names, truncate_dim, output_dtype, ranges)


def classify_images(
    model: Model,
    paths: Paths,
    load: LoadForImages,
    top_k: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Number of labels for each image, best first; by default one."
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="A label to choose from, for models of images and texts; repeated. By default the "
            "labels of the model's classifier.",
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Text of a label, which {} stands for; by default 'a photo of a {}'.",
        ),
    ] = None,
    errors: ImageErrors = "strict",
) -> None:
    """Label images, by the model's classifier or (--label) by labels of your own."""
    from packhorse.cli import images

    run = images.ImageRun(model, paths, errors, load)
    images.classify_images(run, top_k, label or (), template)


IMAGE_COMMANDS = (embed_images, classify_images)
