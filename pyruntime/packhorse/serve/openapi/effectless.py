"""Fields of protocols that change no answer: those that are ignored whatever they say, and values
that ask for what is done anyway. Every other field that a route does not read is refused by name.
"""

from __future__ import annotations

from typing import Any

from packhorse.serve.http.checks import ANY_VALUE, Effectless

_NONE: tuple[Any, ...] = ("", [], {})

# About the caller, its bill or when a request runs.
_OF_ALL: Effectless = {
    "user": ANY_VALUE,
    "request_id": ANY_VALUE,
    "priority": ANY_VALUE,
    "metadata": ANY_VALUE,
    # Hugging Face's Inference API: caches and waiting; what its clients send without options
    "options": ANY_VALUE,
    "parameters": ({},),
}

EMBEDDING: Effectless = {
    **_OF_ALL,
    "add_special_tokens": (True,),
    "modality": ("text",),
    "embedding_type": ("float",),
    "late_chunking": (False,),
    "return_multivector": (False,),
    "images": _NONE,
}

RANKING: Effectless = {
    **_OF_ALL,
    "rank_fields": _NONE,
    "relevant_spans": (False,),
    "return_embeddings": (False,),
}

OF_TEXTS: Effectless = _OF_ALL  # for routes for labels and tokens

# text-generation-inference, within "parameters"
TGI_PARAMETERS: Effectless = {
    "best_of": (1,),
    "decoder_input_details": (False,),
    "top_n_tokens": (0,),
    "typical_p": (1,),
    "watermark": (False,),
    "adapter_id": ("",),
}

GENERATION: Effectless = {
    **_OF_ALL,
    # OpenAI
    "service_tier": ANY_VALUE,
    "store": ANY_VALUE,
    "safety_identifier": ANY_VALUE,
    "prompt_cache_key": ANY_VALUE,
    "prompt_cache_options": ANY_VALUE,
    "prompt_cache_retention": ANY_VALUE,
    "functions": _NONE,
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "suffix": _NONE,
    "echo": (False,),
    "stream_options.include_obfuscation": ANY_VALUE,
    "response_format.json_schema.name": ANY_VALUE,
    "response_format.json_schema.description": ANY_VALUE,
    "response_format.json_schema.strict": ANY_VALUE,  # a schema is always kept to
    # vLLM
    "min_tokens": (0,),
    "bad_words": _NONE,
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "detokenize": (True,),
    "return_token_ids": (False,),
    "include_reasoning": (True,),
    "documents": _NONE,
    "mm_processor_kwargs": _NONE,
    "vllm_xargs": _NONE,
    "stream_options.continuous_usage_stats": (False,),
    "guided_decoding_backend": ("auto", "guidance"),
    "structured_outputs.disable_fallback": ANY_VALUE,  # there is one grammar engine
    "structured_outputs.disable_any_whitespace": (False,),
    "structured_outputs.disable_additional_properties": (False,),
    # llama.cpp: what is not left out in its requests, with the values that it would have
    "cache_prompt": ANY_VALUE,  # the prefix cache gives the same bits
    "id_slot": (-1,),
    "n_probs": (0,),
    "n_keep": (0,),
    "min_keep": (0,),
    "n_indent": (0,),
    "t_max_predict_ms": (0,),
    "post_sampling_probs": (False,),
    "timings_per_token": (False,),
    "return_tokens": (False,),
    "return_progress": (False,),
    "response_fields": _NONE,
    "lora": _NONE,
    "repeat_penalty": (1,),
    "repeat_last_n": (64, -1),
    "penalize_nl": (False,),
    "typical_p": (1,),
    "tfs_z": (1,),
    "top_n_sigma": (-1,),
    "dynatemp_range": (0,),
    "dynatemp_exponent": (1,),
    "xtc_probability": (0,),
    "xtc_threshold": (0.1,),
    "mirostat": (0,),
    "mirostat_tau": (5,),
    "mirostat_eta": (0.1,),
    "dry_multiplier": (0,),
    "dry_base": (1.75,),
    "dry_allowed_length": (2,),
    "dry_penalty_last_n": (-1,),
    "dry_sequence_breakers": _NONE,
    "grammar_lazy": (False,),
    "grammar_triggers": _NONE,
    "preserved_tokens": _NONE,
    # transformers serve and others
    "num_beams": (1,),
    "no_repeat_ngram_size": (0,),
    "suppress_tokens": _NONE,
    "begin_suppress_tokens": _NONE,
}

# Fields of /v1/responses.
RESPONSES: Effectless = {
    **_OF_ALL,
    "service_tier": ANY_VALUE,
    "safety_identifier": ANY_VALUE,
    "prompt_cache_key": ANY_VALUE,
    "prompt_cache_retention": ANY_VALUE,
    "background": (False,),
    "include": _NONE,
    "truncation": ("disabled",),
    "top_logprobs": (0,),
    "reasoning.effort": ("none",),
    "text.verbosity": ("medium",),
    "text.format.name": ANY_VALUE,
    "text.format.description": ANY_VALUE,
    "text.format.strict": ANY_VALUE,  # a schema is always kept to
    "stream_options.include_obfuscation": ANY_VALUE,
}

# Fields that have an effect on the route of chats, but none here.
COMPLETION: Effectless = {
    **GENERATION,
    "tools": _NONE,
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
}
