"""Attention of the tokens of a text to those of its source, as callers ask for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from packhorse_weights.spec import has_encoder_decoder

from packhorse.generation.results import Generation
from packhorse.generation.sampling import Sampling
from packhorse.text.generation.options import RequestOptions, check_flag

if TYPE_CHECKING:
    from packhorse.generation.session import GenerationSession
    from packhorse.text.generation.generator import Prompt


class SourceAttention(NamedTuple):
    """heads: (layer, head) of those whose mean is given."""

    heads: list[tuple[int, int]]

    def require_details(self, details: bool) -> None:
        """Raises ValueError for results that are texts."""
        if not details:
            raise ValueError("return_attention is True, but without details results are texts")

    def refuse_stream(self) -> NoReturn:
        raise ValueError("return_attention is True, expected False with stream=True")

    def of(
        self,
        session: GenerationSession,
        prompts: Sequence[Prompt],
        made: Sequence[Sequence[Generation]],
        options: RequestOptions,
    ) -> list[list[Generation]]:
        """Results of prompts with sources, and what their tokens attend to: the decoder reads each
        once more as a whole, and its source is in the cache, if that has room."""
        told = [
            (prompt, one)
            for prompt, found in zip(prompts, made, strict=True)
            for one in found
            if one.ids
        ]
        # Each token comes after those before it.
        read = [np.append(prompt.ids, np.array(one.ids[:-1], np.int32)) for prompt, one in told]
        sampling = Sampling(max_new_tokens=0, alignment_heads=self.heads, **options.reading)
        sources = [prompt.source for prompt, _ in told if prompt.source is not None]
        weights = iter(session.generate(read, sampling, sources=sources))

        def attended(prompt: Prompt, one: Generation) -> Generation:
            assert prompt.source is not None
            rows = np.empty((0, prompt.source.size), np.float32)
            if one.ids:
                rows = next(weights).alignment[:, prompt.ids.size - 1 :].mean(0)
            return replace(one, attention=rows, source_ids=prompt.source.tolist())

        return [
            [attended(prompt, one) for one in found]
            for prompt, found in zip(prompts, made, strict=True)
        ]


def take_attention(options: dict[str, Any], spec: Mapping[str, Any]) -> SourceAttention | None:
    """Takes `return_attention` and `attention_layer` out of the options of a call; None: they do
    not ask for anything. Raises ValueError."""
    asked = check_flag("return_attention", _given(options, "return_attention", False))
    layer = _given(options, "attention_layer", None)
    if not asked:
        if layer is not None:
            raise ValueError(
                f"attention_layer is {layer!r:.40}, but return_attention is not True, which asks "
                "for the attention of a layer"
            )
        return None
    if not has_encoder_decoder(spec):
        raise ValueError(
            "return_attention is True, expected False: this model has no encoder beside its "
            "decoder, to whose tokens it could attend"
        )
    layers = [*spec["stacks"].values()][-1]["layers"]
    count = len(layers)
    number = count - 1 if layer is None else layer
    if isinstance(number, bool) or not isinstance(number, int) or not -count <= number < count:
        raise ValueError(
            f"attention_layer is {layer!r:.40}, expected one of the {count} layers of the decoder: "
            f"0 to {count - 1}, or {-count} to -1 from the last"
        )
    number %= count
    heads = range(layers[number]["blocks"][1]["num_heads"])
    return SourceAttention([(number, head) for head in heads])


def _given(options: dict[str, Any], name: str, default: Any) -> Any:
    found = options.pop(name, None)
    return default if found is None else found
