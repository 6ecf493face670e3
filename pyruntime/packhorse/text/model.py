"""TextModel: text in, results out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sized
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
import numpy.typing as npt

from packhorse.names import AggregationStrategy, EmbeddingDtype, ScoreActivation, Truncation
from packhorse.progress_bar import Progress
from packhorse.result import FloatArray
from packhorse.retrieval import SimilarityFunction, similarity
from packhorse.text.async_methods import AwaitedText, show_signatures
from packhorse.text.other_names import says_our_names
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

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from packhorse.text.call_types import (
        AnswerCall,
        ClassifyCall,
        EmbedCall,
        EntityCall,
        MaskCall,
        PromptCall,
        ScoreCall,
    )


class TextModel(AwaitedText):
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
        """How well each document answers the query: float32[documents]; of one str, a float.

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
        """Of each (query, document), what sentence-transformers' CrossEncoder predicts: float32[N].

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
        """What a classifier of tokens finds: a list for each text; of a single str, its own list.

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


show_signatures(TextModel)
