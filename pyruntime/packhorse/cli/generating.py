"""Texts that are printed as they come, or a line of JSON for each prompt of a file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packhorse_weights.adapters.peft import read_adapter_rank
from packhorse_weights.spec import has_encoder_decoder

from packhorse import Generation, TextModel
from packhorse.cli.generation_options import ADAPTER
from packhorse.cli.lines import open_lines
from packhorse.cli.options import Reading
from packhorse.text import TextStreaming

Options = Mapping[str, Any]


def load_generator(model: str, load: Options, adapter: Path | None) -> TextModel:
    """`adapter`: the folder of one, which is then called ADAPTER. Raises ValueError for a model
    that does not generate."""
    options = dict(load)
    if adapter is not None:
        options |= {"max_adapters": 1, "max_adapter_rank": read_adapter_rank(adapter)}
    found = TextModel.load(model, **options)
    if not found.session.generates:
        raise ValueError(
            f"{model} was not loaded for generation: its files say that it is for "
            "embeddings or scores; a causal language model is needed (packhorse inspect)"
        )
    if adapter is not None:
        found.generation_session.add_adapter(ADAPTER, adapter)
    return found


def print_stream(stream: TextStreaming) -> Generation | None:
    """Prints the pieces as they come and, to stderr, tokens per second. None: Ctrl-C ended it."""
    start, first, ended = time.perf_counter(), None, True
    try:
        for piece in stream:
            first = time.perf_counter() if first is None else first
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        ended = False
    print(flush=True)
    if not ended:
        return None
    result = stream.result
    print(_speed(result, start, start if first is None else first), file=sys.stderr)
    return result


def _speed(result: Generation, start: float, first: float | None) -> str:
    """The first token is counted apart: it comes when all of the prompt is computed. first: None:
    all tokens came together."""
    end, usage = time.perf_counter(), result.usage
    more = usage.new_tokens - 1
    took = f"{end - start:.2f} s"
    if first is not None:
        rate = f", then {more / (end - first):,.1f} tokens/s" if more > 0 and end > first else ""
        took = f"first text after {first - start:.2f} s{rate}"
    cached = f" ({usage.cached_prompt_tokens:,} cached)" if usage.cached_prompt_tokens else ""
    return (
        f"[{usage.prompt_tokens:,} prompt tokens{cached}, {usage.new_tokens:,} new; "
        f"{took}; {result.finish_reason}]"
    )


def generate_prompt(
    model: str, prompt: str, load: Options, adapter: Path | None, options: Options, *, chat: bool
) -> None:
    if prompt == "-":
        prompt = sys.stdin.read()
    with load_generator(model, load, adapter) as generator:
        if options.get("num_beams", 1) > 1:
            _print_whole(generator, prompt, options, chat=chat)
            return
        if chat:
            messages = [{"role": "user", "content": prompt}]
            stream: TextStreaming = generator.chat(messages, stream=True, **options)
        else:
            stream = generator.generate(prompt, stream=True, **options)
            print(_beginning(generator, prompt), end="", flush=True)
        if print_stream(stream) is None:
            raise KeyboardInterrupt


def _beginning(generator: TextModel, prompt: str) -> str:
    """Beginning of a text: its prompt, which a model with an encoder does not go on with."""
    return "" if has_encoder_decoder(generator.session.config) else prompt


def _print_whole(generator: TextModel, prompt: str, options: Options, *, chat: bool) -> None:
    """Prints a text of beam search, which is known when it has ended, and tokens per second."""
    start = time.perf_counter()
    if chat:
        found = generator.chat([{"role": "user", "content": prompt}], details=True, **options)
    else:
        found = generator.generate(prompt, details=True, **options)
    print(f"{'' if chat else _beginning(generator, prompt)}{found.text}", flush=True)
    print(_speed(found, start, None), file=sys.stderr)


def generate_lines(
    model: str,
    file: Path,
    reading: Reading,
    load: Options,
    adapter: Path | None,
    options: Options,
    *,
    chat: bool,
) -> None:
    start, tokens = time.perf_counter(), 0
    with (
        open_lines(file, "generating", reading.errors) as reader,
        load_generator(model, {**load, "progress": False}, adapter) as generator,
    ):
        for lines in reader:
            with lines.named():
                found: list[Generation] = (
                    generator.chat(
                        [[{"role": "user", "content": text}] for text in lines.texts],
                        details=True,
                        progress=False,
                        **options,
                    )
                    if chat
                    else generator.generate(lines.texts, details=True, progress=False, **options)
                )
            for number, text, one in zip(lines.numbers, lines.texts, found, strict=True):
                shown = {"prompt": text} if reading.text else {}
                fields = {"text": one.text, "finish_reason": one.finish_reason}
                print(json.dumps({"index": number, **shown, **fields}, ensure_ascii=False))
                tokens += one.usage.new_tokens
            sys.stdout.flush()
        reader.note()
    seconds = time.perf_counter() - start
    print(f"[{tokens:,} new tokens in {seconds:.1f} s, loading included]", file=sys.stderr)
