"""Loading of the parts of a `TextModel`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from packhorse_weights.spec import hears, sees

from packhorse.device import check_device
from packhorse.dtypes import choose_dtype
from packhorse.load_options import ModelPath, TextLoadOptions
from packhorse.planning import plan_memory
from packhorse.session import Session
from packhorse.text.settings import longest_sequence
from packhorse.text.tokenization.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from packhorse_weights.generation_files import GenerationFiles


def load_parts(
    path: ModelPath, asked: TextLoadOptions
) -> tuple[Session, TextTokenizer, int | None, GenerationFiles | None]:
    """(session, tokenizer, `max_length`, what the files of a model that generates say about it).
    Whatever may be wrong with small files is found before anything large is loaded."""
    from packhorse_weights import find_model, inspect_checkpoint
    from packhorse_weights.generation_files import read_generation

    check_device(asked.device)
    path = find_model(path, asked.revision)
    asked = replace(asked, revision=None, tower=asked.tower or "text")
    checkpoint = inspect_checkpoint(path, **asked.reading())
    if sees(checkpoint.spec):
        raise ValueError(f"{path} takes images and no texts: load it by packhorse.image.ImageModel")
    if hears(checkpoint.spec):
        raise ValueError(
            f"{path} hears audio and takes no texts: load it by packhorse.audio.AudioModel"
        )
    generates = asked.generates(path, checkpoint.spec)
    spec = checkpoint.spec
    dtype = choose_dtype(asked.dtype, asked.device, checkpoint.stored_dtype, generates, spec)
    files, max_tokens = None, asked.max_tokens
    if generates:
        files = read_generation(path, settings=asked.generation_config)
    else:
        # Checks the spec.
        spec = checkpoint.spec_in(dtype)
        plan_memory(spec, asked.device, dtype, max_tokens=1, max_sequences=1)
    if max_tokens is None and not generates:
        max_tokens = max(8192, longest_sequence(checkpoint.spec, asked.max_length))
    load = Session._prepare(path, replace(asked, dtype=dtype, max_tokens=max_tokens), checkpoint)
    # The tokenizer is made while the runtime, which needs no interpreter, reads the weights.
    with ThreadPoolExecutor(1, "packhorse-tokenizer") as thread:
        tokenizer = thread.submit(TextTokenizer.load, path)
        session = load()
    return session, tokenizer.result(), asked.max_length, files
