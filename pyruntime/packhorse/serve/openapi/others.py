"""Schemas of Cohere's protocol, of rerankers, of tasks of Hugging Face's Inference API, and of what
the server says about itself."""

from __future__ import annotations

from dataclasses import Field
from typing import Any

from packhorse.load_options import TextLoadOptions
from packhorse.option_fields import choices_of, hints_of, kinds_of, said
from packhorse.serve.openapi.effectless import EMBEDDING, OF_TEXTS, RANKING, TGI_PARAMETERS
from packhorse.serve.openapi.parts import (
    COUNT,
    FLAG,
    IMAGE,
    IMAGE_PART,
    KEPT,
    MODEL,
    NULL,
    NUMBER,
    TEXT,
    TEXT_PART,
    TEXTS,
    VECTOR,
    Schema,
    array,
    closed,
    constant,
    one_of,
    optional,
    ref,
    request,
    thing,
)
from packhorse.serve.settings import LOADING


def _option(one: Field[Any]) -> Schema:
    """An option of loading, or null."""
    hint = hints_of(TextLoadOptions)[one.name]
    kinds, choices = kinds_of(hint), choices_of(hint)
    number: Schema = {"type": "integer", "minimum": said(one).least or 0}
    schemas = {str: constant(*choices) if choices else TEXT, int: number, bool: FLAG}
    found = [schema for kind, schema in schemas.items() if kind in kinds]
    return {**one_of(*found, NULL), "description": said(one).help}


def _least(number: int) -> Schema:
    return {"type": "integer", "minimum": number}


_TOKENS = closed({"prompt_tokens": COUNT, "total_tokens": COUNT})
_DOCUMENTS = array(one_of(TEXT, thing({"text": TEXT})), 1)
_RESULTS = array(
    closed({"index": COUNT, "relevance_score": NUMBER}, {"document": closed({"text": TEXT})})
)
_SCORING = {
    "model": MODEL,
    "truncation": optional(FLAG),
    "truncate_prompt_tokens": optional(KEPT),
    "raw_scores": optional(FLAG),
    "use_activation": optional(FLAG),
    "activation": optional(FLAG),
}
_VERSION = closed({"version": TEXT})
_SIDE = one_of(TEXT, TEXTS)
_SPAN = {"score": NUMBER, "start": COUNT, "end": COUNT}
_ENTITY = one_of(
    closed({"entity_group": TEXT, "word": TEXT, **_SPAN}),
    closed({"entity": TEXT, "index": COUNT, "word": TEXT, **_SPAN}),
)
_WORD = closed({"score": NUMBER, "token": COUNT, "token_str": TEXT, "sequence": TEXT})
_OF_TEXT = one_of(array(_WORD), array(array(_WORD)))
_LABEL = closed({"label": TEXT, "score": NUMBER})
_CONTENT = array(one_of(TEXT_PART, IMAGE_PART), 1)
_ANSWER = closed({"answer": TEXT, **_SPAN})

_LANGUAGES = closed({"codes": array(TEXT), "default": optional(TEXT), "required": FLAG})
_GENERATE_PARAMETERS = thing(
    {},
    {
        **dict.fromkeys(("max_new_tokens", "num_beams"), optional(_least(1))),
        "num_return_sequences": optional({"type": "integer", "minimum": 1, "maximum": 64}),
        **dict.fromkeys(
            (
                "min_new_tokens",
                "no_repeat_ngram_size",
                "encoder_no_repeat_ngram_size",
                "top_k",
                "seed",
            ),
            optional(COUNT),
        ),
        **dict.fromkeys(
            ("length_penalty", "repetition_penalty", "temperature", "top_p"), optional(NUMBER)
        ),
        "early_stopping": optional(constant(True, False, "never")),
    },
)

_TGI_TOKEN = closed({"id": COUNT, "text": TEXT, "logprob": NUMBER, "special": FLAG})
_TGI_PARAMETERS = request(
    {},
    {
        **dict.fromkeys(("max_new_tokens", "top_k", "truncate"), optional(_least(1))),
        **dict.fromkeys(
            ("temperature", "top_p", "repetition_penalty", "frequency_penalty"), optional(NUMBER)
        ),
        **dict.fromkeys(("details", "do_sample", "return_full_text"), optional(FLAG)),
        "seed": optional(COUNT),
        "stop": optional(TEXTS),
    },
    TGI_PARAMETERS,
)


def _to_text(parameters: dict[str, Schema]) -> Schema:
    """The request of a route that makes texts of texts, with parameters of its own."""
    split = optional(constant("long", "sentences", "never"))
    all_of = {"generate_parameters": optional(_GENERATE_PARAMETERS), "split": split}
    more = {"parameters": optional(thing({}, {**parameters, **all_of})), "model": MODEL}
    return request({"inputs": _SIDE}, more, OF_TEXTS)


def _texts_under(name: str) -> Schema:
    """The answer of such a route: a record for each text, also for one that is in no list; where
    several of each were asked for, lists of them, each of beam search with its score."""
    scored = array(closed({name: TEXT}, {"score": NUMBER}))
    return one_of(scored, array(scored))


SCHEMAS: dict[str, Schema] = {
    "CohereError": closed({"message": TEXT}),
    "CohereEmbedRequest": request(
        {},
        {
            "texts": optional(TEXTS),
            "images": optional(one_of(array(IMAGE), constant("", {}))),
            "inputs": optional(array(thing({"content": _CONTENT}), 1)),
            "model": MODEL,
            "input_type": optional(
                constant("search_document", "search_query", "classification", "clustering", "image")
            ),
            "embedding_types": optional(array(constant("float", "base64", "binary", "ubinary"))),
            "output_dimension": optional({"type": "integer", "minimum": 1}),
            "max_tokens": optional({"type": "integer", "minimum": 1}),
            "truncate": optional(constant("NONE", "START", "END")),
        },
        EMBEDDING,
    ),
    "CohereEmbedResponse": closed(
        {
            "id": TEXT,
            "texts": array(TEXT),
            "embeddings": closed(
                {},
                {
                    "float": array(VECTOR),
                    "base64": array(TEXT),
                    "binary": array(VECTOR),
                    "ubinary": array(VECTOR),
                },
            ),
            "meta": closed(
                {
                    "api_version": _VERSION,
                    "billed_units": closed({"input_tokens": COUNT}, {"images": COUNT}),
                }
            ),
            "response_type": constant("embeddings_by_type"),
        }
    ),
    "CohereRerankRequest": request(
        {"query": TEXT, "documents": _DOCUMENTS},
        {
            "model": MODEL,
            "top_n": optional({"type": "integer", "minimum": 1}),
            "max_tokens_per_doc": optional({"type": "integer", "minimum": 1}),
            "return_documents": optional(FLAG),
        },
        RANKING,
    ),
    "CohereRerankResponse": closed(
        {
            "id": TEXT,
            "results": _RESULTS,
            "meta": closed(
                {
                    "api_version": _VERSION,
                    "billed_units": closed({"search_units": COUNT}),
                    "tokens": closed({"input_tokens": COUNT}),
                }
            ),
        }
    ),
    "JinaRerankRequest": request(
        {"query": TEXT, "documents": _DOCUMENTS},
        {
            "top_n": optional(COUNT),
            "return_documents": optional(FLAG),
            "max_tokens_per_doc": optional(COUNT),
            **_SCORING,
        },
        RANKING,
    ),
    "JinaRerankResponse": closed(
        {
            "id": TEXT,
            "model": TEXT,
            "results": _RESULTS,
            "usage": _TOKENS,
        }
    ),
    "ScoreRequest": request({"text_1": _SIDE, "text_2": _SIDE}, _SCORING, RANKING),
    "ScoreResponse": closed(
        {
            "id": TEXT,
            "object": constant("list"),
            "created": COUNT,
            "model": TEXT,
            "data": array(closed({"index": COUNT, "object": constant("score"), "score": NUMBER})),
            "usage": _TOKENS,
        }
    ),
    "TokenClassificationRequest": request(
        {"inputs": _SIDE},
        {
            "parameters": optional(
                thing(
                    {},
                    {
                        "aggregation_strategy": optional(
                            constant("none", "simple", "first", "average", "max")
                        ),
                        "ignore_labels": optional(array(TEXT)),
                        "stride": optional(COUNT),
                    },
                )
            ),
            "model": MODEL,
            "truncate": optional(FLAG),
            "truncation_direction": optional(TEXT),
        },
        OF_TEXTS,
    ),
    "TokenClassificationResponse": one_of(array(_ENTITY), array(array(_ENTITY))),
    "ImageClassificationRequest": request(
        {"inputs": one_of(IMAGE, array(IMAGE, 1))},
        {
            "parameters": optional(
                thing(
                    {},
                    {
                        "top_k": optional({"type": "integer", "minimum": 1}),
                        "function_to_apply": optional(constant("softmax", "sigmoid", "none")),
                    },
                )
            ),
            "model": MODEL,
        },
        OF_TEXTS,
    ),
    "ZeroShotImageRequest": request(
        {
            "inputs": one_of(IMAGE, array(IMAGE, 1)),
            "parameters": thing(
                {"candidate_labels": TEXTS},
                {
                    "hypothesis_template": optional(TEXT),
                    "top_k": optional({"type": "integer", "minimum": 1}),
                },
            ),
        },
        {"model": MODEL},
        OF_TEXTS,
    ),
    "ImageClassificationResponse": one_of(array(_LABEL), array(array(_LABEL))),
    "QuestionAnsweringRequest": request(
        {"inputs": thing({"question": TEXT, "context": TEXT})},
        {
            "parameters": optional(
                thing(
                    {},
                    {
                        "top_k": optional({"type": "integer", "minimum": 1, "maximum": 100}),
                        "max_answer_len": optional({"type": "integer", "minimum": 1}),
                        "max_seq_len": optional({"type": "integer", "minimum": 1}),
                        "doc_stride": optional(COUNT),
                        "handle_impossible_answer": optional(FLAG),
                        "align_to_words": optional(FLAG),
                    },
                )
            ),
            "model": MODEL,
        },
        OF_TEXTS,
    ),
    "QuestionAnsweringResponse": one_of(_ANSWER, array(_ANSWER)),
    "TranslateRequest": _to_text({"src_lang": optional(TEXT), "tgt_lang": optional(TEXT)}),
    "TranslateResponse": _texts_under("translation_text"),
    "SummarizeRequest": _to_text({}),
    "SummarizeResponse": _texts_under("summary_text"),
    "GenerateRequest": request(
        {"inputs": TEXT}, {"parameters": optional(_TGI_PARAMETERS), "model": MODEL}, OF_TEXTS
    ),
    "GenerateResponse": closed(
        {"generated_text": TEXT},
        {
            "details": closed(
                {
                    "finish_reason": constant("length", "eos_token", "stop_sequence"),
                    "generated_tokens": COUNT,
                    "seed": optional(COUNT),
                    "prefill": array(_TGI_TOKEN),
                    "tokens": array(_TGI_TOKEN),
                }
            )
        },
    ),
    "FillMaskRequest": request(
        {"inputs": _SIDE},
        {
            "parameters": optional(
                thing(
                    {},
                    {
                        "targets": optional(one_of(TEXT, TEXTS)),
                        "top_k": optional({"type": "integer", "minimum": 1, "maximum": 1000}),
                    },
                )
            ),
            "model": MODEL,
            "truncate": optional(FLAG),
            "truncation_direction": optional(TEXT),
        },
        OF_TEXTS,
    ),
    # Words; of a text of several masks, or of several texts, lists of them; or of both.
    "FillMaskResponse": one_of(array(_WORD), array(_OF_TEXT), array(array(array(_WORD)))),
    "ServedModel": closed(
        {
            "name": TEXT,
            "path": TEXT,
            "methods": array(TEXT),
            "family": optional(TEXT),
            "dtype": TEXT,
            "stored_bits": array(COUNT),
            "devices": array(TEXT),
            "max_input_length": COUNT,
            "max_batch_tokens": COUNT,
            "memory_bytes": COUNT,
            "loaded_at": COUNT,
            "healthy": FLAG,
            "queue_tokens": COUNT,
            "queue_requests": COUNT,
            "tokens_per_second": NUMBER,
        },
        {
            "generation": {"type": "object", "additionalProperties": COUNT},
            "adapters": array(ref("ServedAdapter")),
            "languages": closed({"source": _LANGUAGES, "target": _LANGUAGES}),
        },
    ),
    "ServedAdapter": closed({"name": TEXT, "path": TEXT, "parent": TEXT, "loaded_at": COUNT}),
    "Loaded": one_of(ref("ServedModel"), ref("ServedAdapter")),
    "ServedModels": array(ref("ServedModel")),
    "LoadRequest": thing(
        {"path": TEXT},
        {
            "name": optional(TEXT),
            "device": optional(one_of(TEXT, TEXTS)),
            "adapter": optional(one_of(TEXT, TEXTS)),
            "parent": optional(TEXT),
            **{name: _option(one) for name, one in LOADING.items()},
        },
    ),
}
