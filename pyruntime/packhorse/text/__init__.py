"""Text in, results out: models with their tokenizers. Needs the extra `text`."""

from packhorse.text.generation.generator import TextStreaming
from packhorse.text.model import TextModel
from packhorse.text.tasks.embeddings import quantize_embeddings
from packhorse.text.tasks.labels import Label
from packhorse.text.tasks.masks import Word
from packhorse.text.tasks.spans import Answer
from packhorse.text.tasks.tagging import Entity, EntityGroup
from packhorse.text.tokenization.tokenizer import TextTokenizer, Tokens

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
