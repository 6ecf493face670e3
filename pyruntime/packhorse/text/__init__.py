"""Text in, results out: models with their tokenizers. Needs the extra `text`."""

from packhorse.text.embeddings import quantize_embeddings
from packhorse.text.generator import TextStreaming
from packhorse.text.labels import Label
from packhorse.text.masks import Word
from packhorse.text.model import TextModel
from packhorse.text.spans import Answer
from packhorse.text.tagging import Entity, EntityGroup
from packhorse.text.tokenizer import TextTokenizer, Tokens

__all__ = [
    "Answer",
    "Entity",
    "EntityGroup",
    "Label",
    "TextModel",
    "TextStreaming",
    "TextTokenizer",
    "Tokens",
    "Word",
    "quantize_embeddings",
]
