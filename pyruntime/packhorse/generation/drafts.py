"""Draft models and n-gram drafts of a session that generates (docs/generation.md)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from packhorse.dtypes import choose_dtype, native_dtype
from packhorse.load_options import NGRAM, LoadOptions

if TYPE_CHECKING:
    from packhorse._native.generation import DraftModel


def open_draft(options: LoadOptions) -> DraftModel | None:
    """The draft model, as `NativeGenerationSession.load` takes it; None: there is none.

    Raises FileNotFoundError and ValueError as `Session.load` does.
    """
    from packhorse_weights import resolve_model

    if options.draft is None or options.draft == NGRAM:
        return None
    try:
        model = resolve_model(options.draft)
    except ValueError as error:
        raise ValueError(f"the draft model: {error}") from error
    dtype = choose_dtype(options.draft_dtype, options.device, model.stored_dtype, True)
    model = model.in_dtype(dtype)
    return json.dumps(model.spec), native_dtype(dtype, options.device), *model.weights
