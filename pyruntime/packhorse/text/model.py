"""TextModel: text in, results out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence, Sized
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from packhorse.encoder_session import EncoderSession
from packhorse.generation.results import Generation
from packhorse.generation.session import GenerationSession
from packhorse.heads import methods_for
from packhorse.load_options import ModelPath, TextLoadOptions
from packhorse.names import (
    AggregationStrategy,
    AskedDtype,
    EmbeddingDtype,
    ScoreActivation,
    Truncation,
)
from packhorse.option_fields import takes_options
from packhorse.progress_bar import Progress, shows_loading
from packhorse.result import FloatArray
from packhorse.retrieval import SimilarityFunction, similarity
from packhorse.session import Session
from packhorse.text.checks import Text
from packhorse.text.generation.calls import Conversation, TextGeneration
from packhorse.text.generation.chat_template import ChatTemplates
from packhorse.text.generation.generator import TextStreaming
from packhorse.text.generation.options import (
    ChatCall,
    GenerateCall,
    SummarizeCall,
    TemplateCall,
    TranslateCall,
)
from packhorse.text.loading import load_parts
from packhorse.text.other_names import missing_attribute, says_our_names
from packhorse.text.runner import TextRunner
from packhorse.text.signatures import shows_as, shows_options
from packhorse.text.tasks.answers import Answering
from packhorse.text.tasks.embeddings import Embedding
from packhorse.text.tasks.entities import TokenClassification
from packhorse.text.tasks.labels import Classification, Label, LabelledText
from packhorse.text.tasks.masks import MaskFilling, Word
from packhorse.text.tasks.scores import Pairs, Scoring
from packhorse.text.tasks.spans import Answer, AnswerOptions
from packhorse.text.tasks.sparse import SparseEmbedding, SparseVector
from packhorse.text.tasks.tagging import Entity, EntityGroup
from packhorse.text.tasks.token_vectors import TokenEmbedding
from packhorse.text.tokenization.tokenizer import TextTokenizer
from packhorse.text.translation.translation import PartsStreaming, TextToText

if TYPE_CHECKING:
    from packhorse_weights.generation_files import GenerationFiles
    from typing_extensions import Unpack

    from packhorse.load_options import TextCall
    from packhorse.text.call_types import (
        AnswerCall,
        ClassifyCall,
        EmbedCall,
        EntityCall,
        MaskCall,
        PairCall,
        PromptCall,
        ScoreCall,
    )

    class _EmbedCall(EmbedCall, total=False):
        dtype: EmbeddingDtype

    class _ClassifyCall(PairCall, total=False):
        top_k: int | None


Self = TypeVar("Self", bound="TextModel")


class TextModel:
    """A session and the tokenizer of its model. Made by `load`.

    Texts may be any iterable, generators included, of any number: they are tokenized in chunks,
    one ahead of what runs, packed as they come, and results keep their order. A pair of texts is a
    tuple of two. What a model has no head for is refused with a ValueError. Arguments of several
    methods:

    max_length  most tokens of a text or pair, special tokens included; None: `self.max_length`
    truncation  True: what is longer is cut, and counted in `num_truncated`; of pairs, token by
                token off the longer text, or off one of them ("only_first", "only_second"). False:
                it is a ValueError that names the text
    progress    called with (texts done, texts in total or None); True: a bar on stderr; None: one
                where that is a terminal and the call takes more than two seconds; False: none

    Any number of threads may use one model: their requests share batches (docs/text.md).
    """

    def __init__(
        self,
        session: Session,
        tokenizer: TextTokenizer,
        max_length: int | None = None,
        files: GenerationFiles | None = None,
    ) -> None:
        """`files` is what the model's files say about generation; None: `session` does not
        generate."""
        self._runner = TextRunner(session, tokenizer, max_length)
        self._generation = None if files is None else TextGeneration(self._runner, files)
        self._to_text = None
        if self._generation is not None and self._generation.sources is not None:
            self._to_text = TextToText(self._generation, self._runner)

    @property
    def session(self) -> Session:
        """The session that runs the model."""
        return self._runner.session

    @property
    def encoder_session(self) -> EncoderSession:
        """The session of a model that gives vectors, scores or labels. Raises ValueError for a
        model that generates."""
        return self._runner.encoder

    @property
    def generation_session(self) -> GenerationSession:
        """The session of a model that generates, with its cache, adapters and statistics. Raises
        ValueError for a model that does not."""
        self._generator("generation_session")
        return cast(GenerationSession, self.session)

    def _generator(self, method: str) -> TextGeneration:
        """Raises ValueError where the model does not generate."""
        if self._generation is None:
            methods = " or ".join(methods_for(self.session.config))
            raise ValueError(
                f"{method}: this model was not loaded for generation: use {methods}, or load a "
                "causal language model, with kv_tokens over 0 where its files say otherwise"
            )
        return self._generation

    @property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer of the model."""
        return self._runner.tokenizer

    @property
    def max_length(self) -> int:
        """Most tokens of a text or pair, where a call says nothing else. May be set."""
        return self._runner.max_length

    @max_length.setter
    def max_length(self, tokens: int) -> None:
        runner = copy(self._runner)  # copies of the model keep theirs
        runner.max_length = runner.longest(tokens)
        self._runner = runner

    @classmethod
    @shows_loading
    @takes_options(TextLoadOptions)
    def load(
        cls: type[Self],
        path: ModelPath,
        device: str = "cpu",
        dtype: AskedDtype | None = None,
        *,
        progress: bool | None = None,
        **options: Unpack[TextCall],
    ) -> Self:
        """Loads a model with its tokenizer.

        {options}
        max_tokens       tokens of the largest batch; None: 8192, or `max_length` where that is
                         more; for a model that generates, as in `Session.load`

        The other arguments are those of `Session.load`.

        Raises as `Session.load`; ValueError also for a tokenizer that is missing or not usable,
        ModuleNotFoundError without the package tokenizers.
        """
        return cls(*load_parts(path, TextLoadOptions(device=device, dtype=dtype, **options)))

    if not TYPE_CHECKING:  # type checkers would accept any name if they saw this

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(type(self).__name__, name)

    def close(self) -> None:
        """Closes the session (`Session.close`). Methods that need it raise RuntimeError then."""
        self.session.close()

    def __enter__(self: Self) -> Self:
        self.session.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def labels(self) -> list[str]:
        """The labels of the model's classifier; empty where it has none."""
        return self.session.labels

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts by name, as sentence-transformers keeps them with a model."""
        return dict(self.tokenizer.config.prompts)

    @property
    def num_truncated(self) -> int:
        """The number of texts and pairs that were cut short so far."""
        return self.tokenizer.num_truncated

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session!r}, max_length={self.max_length})"

    @overload
    def embed(
        self,
        texts: str | Iterable[str],
        *,
        dtype: Literal["float32"] = ...,
        **options: Unpack[EmbedCall],
    ) -> FloatArray: ...
    @overload
    def embed(
        self, texts: str | Iterable[str], *, dtype: Literal["float16"], **options: Unpack[EmbedCall]
    ) -> npt.NDArray[np.float16]: ...
    @overload
    def embed(
        self,
        texts: str | Iterable[str],
        *,
        dtype: Literal["int8", "binary"],
        **options: Unpack[EmbedCall],
    ) -> npt.NDArray[np.int8]: ...
    @overload
    def embed(
        self,
        texts: str | Iterable[str],
        *,
        dtype: Literal["uint8", "ubinary"],
        **options: Unpack[EmbedCall],
    ) -> npt.NDArray[np.uint8]: ...
    @overload
    def embed(
        self, texts: str | Iterable[str], *, dtype: EmbeddingDtype, **options: Unpack[EmbedCall]
    ) -> npt.NDArray[Any]: ...
    @says_our_names
    def embed(
        self,
        texts: str | Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        truncate_dim: int | None = None,
        normalize: bool | None = None,
        dtype: EmbeddingDtype = "float32",
        ranges: npt.ArrayLike | None = None,
        max_length: int | None = None,
        truncation: bool = True,
        progress: Progress | None = None,
        show_progress_bar: bool | None = None,
    ) -> npt.NDArray[Any]:
        """Embeddings [texts, dims]; [dims] of a single str.

        prompt        goes before every text; "": none
        prompt_name   of one of `self.prompts`. Neither: the model's default one, where it has one
        truncate_dim  only the first dimensions, of models trained for that (Matryoshka); None: as
                      `truncate_dim` of config_sentence_transformers.json says, else all
        normalize     to length 1, after that. None: the model's own embeddings have length 1 where
                      its files say so, and what is cut of them is left as it is, as in
                      sentence-transformers. False is the same as None
        show_progress_bar
                      as `progress`, where that is not given
        dtype         "float32", "float16", "int8", "uint8", "binary" or "ubinary", with `ranges` as
                      `quantize_embeddings` says; but int8 and uint8 without ranges are a ValueError
                      where there are fewer than 100 texts to take them from
        """
        task = Embedding(
            self._runner,
            prompt=prompt,
            prompt_name=prompt_name,
            truncate_dim=truncate_dim,
            normalize=normalize,
            dtype=dtype,
            ranges=ranges,
            max_length=max_length,
            truncation=truncation,
        )
        return task.run(texts, show_progress_bar if progress is None else progress)

    def similarity(self, a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
        """Compares embeddings [N, dims] with [M, dims]: float32 [N, M], a higher number for
        those that are more alike. By the function that the model's files name, as
        sentence-transformers does it, else the cosine (`packhorse.similarity`)."""
        return similarity(a, b, cast(SimilarityFunction, self.tokenizer.config.similarity))

    @overload
    def embed_sparse(self, texts: str, **options: Unpack[PromptCall]) -> SparseVector: ...
    @overload
    def embed_sparse(
        self, texts: Iterable[str], **options: Unpack[PromptCall]
    ) -> list[SparseVector]: ...
    @says_our_names
    def embed_sparse(
        self,
        texts: str | Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        max_length: int | None = None,
        truncation: bool = True,
        progress: Progress | None = None,
    ) -> Any:
        """(token ids, weights) of each text, ids ascending, weights above zero, in a list; of a
        single str, its own pair.

        Of SPLADE models, which weigh the whole vocabulary, and of those like BGE-M3, which weigh a
        text's own tokens: of a token that comes more than once the largest weight counts, special
        tokens do not. Other models: ValueError. Prompts as in `embed`.
        """
        task = SparseEmbedding(
            self._runner,
            prompt=prompt,
            prompt_name=prompt_name,
            max_length=max_length,
            truncation=truncation,
        )
        return task.run(texts, progress)

    @overload
    def embed_tokens(self, texts: str, **options: Unpack[PromptCall]) -> FloatArray: ...
    @overload
    def embed_tokens(
        self, texts: Iterable[str], **options: Unpack[PromptCall]
    ) -> list[FloatArray]: ...
    @says_our_names
    def embed_tokens(
        self,
        texts: str | Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        max_length: int | None = None,
        truncation: bool = True,
        progress: Progress | None = None,
    ) -> Any:
        """A vector for each token of each text, special tokens too: a list of [tokens, size]; of a
        single str, its own. They have length 1 where the model makes them so.

        For late interaction (`packhorse.late_interaction`), of models that have such vectors: those
        of ColBERT's kind and BGE-M3. Other models: ValueError. Prompts as in `embed`.
        """
        task = TokenEmbedding(
            self._runner,
            prompt=prompt,
            prompt_name=prompt_name,
            max_length=max_length,
            truncation=truncation,
        )
        return task.run(texts, progress)

    @overload
    def score(self, query: str, documents: str, **options: Unpack[ScoreCall]) -> float: ...
    @overload
    def score(
        self, query: str, documents: Iterable[str], **options: Unpack[ScoreCall]
    ) -> FloatArray: ...
    @says_our_names
    def score(
        self,
        query: str,
        documents: str | Iterable[str],
        *,
        instruction: str | None = None,
        activation: ScoreActivation | None = None,
        max_length: int | None = None,
        truncation: bool | Truncation = True,
        progress: Progress | None = None,
    ) -> Any:
        """Scores how well each document answers the query: float32[documents]; of one str, a float.

        A score is what `score_pairs` gives for the pair (query, document), and the other arguments
        are as there. Raises ValueError as that does.
        """
        if not isinstance(query, str):
            raise ValueError(f"query is {query!r:.80}, expected a str")
        task = Scoring(
            self._runner,
            instruction=instruction,
            max_length=max_length,
            truncation=truncation,
            activation=activation,
        )
        return task.run_query(query, documents, progress)

    @says_our_names
    def score_pairs(
        self,
        pairs: Pairs,
        *,
        instruction: str | None = None,
        activation: ScoreActivation | None = None,
        max_length: int | None = None,
        truncation: bool | Truncation = True,
        progress: Progress | None = None,
    ) -> FloatArray:
        """Scores each (query, document) as sentence-transformers' CrossEncoder does: float32[N].

        That is the logit of the model's one label, after the activation that the checkpoint names;
        of a generative reranker, the probability of "yes" among "yes" and "no", unless that
        activation is Identity: then the logit of "yes" less that of "no".

        instruction  what makes a document a good one, for generative rerankers; None: the model's
                     default prompt, else its template's. Their texts, written as one, are cut on
                     the side that the tokenizer's files say; what the template puts around them
                     stays
        activation   "sigmoid", or "none" for logits, in place of the checkpoint's; None: its own

        Raises ValueError: the model scores no pairs, or its spec's template is not usable; an
        instruction where the model or its template takes none; truncation to one text of a pair
        with a template; a pair that is not one, by its number; a `max_length` that leaves no room
        or is more than the model's; a pair longer than that with `truncation=False`.
        """
        task = Scoring(
            self._runner,
            instruction=instruction,
            max_length=max_length,
            truncation=truncation,
            activation=activation,
        )
        return task.run(pairs, len(pairs) if isinstance(pairs, Sized) else None, progress)

    @overload
    def classify(
        self,
        texts: str | Mapping[str, str | None],
        *,
        top_k: Literal[1] = ...,
        **options: Unpack[ClassifyCall],
    ) -> Label: ...
    @overload
    def classify(
        self,
        texts: str | Mapping[str, str | None],
        *,
        top_k: int | None,
        **options: Unpack[ClassifyCall],
    ) -> list[Label]: ...
    @overload
    def classify(
        self,
        texts: Iterable[LabelledText],
        *,
        top_k: Literal[1] = ...,
        **options: Unpack[ClassifyCall],
    ) -> list[Label]: ...
    @overload
    def classify(
        self, texts: Iterable[LabelledText], *, top_k: int | None, **options: Unpack[ClassifyCall]
    ) -> list[list[Label]]: ...
    @says_our_names
    def classify(
        self,
        texts: str | Mapping[str, str | None] | Iterable[LabelledText],
        *,
        top_k: int | None = 1,
        max_length: int | None = None,
        truncation: bool | Truncation = True,
        activation: ScoreActivation | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """The best label of each text or pair, {"label": ..., "score": its probability}, in a list.

        With another `top_k` each result is a list of so many labels, best first; with None, of all
        labels. A single str gives its own result. Probabilities are a softmax over the labels, or a
        sigmoid of each one where the model was trained for several at once or has but one; a
        regression gives its logit. So does transformers' pipeline, also for pairs in its own form,
        {"text": ..., "text_pair": ...}. A pair as a tuple or list gives what sentence-transformers'
        CrossEncoder predicts: with several labels logits, unless the model's files name an
        activation.

        activation  "softmax", "sigmoid", or "none" for logits, in place of all these
        """
        task = Classification(
            self._runner,
            top_k=top_k,
            max_length=max_length,
            truncation=truncation,
            activation=activation,
        )
        return task.run(texts, progress)

    @overload
    def classify_tokens(
        self,
        texts: str,
        *,
        aggregation_strategy: Literal["none"] = ...,
        **options: Unpack[EntityCall],
    ) -> list[Entity]: ...
    @overload
    def classify_tokens(
        self,
        texts: str,
        *,
        aggregation_strategy: Literal["simple", "first", "average", "max"],
        **options: Unpack[EntityCall],
    ) -> list[EntityGroup]: ...
    @overload
    def classify_tokens(
        self,
        texts: Iterable[str],
        *,
        aggregation_strategy: Literal["none"] = ...,
        **options: Unpack[EntityCall],
    ) -> list[list[Entity]]: ...
    @overload
    def classify_tokens(
        self,
        texts: Iterable[str],
        *,
        aggregation_strategy: Literal["simple", "first", "average", "max"],
        **options: Unpack[EntityCall],
    ) -> list[list[EntityGroup]]: ...
    @overload
    def classify_tokens(
        self,
        texts: str | Iterable[str],
        *,
        aggregation_strategy: AggregationStrategy,
        **options: Unpack[EntityCall],
    ) -> list[Any]: ...
    @says_our_names
    def classify_tokens(
        self,
        texts: str | Iterable[str],
        *,
        aggregation_strategy: AggregationStrategy = "none",
        ignore_labels: Collection[str] = ("O",),
        stride: int | None = None,
        max_length: int | None = None,
        truncation: bool = True,
        progress: Progress | None = None,
    ) -> Any:
        """Lists what a classifier of tokens finds in each text; of a single str, its own list.

        "none": for each token {"entity", "score", "index", "word", "start", "end"}; "simple": for
        each run of tokens of one kind {"entity_group", "score" (the mean), "word", "start", "end"}.
        "first", "average", "max": the same for runs of words, each of which has the label of its
        first token, of the mean of its tokens' scores, or of its surest token.
        `start` and `end` count characters, `word` is text[start:end], `index` counts tokens. Left
        out: special tokens, and what has one of `ignore_labels`.

        stride  None: what is longer than `max_length` is cut. Else it is read in windows that share
                so many tokens; of entities that overlap the longest is kept. Not with "none"

        Raises ValueError: a model that does not label tokens; a pair; a stride that leaves windows
        no room.
        """
        task = TokenClassification(
            self._runner,
            aggregation_strategy=aggregation_strategy,
            ignore_labels=ignore_labels,
            stride=stride,
            max_length=max_length,
            truncation=truncation,
        )
        return task.run(texts, progress)

    @overload
    def answer(
        self, question: str, context: str, *, top_k: Literal[1] = ..., **options: Unpack[AnswerCall]
    ) -> Answer: ...
    @overload
    def answer(
        self, question: str, context: str, *, top_k: int, **options: Unpack[AnswerCall]
    ) -> list[Answer]: ...
    @overload
    def answer(
        self,
        question: Iterable[str],
        context: str | Iterable[str],
        *,
        top_k: Literal[1] = ...,
        **options: Unpack[AnswerCall],
    ) -> list[Answer]: ...
    @overload
    def answer(
        self,
        question: Iterable[str],
        context: str | Iterable[str],
        *,
        top_k: int,
        **options: Unpack[AnswerCall],
    ) -> list[list[Answer]]: ...
    @says_our_names
    def answer(
        self,
        question: str | Iterable[str],
        context: str | Iterable[str],
        *,
        top_k: int = 1,
        max_length: int | None = None,
        stride: int | None = None,
        max_answer_length: int = 15,
        allow_none: bool = False,
        align_to_words: bool = True,
    ) -> Any:
        """Where the context answers the question: {"score", "start", "end", "answer"}.

        Two str give the answer itself. As many questions as contexts, or several questions about
        one context, give a list. With `top_k` over 1 each result is a list of up to so many
        answers, best first.
        `start` and `end` count characters of the context, `answer` is context[start:end].

        max_length         tokens of a window; None: `self.max_length`, but at most 384
        stride             tokens that neighbouring windows share; None: 128, but at most half of a
                           window
        max_answer_length  tokens of an answer
        allow_none         whether "" may be the answer (transformers: handle_impossible_answer)
        align_to_words     whether answers are made of whole words

        Equal to the question-answering pipeline of transformers 4, whose `doc_stride` is `stride`,
        `max_seq_len` `max_length` and `max_answer_len` `max_answer_length`. An empty context, which
        it refuses, gives "" with score 0, or 1 with `allow_none`.

        Raises ValueError: a model that does not answer questions; a question that leaves no room.
        """
        options = AnswerOptions(top_k, max_answer_length, allow_none, align_to_words)
        task = Answering(self._runner, max_length=max_length, stride=stride, options=options)
        return task.run(question, context)

    @overload
    def fill_mask(self, texts: str, **options: Unpack[MaskCall]) -> list[Word] | Any: ...
    @overload
    def fill_mask(
        self, texts: Iterable[str], **options: Unpack[MaskCall]
    ) -> list[list[Word] | Any]: ...
    @says_our_names
    def fill_mask(
        self,
        texts: str | Iterable[str],
        *,
        top_k: int = 5,
        targets: str | Iterable[str] | None = None,
        max_length: int | None = None,
        truncation: bool = True,
    ) -> Any:
        """The `top_k` likeliest tokens for the mask of each text, best first, each {"score",
        "token" (its id), "token_str", "sequence" (the text with it)}; a list of such lists for a
        text with several masks. A single str gives its own result. Equal to transformers'
        fill-mask pipeline.

        targets  only these tokens; what is no entry of the vocabulary counts as its first token,
                 with a UserWarning

        Scores are softmax probabilities over the vocabulary. The model is loaded with
        `max_predictions`: no text may have more masks. Raises ValueError for a text without a mask,
        and for a model without this head.
        """
        task = MaskFilling(
            self._runner, top_k=top_k, targets=targets, max_length=max_length, truncation=truncation
        )
        return task.run(texts)

    @overload
    def generate(
        self, prompt: str, *, stream: Literal[True], **options: Unpack[GenerateCall]
    ) -> TextStreaming: ...
    @overload
    def generate(
        self,
        prompt: str,
        *,
        n: Literal[1] = ...,
        stream: Literal[False] = ...,
        details: Literal[False] = ...,
        **options: Unpack[GenerateCall],
    ) -> str: ...
    @overload
    def generate(
        self,
        prompt: str,
        *,
        n: int,
        stream: Literal[False] = ...,
        details: Literal[False] = ...,
        **options: Unpack[GenerateCall],
    ) -> list[str]: ...
    @overload
    def generate(
        self,
        prompt: str,
        *,
        n: Literal[1] = ...,
        stream: Literal[False] = ...,
        details: Literal[True],
        **options: Unpack[GenerateCall],
    ) -> Generation: ...
    @overload
    def generate(
        self,
        prompt: str,
        *,
        n: int,
        stream: Literal[False] = ...,
        details: Literal[True],
        **options: Unpack[GenerateCall],
    ) -> list[Generation]: ...
    @overload
    def generate(
        self,
        prompt: Iterable[str],
        *,
        n: Literal[1] = ...,
        stream: Literal[False] = ...,
        details: Literal[False] = ...,
        **options: Unpack[GenerateCall],
    ) -> list[str]: ...
    @overload
    def generate(
        self,
        prompt: Iterable[str],
        *,
        n: int,
        stream: Literal[False] = ...,
        details: Literal[False] = ...,
        **options: Unpack[GenerateCall],
    ) -> list[list[str]]: ...
    @overload
    def generate(
        self,
        prompt: Iterable[str],
        *,
        n: Literal[1] = ...,
        stream: Literal[False] = ...,
        details: Literal[True],
        **options: Unpack[GenerateCall],
    ) -> list[Generation]: ...
    @overload
    def generate(
        self,
        prompt: Iterable[str],
        *,
        n: int,
        stream: Literal[False] = ...,
        details: Literal[True],
        **options: Unpack[GenerateCall],
    ) -> list[list[Generation]]: ...
    @shows_options(GenerateCall)
    def generate(
        self,
        prompt: str | Iterable[str],
        *,
        n: int = 1,
        stream: bool = False,
        details: bool = False,
        **options: Unpack[GenerateCall],
    ) -> Any:
        """The text with which the model goes on after a prompt, or which a model with an encoder
        makes of it; a list of texts, in order, for several prompts, and for each a list of n for n
        over 1.

        stream   of one prompt: gives the pieces of the text as they come (`TextStreaming`). They
                 never end within a character, and joined they are the text
        progress of several prompts, as of the methods of `TextModel` that take texts
        details  gives `Generation` objects: text, ids, finish_reason, logprobs, usage
        stop     a text, or several, before the first of which the text ends, whatever tokens it is
                 made of
        include_stop
                 whether what ends the text, by `stop` or `stop_ids`, is a part of it
        bad_words
                 a text, or several, that may not be written: `bad_words_ids` of their tokens, at
                 the beginning of a text and after a space
        schema, regex, choices, grammar
                 at most one of them: the output is JSON of this schema (a dict, its text, a class
                 of pydantic, or True for any JSON), matches a regular expression as a whole, is
                 one of some texts, or follows a grammar (llama.cpp's GBNF, or Lark). Needs the
                 extra `structured`
        return_attention, attention_layer
                 of a model with an encoder, with details: as of `translate`

        The other options are those of `Sampling`. What is left out, or None, is as
        generation_config.json or the GGUF file says, else as in `Sampling`: the most probable token
        each time. `max_new_tokens` is 256 where neither says it; what goes beyond the context or
        the cache ends there, with the finish reason "length".

        Raises ValueError: a model that does not generate; a prompt beyond the context (the message
        has both numbers); options that are not acceptable. RuntimeError: the session was closed, or
        a request failed. An error or Ctrl-C cancels what still runs.
        """
        generation = self._generator("generate")
        if stream:
            _check_plain(n, details)
            return generation.stream(prompt, options)
        return generation.generate(prompt, n, details, options)

    def _translator(self, method: str) -> TextToText:
        """Raises ValueError where the model has no encoder that reads texts for a decoder."""
        self._generator(method)
        if self._to_text is None:
            raise ValueError(
                f"{method}: this model has no encoder beside its decoder: use generate or chat, "
                "or load a model for text to text, such as T5, BART, Marian or NLLB"
            )
        return self._to_text

    @overload
    def translate(
        self, texts: str, *, stream: Literal[True], **options: Unpack[TranslateCall]
    ) -> PartsStreaming: ...
    @overload
    def translate(
        self, texts: str, *, n: Literal[1] = ..., **options: Unpack[TranslateCall]
    ) -> str: ...
    @overload
    def translate(
        self, texts: Iterable[str], *, n: Literal[1] = ..., **options: Unpack[TranslateCall]
    ) -> list[str]: ...
    @overload
    def translate(
        self,
        texts: str | Iterable[str],
        *,
        n: int = ...,
        stream: bool = ...,
        details: bool = ...,
        **options: Unpack[TranslateCall],
    ) -> Any: ...
    @shows_options(TranslateCall)
    def translate(
        self,
        texts: str | Iterable[str],
        *,
        n: int = 1,
        stream: bool = False,
        details: bool = False,
        **options: Unpack[TranslateCall],
    ) -> Any:
        """Translations of texts of any length, in order, by a model with an encoder and a decoder;
        of one text, its own; for n over 1 a list of n for each.

        source, target  languages, as the model names them ("fra_Latn", "fr_XX", "fr") or by ISO
                        639-1; None: as the model's files say. A model with one direction needs
                        none, and checks those that are given
        target_prefix   the beginning of the translation, with which the result begins; of texts
                        that are not cut
        split           "long": a text that has more tokens than `self.max_length` is cut by
                        sentences, and the translations put together again with the white space that
                        stands between; "sentences": each sentence is translated by itself; "never":
                        a text that is too long is a ValueError
        return_attention
                        with details: each `Generation` has `attention`, which tells for each token
                        the tokens of the text that it attends to, and `source_ids`, these
        attention_layer the layer of the decoder whose heads' mean that is, by default the last one;
                        0 is the first, and -1 the last
        stream          of one text: gives the pieces as they come, without the beam search that
                        the model's files may ask for

        The other arguments, results and errors are those of `generate`, beam search and its options
        as the model's generation_config.json says among them.
        """
        asked: dict[str, Any] = dict(options)
        progress = asked.pop("progress", None)
        own = {name: asked.pop(name) for name in ("source", "target") if name in asked}
        task = self._translator("translate").translation(
            own.get("source"),
            own.get("target"),
            n=n,
            target_prefix=asked.pop("target_prefix", None) or "",
            split=asked.pop("split", None) or "long",
            options=asked,
        )
        if stream:
            _check_plain(n, details)
            return task.stream(texts)
        return task.run(texts, details, progress)

    @shows_options(SummarizeCall)
    def summarize(
        self,
        texts: str | Iterable[str],
        *,
        n: int = 1,
        stream: bool = False,
        details: bool = False,
        **options: Unpack[SummarizeCall],
    ) -> Any:
        """Summaries of texts, by a model with an encoder and a decoder that was trained for them:
        with what `task_specific_params` of its config.json says for "summarization", the beginning
        of each text among it. Of a text that is longer than `self.max_length`, the summaries of its
        parts one after the other (`split`). Arguments and errors as of `translate`."""
        asked: dict[str, Any] = dict(options)
        progress = asked.pop("progress", None)
        split: Any = asked.pop("split", None) or "long"
        task = self._translator("summarize").summary(n=n, split=split, options=asked)
        if stream:
            _check_plain(n, details)
            return task.stream(texts)
        return task.run(texts, details, progress)

    @overload
    def chat(
        self, messages: Conversation, *, stream: Literal[True], **options: Unpack[ChatCall]
    ) -> TextStreaming: ...
    @overload
    def chat(
        self,
        messages: Conversation,
        *,
        n: Literal[1] = ...,
        stream: Literal[False] = ...,
        details: Literal[False] = ...,
        **options: Unpack[ChatCall],
    ) -> str: ...
    @overload
    def chat(
        self,
        messages: Conversation,
        *,
        n: int,
        stream: Literal[False] = ...,
        details: Literal[False] = ...,
        **options: Unpack[ChatCall],
    ) -> list[str]: ...
    @overload
    def chat(
        self,
        messages: Conversation,
        *,
        n: Literal[1] = ...,
        stream: Literal[False] = ...,
        details: Literal[True],
        **options: Unpack[ChatCall],
    ) -> Generation: ...
    @overload
    def chat(
        self,
        messages: Conversation,
        *,
        n: int,
        stream: Literal[False] = ...,
        details: Literal[True],
        **options: Unpack[ChatCall],
    ) -> list[Generation]: ...
    @overload
    def chat(
        self, messages: Sequence[Conversation], *, n: int = ..., **options: Unpack[ChatCall]
    ) -> list[Any]: ...
    @overload
    def chat(
        self,
        messages: Sequence[Conversation],
        *,
        n: int = ...,
        details: bool,
        **options: Unpack[ChatCall],
    ) -> list[Any]: ...
    @shows_options(ChatCall, ChatTemplates.render)
    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        *,
        n: int = 1,
        stream: bool = False,
        details: bool = False,
        **options: Unpack[ChatCall],
    ) -> Any:
        """The model's answer in a conversation, a list of {"role": ..., "content": ...}; a list of
        answers for a list of conversations.

        The prompt is what the model's chat template writes, as in transformers.

        tools                   functions that the model may call: Python functions with type hints
                                and a docstring, or JSON schemas of the form {"type": "function",
                                "function": {...}}. With details=True the calls that are found in an
                                answer are its `tool_calls`
        tool_choice             "auto", "none", "required" (some call must come; needs the extra
                                `structured`), or {"function": {"name": ...}}, which must be called
        parallel_tool_calls     whether an answer may have several calls; default True
        documents               for templates that have a place for them
        chat_template           the name of one of the model's templates, or a template (Jinja)
        add_generation_prompt   whether the template begins the answer; default True
        continue_final_message  the last message is the beginning of the answer, which is continued;
                                with add_generation_prompt=False
        template_args           what else the template knows, such as {"enable_thinking": False}

        The other arguments, results and errors are those of `generate`; ValueError also for a model
        without a chat template, and for what the template refuses.
        """
        generation = self._generator("chat")
        if stream:
            _check_plain(n, details)
            return generation.stream_chat(messages, options)
        return generation.chat(messages, n, details, options)

    @shows_options(GenerateCall)
    def generate_async(self, prompt: str, **options: Unpack[GenerateCall]) -> AsyncIterator[str]:
        """The pieces of one text, for `async for`: as `generate(prompt, stream=True)`. Whoever ends
        the iteration early, or is cancelled, cancels the request. No thread waits meanwhile."""
        return self._generator("generate_async").stream(prompt, options, timeout_s=0).pieces()

    @shows_options(ChatCall, ChatTemplates.render)
    def chat_async(self, messages: Conversation, **options: Unpack[ChatCall]) -> AsyncIterator[str]:
        """The pieces of one answer, for `async for`: as `chat(messages, stream=True)`."""
        generation = self._generator("chat_async")
        return generation.stream_chat(messages, options, timeout_s=0).pieces()

    @shows_options(TemplateCall, ChatTemplates.render)
    def apply_chat_template(self, messages: Conversation, **options: Unpack[TemplateCall]) -> str:
        """The prompt that `chat` makes of a conversation; its options are those of the template."""
        return self._generator("apply_chat_template").templates.render(messages, **options)

    # Each coroutine runs its method in a thread of asyncio's own, where it shares batches with the
    # others. One that is cancelled runs to its end, unseen.

    async def _in_thread(self, method: str, *arguments: Any, **options: Any) -> Any:
        import asyncio

        return await asyncio.to_thread(getattr(self, method), *arguments, **options)

    @shows_as(embed)
    async def embed_async(
        self, texts: str | Iterable[str], **options: Unpack[_EmbedCall]
    ) -> npt.NDArray[Any]:
        """`embed`, for `await`."""
        found: npt.NDArray[Any] = await self._in_thread("embed", texts, **options)
        return found

    @shows_as(embed_sparse)
    async def embed_sparse_async(
        self, texts: str | Iterable[str], **options: Unpack[PromptCall]
    ) -> Any:
        """`embed_sparse`, for `await`."""
        return await self._in_thread("embed_sparse", texts, **options)

    @shows_as(embed_tokens)
    async def embed_tokens_async(
        self, texts: str | Iterable[str], **options: Unpack[PromptCall]
    ) -> Any:
        """`embed_tokens`, for `await`."""
        return await self._in_thread("embed_tokens", texts, **options)

    @shows_as(score)
    async def score_async(
        self, query: str, documents: str | Iterable[str], **options: Unpack[ScoreCall]
    ) -> Any:
        """`score`, for `await`."""
        return await self._in_thread("score", query, documents, **options)

    @shows_as(score_pairs)
    async def score_pairs_async(self, pairs: Pairs, **options: Unpack[ScoreCall]) -> FloatArray:
        """`score_pairs`, for `await`."""
        found: FloatArray = await self._in_thread("score_pairs", pairs, **options)
        return found

    @shows_as(classify)
    async def classify_async(
        self, texts: str | Iterable[Text], **options: Unpack[_ClassifyCall]
    ) -> Any:
        """`classify`, for `await`."""
        return await self._in_thread("classify", texts, **options)


def _check_plain(n: int, details: bool) -> None:
    if n != 1:
        raise ValueError(f"stream=True gives one text: n is {n!r:.80}, expected 1")
    if details:
        raise ValueError(
            "stream=True gives pieces of text, details=True a Generation: when the stream has "
            "ended, its `result` is one"
        )
