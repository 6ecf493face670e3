"""How `Session.load` makes a session that generates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from packhorse._native.generation import NativeGenerationSession
from packhorse.generation.drafts import open_draft
from packhorse.generation.session import GenerationSession
from packhorse.options import NGRAM, GenerationOptions, ModelPath
from packhorse.session import Session


def load_generation(
    cls: type[Session],
    path: ModelPath,
    revision: str | None,
    spec: dict[str, Any],
    weights: tuple[list[Any], dict[str, str], Mapping[str, Any] | None],
    options: GenerationOptions,
) -> GenerationSession:
    """`weights`: as `NativeGenerationSession.load` takes them. The tokens that end a sequence are
    read from the model's files."""
    from packhorse_weights.generation_files import read_generation

    again = asdict(options)
    del again["eos_ids"]
    if options.draft not in (None, NGRAM) and Path(options.draft).exists():
        again["draft"] = Path(options.draft).absolute()
    files = read_generation(path, revision=revision, settings=False)
    options = replace(options, eos_ids=files.eos_ids)
    native = NativeGenerationSession.load(json.dumps(spec), *weights, options, open_draft(options))
    # Whoever loads it again shall have a cache of the same size, whatever memory is free there.
    if options.kv_tokens is None:
        again["kv_tokens"] = native.memory_plan()[-2]
    return GenerationSession(
        native, spec, options, partial(cls.load, path, revision=revision, **again)
    )
