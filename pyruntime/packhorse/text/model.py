"""TextModel: text in, results out."""

from __future__ import annotations

from packhorse.text.answers import Answering
from packhorse.text.embeddings import Embedding
from packhorse.text.entities import TokenClassifying
from packhorse.text.generation import GeneratingText
from packhorse.text.labels import Classifying
from packhorse.text.masks import MaskFilling
from packhorse.text.retrieval import Retrieval
from packhorse.text.scores import Scoring


class TextModel(
    Embedding,
    Retrieval,
    Scoring,
    Classifying,
    TokenClassifying,
    Answering,
    MaskFilling,
    GeneratingText,
):
    """A session and the tokenizer of its model. Made by `load`.

    Texts may be any iterable, generators included, of any number: they are tokenized in chunks,
    one ahead of what runs, packed as they come, and results keep their order. A pair of texts is a
    tuple of two. What a model has no head for is refused with a ValueError. Arguments of several
    methods:

    max_length  most tokens of a text or pair, special tokens included; None: `self.max_length`
    truncation  True: what is longer is cut, and counted in `num_truncated`; of pairs, token by
                token off the longer text, or off one of them ("only_first", "only_second"). False:
                it is a ValueError that names the text
    progress    called with (texts done, texts in total or None)

    Any number of threads may use one model.
    """
