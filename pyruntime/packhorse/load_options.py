"""Options with which a model is loaded. Each is a field of `LoadOptions`, which says all about it:
signatures, docstrings, options of commands, settings of the server and the table of
docs/sessions.md are made from the fields.

A new option is a field, a line of the types for checkers above it, and its use.
`tools/load_options.py --write` and `tools/public_names.py --write` bring the pages up to date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypedDict

from packhorse.load_arguments import (
    check_switch,
    check_threads,
    parse_bytes,
    read_poolings,
    read_template,
)
from packhorse.names import AskedDtype, AttentionAlgorithm, CacheDtype, Dtype, Pooling, Tower
from packhorse.option_fields import count, option, said

ModelPath = str | PathLike[str]

NGRAM = "ngram"  # the draft that is looked up in the text itself
DRAFT_TOKENS = 8
MOST_DRAFT_TOKENS = 32

# Groups of options: headings in the help of commands, which take whole groups.
MACHINE = "Model and machine"
BATCH = "Batches"
POOLING = "Pooling (by default as the model's files say)"
GENERATION = "Loading for generation"


class SessionCall(TypedDict, total=False):
    """The options of `Session.load` that its signature does not name: a line for each field of
    `LoadOptions`, for type checkers."""

    max_tokens: int | None
    max_sequences: int | None
    threads: int | None
    pin_threads: bool
    memory_limit: int | str | None
    output_slots: int
    max_predictions: int
    reranker: str | Mapping[str, Any] | None
    attention_algorithm: AttentionAlgorithm
    pooling: Pooling | Sequence[Pooling] | None
    normalize: bool | None
    revision: str | None
    max_seqlen: int | None
    tower: Tower | None
    max_queue: int
    prefix_cache: bool
    max_adapters: int
    max_adapter_rank: int
    draft: ModelPath | None
    draft_dtype: AskedDtype | None
    draft_tokens: int | None
    kv_cache_dtype: CacheDtype | None


class LoadCall(SessionCall, total=False):
    kv_tokens: int | None  # apart, because it decides which session `Session.load` gives


class TextCall(LoadCall, total=False):
    """The options of `TextModel.load`."""

    max_length: int | None
    generation_config: bool


class ServedCall(TextCall, total=False):
    """The options of a model of the server."""

    dtype: AskedDtype | None


@dataclass(frozen=True)
class LoadOptions:
    """Everything that can be said when a session is loaded. Raises ValueError for a value of
    another kind; ranges are checked where models and devices are known."""

    device: str = option(
        "cpu",
        "one of `available_devices()`",
        "cpu, cuda or cuda:1; a GPU needs a build with CUDA.",
        group=MACHINE,
        metavar="cpu|cuda",
        speed=True,
    )
    dtype: AskedDtype | None = option(
        None,
        'dtype of weights and activations; sums are float32. On the CPU "float32"; "bfloat16" or '
        '"float16", which round dense layers and the table of words alone and leave all else in '
        'float32, but for "bfloat16" with AVX512-BF16 or on ARM; or "int8" (only dense layers and '
        "the head of a model that generates, quantised when loaded; the rest is float32). On CUDA "
        'devices "float16" or "bfloat16", of models that encode and of speech "int8", too, and on '
        'Hopper "float8" (dense layers of encoders in int8 or e4m3, the rest in float16). '
        '"stored": matrices that the files hold in 4 to 8 bits with scales of groups (GGUF, GPTQ, '
        'AWQ) stay so; the rest is float32, on CUDA float16 (docs/weights.md). None: "int8" or '
        '"float8" if the folder was converted to it; otherwise, on the CPU, "stored" if there are '
        "such matrices, the dtype of weights of 16 bits in a session that generates, else "
        '"float32", and on CUDA "bfloat16" if the weights are stored in it, else "float16"',
        "Type to compute in: float32 (fp32), bfloat16 (bf16), float16 (fp16) or int8 on the CPU, "
        "float16, bfloat16, int8 or float8 (Hopper) on a GPU, stored on both (quantised weights "
        "stay as they are); by default (auto) what suits the folder.",
        group=MACHINE,
        metavar="DTYPE",
    )
    max_tokens: int | None = count(
        None,
        "tokens",
        "number of tokens of the largest batch that `run` takes. For a session that generates: "
        "number of tokens of one step, pieces of all prompts and running sequences together. None: "
        "8192, or 2048 for a session that generates",
        "Tokens of the largest batch, by default 8192 or those of the longest text; of one step "
        "of generation, 2048.",
        group=BATCH,
        setting="max_batch_tokens",
        speed=True,
    )
    max_sequences: int | None = count(
        None,
        "sequences",
        "number of sequences of the largest batch, or of sequences that are generated at once. "
        "None: 256, or 64 for a session that generates, but not more than `max_tokens`",
        "Sequences of the largest batch, by default 256; generated at once, 64.",
        group=BATCH,
        speed=True,
    )
    threads: int | None = option(
        None,
        "CPU threads, including the caller's; None: all cores that it may use. Sessions of a "
        "process share their threads and take turns on them; with 1 a session runs on its caller "
        "only",
        "CPU threads; by default one for each core.",
        group=MACHINE,
        unit="threads",
        metavar="N",
        least=1,
        check=check_threads,
        speed=True,
    )
    pin_threads: bool = option(
        False,
        "keeps each CPU worker on one core of the affinity mask; the caller's thread is never "
        "pinned",
        "Keep each CPU thread on a core of its own.",
        group=MACHINE,
        check=check_switch,
        speed=True,
    )
    memory_limit: int | str | None = option(
        None,
        "bytes that weights, arena and cache together may take, also as a text such as "
        '"512MiB"; None: no limit',
        "Most memory of weights, buffers and cache together: bytes, 1GB, 512MiB.",
        group=MACHINE,
        unit="bytes",
        metavar="SIZE",
        check=parse_bytes,
        speed=True,
    )
    output_slots: int = count(
        2,
        "runs",
        "number of runs whose results may stay on the device at the same time; ignored on the CPU",
        speed=True,
    )
    max_predictions: int = count(
        0,
        "rows",
        "largest number of rows for which one run makes predictions of the language model, masked "
        "or causal; with 0 the head for them is not loaded",
        "Most masks of a batch that a masked language model fills, 64 in the server. 0: it only "
        "embeds.",
        least=0,
        suits="fill_mask",
    )
    reranker: str | Mapping[str, Any] | None = option(
        None,
        'for language models that score pairs by "yes" and "no": the template in which they read a '
        "pair, by its name or its fields (docs/text.md)",
        "Template of a generative reranker: qwen3, or a JSON file with its fields.",
        metavar="NAME|FILE",
        read=read_template,
        reads=True,
    )
    attention_algorithm: AttentionAlgorithm = option(
        "auto",
        "the algorithm on CUDA devices, as `packhorse.ops.attention` names it",
        "Attention on a GPU: hopper, online, short, grouped, bytetransformer or auto.",
        metavar="NAME",
    )
    pooling: Pooling | Sequence[Pooling] | None = option(
        None,
        'how a sequence becomes one vector, "embedding": "cls", "mean", "max", "last", '
        '"mean_sqrt", "weighted_mean", or several of them side by side; None: as the files say, '
        "otherwise the mean, or the last token for causal language models "
        "(docs/models.md#pooling)",
        "cls, mean, max, last, mean_sqrt, weighted_mean; or several with commas between.",
        group=POOLING,
        metavar="NAME",
        read=read_poolings,
        reads=True,
    )
    normalize: bool | None = option(
        None,
        "scales that vector to length 1; None: as the files say",
        "Bring vectors to length 1, or leave them as they are.",
        group=POOLING,
        reads=True,
    )
    revision: str | None = option(
        None,
        "branch, tag or commit hash of a repository; None: main",
        "Branch, tag or commit, for a model given by its name on the hub.",
        group=MACHINE,
        metavar="NAME",
        reads=True,
    )
    max_seqlen: int | None = count(
        None,
        "tokens",
        "length of the longest sequence that the session takes, prompt and output of one that "
        "generates together; None: what the model takes, which is the most that may be asked for",
        "Longest text, prompt and output together; by default the model's limit.",
        group=MACHINE,
        reads=True,
    )
    tower: Tower | None = option(
        None,
        'half of a model of images and texts: "vision" (None) or "text" (None in `TextModel`)',
        reads=True,
    )
    kv_tokens: int | None = count(
        None,
        "tokens",
        "number of tokens, of all sequences together, whose keys and values the cache of a session "
        "that generates holds (`GenerationSession`). 0: the session gives hidden states and "
        "embeddings. None: causal language models generate, with a cache of the default size "
        "(docs/generation.md#the-cache); models with files of sentence-transformers, and those "
        "that are loaded with `reranker`, `pooling`, `normalize` or `max_predictions`, do not "
        "(docs/generation.md)",
        "Tokens that the cache of keys and values holds; by default chosen by the memory that is "
        "free. 0: the model does not generate.",
        group=GENERATION,
        least=0,
        suits="generate",
    )
    max_queue: int = count(
        4096,
        "requests",
        "number of requests that may wait to be started, in a session that generates",
    )
    prefix_cache: bool = option(
        True,
        "lets prompts that begin alike share keys and values in the cache",
        check=check_switch,
    )
    max_adapters: int = count(
        0,
        "adapters",
        "number of LoRA adapters that a session that generates may have at once "
        "(`GenerationSession.add_adapter`); their memory is planned",
        "Most LoRA adapters at once; by default those it is started with.",
        least=0,
        suits="generate",
        refusal="adapters are supported where a model generates; merge the adapter into the model",
    )
    max_adapter_rank: int = count(
        16,
        "rank",
        "largest rank of each",
        "Largest rank of a LoRA adapter; 16 by default.",
        suits="generate",
    )
    draft: ModelPath | None = option(
        None,
        "speculative decoding in a session that generates: what drafts the tokens that one step "
        'checks together, "ngram" (what followed the last tokens where they stood before) or a '
        "smaller model of the same vocabulary, given as `path` is. The output is the same, bit for "
        "bit. None: one token in each step (docs/generation.md)",
        "Source of the draft tokens that one step checks together: ngram, which looks up what "
        "followed before, or a smaller model of the same vocabulary. The text is the same.",
        group=GENERATION,
        metavar="MODEL",
        suits="generate",
        refusal="drafts are of models that generate",
    )
    draft_dtype: AskedDtype | None = option(
        None,
        "dtype of the draft model, as `dtype`",
        "Dtype of the draft model.",
        group=GENERATION,
        metavar="DTYPE",
        suits="generate",
    )
    draft_tokens: int | None = count(
        None,
        "tokens",
        f"most tokens that are drafted for a sequence in a step; None: {DRAFT_TOKENS}",
        f"Most drafts of a step; by default {DRAFT_TOKENS}.",
        group=GENERATION,
        suits="generate",
    )
    kv_cache_dtype: CacheDtype | None = option(
        None,
        'dtype of keys and values in the cache of a session that generates: "float8" (e4m3 with a '
        "scale for each token and head of keys), or None for the dtype of the activations "
        "and, on the CPU in speech in int8, bfloat16 (docs/generation.md)",
        "Keys and values in the cache: float8; by default as the activations.",
        group=GENERATION,
        metavar="DTYPE",
        suits="generate",
        refusal="only models that generate have a cache",
    )

    def __post_init__(self) -> None:
        for one in fields(self):
            if (check := said(one).check) is not None:
                object.__setattr__(self, one.name, check(one.name, getattr(self, one.name)))

    def reading(self) -> dict[str, Any]:
        """The options that decide what the model is: arguments of `inspect_checkpoint`."""
        return {name: getattr(self, name) for name in READING}

    def generates(self, path: ModelPath, spec: dict[str, Any]) -> bool:
        """True for a model that is to generate rather than to embed, score or predict. Raises
        ValueError where it cannot, though `kv_tokens` asks for it."""
        from packhorse_weights.generation_files import generates

        asked = (self.reranker, self.pooling, self.normalize, self.max_predictions)
        return generates(path, spec, self.kv_tokens, *asked, revision=self.revision)

    def of_session(self, dtype: Dtype, generates: bool) -> LoadOptions:
        """The options of a session, in which nothing is left to be chosen but the size of the
        cache and the number of threads. Raises ValueError for what the session has no use for."""
        max_tokens, max_sequences = (2048, 64) if generates else (8192, 256)
        if self.max_tokens is not None:
            max_tokens = self.max_tokens
        if generates:
            max_sequences = min(max_sequences, max_tokens)
            chosen: dict[str, Any] = {"draft_tokens": self._draft_tokens()}
        else:
            self._refuse_generation()
            chosen = {"kv_tokens": 0}
        if self.max_sequences is not None:
            max_sequences = self.max_sequences
        return replace(
            self, dtype=dtype, max_tokens=max_tokens, max_sequences=max_sequences, **chosen
        )

    def again(self) -> dict[str, Any]:
        """The arguments of `Session.load` in any process: what differs from the defaults. A draft
        model is named by its absolute path."""
        found = {
            one.name: getattr(self, one.name)
            for one in fields(LoadOptions)
            if getattr(self, one.name) != one.default
        }
        if self.draft not in (None, NGRAM) and Path(fspath(self.draft)).exists():
            found["draft"] = Path(fspath(self.draft)).absolute()
        return found

    def _refuse_generation(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if said(one).refusal and value != one.default:
                shown = fspath(value) if isinstance(value, PathLike) else value
                raise ValueError(
                    f"{one.name} is {shown!r}, but this session gives hidden states and "
                    f"embeddings: {said(one).refusal}"
                )

    def _draft_tokens(self) -> int:
        tokens, dtype = self.draft_tokens, self.draft_dtype
        if self.draft is None:
            if tokens or dtype is not None:
                found = f"draft_tokens is {tokens}" if tokens else f"draft_dtype is {dtype!r}"
                raise ValueError(
                    f"{found}, but nothing drafts: give draft='ngram' or a draft model"
                )
            return 0
        if self.draft == NGRAM and dtype is not None:
            raise ValueError(f"draft_dtype is {dtype!r}, but draft='ngram' is no model")
        tokens = DRAFT_TOKENS if tokens is None else tokens
        if not 1 <= tokens <= MOST_DRAFT_TOKENS:
            raise ValueError(f"draft_tokens is {tokens}, expected 1 to {MOST_DRAFT_TOKENS}")
        return tokens


@dataclass(frozen=True)
class TextLoadOptions(LoadOptions):
    """Everything that can be said when a `TextModel` is loaded."""

    max_length: int | None = count(
        None,
        "tokens",
        "where to cut texts; None: as the model's files say",
        "Most tokens of a text; by default as the model's files say.",
        group=BATCH,
    )
    generation_config: bool = option(
        True,
        "lets a model that generates do so as its generation_config.json says where a call says "
        "nothing else. False: by the defaults of `Sampling`; the tokens that end a text still "
        "count",
        "Follow the model's generation_config.json where nothing else is said.",
        group=GENERATION,
        check=check_switch,
    )


READING = tuple(one.name for one in fields(LoadOptions) if said(one).reads)
ONLY_SPEED = tuple(one.name for one in fields(LoadOptions) if said(one).speed)
