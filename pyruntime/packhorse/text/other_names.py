"""Names that people bring from sentence-transformers and transformers: errors say what they are
called here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Any])

# Attributes of SentenceTransformer, CrossEncoder, SparseEncoder and pipelines -> what is there.
METHODS: Mapping[str, str] = {
    "encode": "embed(texts)",
    "encode_query": 'embed(texts, prompt_name="query") where `prompts` has that name, or embed',
    "encode_document": 'embed(texts, prompt_name="document") where `prompts` has that name, '
    "or embed",
    "encode_multi_process": "embed(texts), which uses all cores",
    "start_multi_process_pool": "embed(texts), which uses all cores",
    "predict": "score_pairs(pairs), or classify for models of several labels",
    "rank": "score(query, documents), then numpy.argsort",
    "rerank": "score(query, documents), then numpy.argsort",
    "semantic_search": "packhorse.semantic_search(query_vectors, document_vectors)",
    "similarity_pairwise": "similarity(a, b) of one pair of vectors at a time",
    "get_sentence_embedding_dimension": "session.embedding_size",
    "get_max_seq_length": "max_length",
    "max_seq_length": "max_length",
    "tokenize": "tokenizer.encode(texts, max_length)",
    "to": "TextModel.load(path, device=...)",
    "cuda": 'TextModel.load(path, device="cuda")',
    "half": 'TextModel.load(path, dtype="float16")',
    "eval": "nothing: a model is always for inference",
}

_ARRAYS = "leave it out: results are NumPy arrays; torch.from_numpy makes a tensor of one"
_TEXTS = "leave it out: texts are packed into batches of up to max_tokens, an argument of load"
# Arguments of the same libraries -> what is there.
ARGUMENTS: Mapping[str, str] = {
    "batch_size": _TEXTS,
    "chunk_size": _TEXTS,
    "convert_to_numpy": _ARRAYS,
    "convert_to_tensor": _ARRAYS,
    "normalize_embeddings": "normalize",
    "precision": "dtype",
    "output_value": "embed_tokens, or encoder_session.run, for the vectors of tokens",
    "device": "an argument of load",
    "pool": "leave it out: all cores are used",
    "max_seq_length": "max_length",
    "apply_softmax": "classify",
    "activation_fn": "classify, or encoder_session.run for logits",
    "return_documents": "leave it out: scores have the order of the documents",
    "return_tensors": _ARRAYS,
    "padding": "leave it out: nothing is padded",
    "aggregation": "aggregation_strategy",
    "max_length_tokens": "max_length",
    "max_tokens": "max_new_tokens",
    "stop_strings": "stop",
    "stopping_criteria": "stop or stop_ids",
    "do_sample": "temperature, above 0",
    "num_return_sequences": "n",
    "streamer": "stream=True",
    "response_format": "schema",
}


def missing_attribute(owner: str, name: str) -> AttributeError:
    """The error for an attribute that is not there."""
    hint = f": use {METHODS[name]}" if name in METHODS else ""
    return AttributeError(f"{owner!r} object has no attribute {name!r}{hint}")


def unexpected_argument(method: str, name: str) -> TypeError:
    """The error for an argument that is not there, as Python words it."""
    hint = f": here it is {ARGUMENTS[name]}" if name in ARGUMENTS else ""
    if hint and ARGUMENTS[name].startswith("leave"):
        hint = f": {ARGUMENTS[name]}"
    return TypeError(f"{method}() got an unexpected keyword argument {name!r}{hint}")


def says_our_names(method: Method) -> Method:
    """Decorator: the error for an argument of another library says ours."""
    code = method.__code__
    own = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])

    @wraps(method)
    def checked(*args: Any, **options: Any) -> Any:
        if not options.keys() <= own:
            for name in options:
                if name not in own:
                    raise unexpected_argument(method.__name__, name)
        return method(*args, **options)

    return cast(Method, checked)
