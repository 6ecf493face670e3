"""Settings of generation that a model's files ask for: those that are done, and those that are not.

Names, meanings and defaults are those of transformers' GenerationConfig. Fields that are in neither
list change no text (how it is computed, what else is returned) or are unknown, and are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError

_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "max_time")
_INTEGERS = (
    "max_new_tokens",
    "max_length",
    "min_new_tokens",
    "min_length",
    "top_k",
    "num_beams",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "forced_bos_token_id",
)
# Settings of any form; whoever runs them checks it.
_OTHERS = (
    "bad_words_ids",
    "begin_suppress_tokens",
    "early_stopping",
    "exponential_decay_length_penalty",
    "forced_eos_token_id",
    "sequence_bias",
    "stop_strings",
    "suppress_tokens",
)
# Under the names of `packhorse.Sampling` and `TextModel.generate`.
_RENAMED = {"max_time": "deadline_s", "stop_strings": "stop"}
_OF_CHANCE = ("temperature", "top_k", "top_p", "min_p")
_DEFAULT_MAX_LENGTH = 20  # value in older files that say nothing about it

# Field -> values with which it changes nothing. None and empty lists never do.
_REFUSED: Mapping[str, tuple[object, ...]] = {
    "assistant_ensemble_weight": (),
    "constraints": (),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_repetition_penalty": (1,),
    "force_words_ids": (),
    "forced_decoder_ids": (),
    "guidance_scale": (1,),
    "num_beam_groups": (0, 1),
    "num_return_sequences": (1,),
    "token_healing": (False,),
    "watermarking_config": (),
}
_REFUSED_WITH_CHANCE: Mapping[str, tuple[object, ...]] = {
    "epsilon_cutoff": (0, 1),
    "eta_cutoff": (0, 1),
    "num_beams": (1,),
    "top_h": (),
    "typical_p": (1,),
}
_REFUSED_WITH_BEAMS: Mapping[str, tuple[object, ...]] = {"renormalize_logits": (False,)}
_REFUSED_WITHOUT_BOTH: Mapping[str, tuple[object, ...]] = {"penalty_alpha": (0,)}

FIELDS = frozenset(
    {
        "decoder_start_token_id",
        "do_sample",
        "length_penalty",
        *_NUMBERS,
        *_INTEGERS,
        *_OTHERS,
        *_REFUSED,
        *_REFUSED_WITH_CHANCE,
        *_REFUSED_WITH_BEAMS,
        *_REFUSED_WITHOUT_BOTH,
    }
)


def older_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a config.json without a generation_config.json beside it. As in transformers,
    those of the text model in it count where the outer ones say nothing."""
    nested = next(
        (one for name in ("decoder", "generator", "text_config") if (one := config.get(name))), None
    )
    inner = nested if isinstance(nested, dict) else {}
    return {
        name: value
        for name, value in {**inner, **{n: v for n, v in config.items() if v is not None}}.items()
        if name in FIELDS and value is not None
    }


def read_settings(config: Config) -> dict[str, Any]:
    """Returns defaults of requests; among them max_length and min_length, of prompt and new tokens,
    and renormalize_logits, which changes beam search alone. Without do_sample the most probable
    tokens are taken, whatever else the file has, as in transformers.

    Raises CheckpointError for a field of a wrong form, and for what is not supported.
    """
    samples = config.boolean("do_sample", False)
    _refuse(config, samples)
    found: dict[str, Any] = {}
    for name in _NUMBERS:
        if config.fields.get(name) is not None:
            found[name] = config.number(name, 1.0, high=1e6)
    for name in _INTEGERS:
        if config.fields.get(name) is not None:
            found[name] = config.tokens(name, low=0)
    if config.fields.get("length_penalty") is not None:
        found["length_penalty"] = config.number("length_penalty", 1.0, low=-1e6, high=1e6)
    for name in _OTHERS:
        if config.fields.get(name) is not None:
            found[name] = config.fields[name]
    if config.boolean("renormalize_logits", False):
        found["renormalize_logits"] = True
    if found.get("max_length") == _DEFAULT_MAX_LENGTH:
        del found["max_length"]
    if not samples:
        for name in _OF_CHANCE:
            found.pop(name, None)
    else:
        found.setdefault("temperature", 1.0)
    return {_RENAMED.get(name, name): value for name, value in found.items()}


def _refuse(config: Config, samples: bool) -> None:
    fields = config.fields
    beams = fields.get("num_beams") not in (None, 0, 1)
    refused = dict(_REFUSED)
    if samples:
        refused |= _REFUSED_WITH_CHANCE
    if beams:
        refused |= _REFUSED_WITH_BEAMS
    # Contrastive search, which is asked for by this alone. A top_k that is not there is 50.
    if not samples and not beams and fields.get("top_k") not in (0, 1):
        refused |= _REFUSED_WITHOUT_BOTH
    for name, neutral in refused.items():
        value = fields.get(name)
        if value is None or value == [] or value in neutral:
            continue
        with_chance = " with do_sample" if name in _REFUSED_WITH_CHANCE else ""
        raise CheckpointError(
            f"{config.where}: {name} is {value!r:.80}{with_chance}, which is not supported: load "
            "the model with generation_config=False (--no-generation-config) to generate without "
            "the settings of this file"
        )
