"""Generation: what a request asks for, and what it gives. Sessions are in `session`."""

from packhorse.generation.plan import GenerationMemoryPlan
from packhorse.generation.request import GenerationRequest
from packhorse.generation.results import (
    FinishReason,
    GeneratedTokens,
    Generation,
    PromptLogprobs,
    TokenText,
    Usage,
)
from packhorse.generation.sampling import EarlyStopping, Sampling, TimestampRules, TokenMask

__all__ = [
    "EarlyStopping",
    "FinishReason",
    "GeneratedTokens",
    "Generation",
    "GenerationMemoryPlan",
    "GenerationRequest",
    "PromptLogprobs",
    "Sampling",
    "TimestampRules",
    "TokenMask",
    "TokenText",
    "Usage",
]
