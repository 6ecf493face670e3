"""Packhorse: transformer inference that never computes on padding.

session = packhorse.Session.load("model-folder")
result = session.run([[101, 7592, 102], [101, 102]], outputs=["embedding"])

model = packhorse.TextModel.load("model-folder")       # with the extra `text`
vectors = model.embed(["a text", "another one"])
"""

import sys
from typing import TYPE_CHECKING, Any

if "t" in sys.abiflags:
    raise ImportError(
        "packhorse does not support free-threaded builds of Python "
        f"(this is {sys.version.partition(' ')[0]}t): use a build with the interpreter lock"
    )

from packhorse._native.device import DeviceArray
from packhorse._native.session import available_devices
from packhorse._native.session import version as _version
from packhorse.encoder_session import EncoderSession
from packhorse.generation import (
    GeneratedTokens,
    Generation,
    GenerationMemoryPlan,
    GenerationRequest,
    Sampling,
)
from packhorse.generation.session import GenerationSession
from packhorse.memory import MemoryPlan
from packhorse.packing import PackedTokens, pack
from packhorse.patches import PackedPatches
from packhorse.planning import plan_memory
from packhorse.profile import cpu_profile
from packhorse.result import DeviceResult, RunResult
from packhorse.retrieval import (
    late_interaction,
    lexical_weights,
    semantic_search,
    similarity,
    sparse_entries,
)
from packhorse.session import Session
from packhorse.text import TextModel

if TYPE_CHECKING:
    from packhorse import ops as ops
    from packhorse import ray as ray

__version__ = _version()

__all__ = [
    "DeviceArray",
    "DeviceResult",
    "EncoderSession",
    "GeneratedTokens",
    "Generation",
    "GenerationMemoryPlan",
    "GenerationRequest",
    "GenerationSession",
    "MemoryPlan",
    "PackedPatches",
    "PackedTokens",
    "RunResult",
    "Sampling",
    "Session",
    "TextModel",
    "available_devices",
    "cpu_profile",
    "late_interaction",
    "lexical_weights",
    "pack",
    "plan_memory",
    "semantic_search",
    "similarity",
    "sparse_entries",
]


# Imported on first use: the former loads another extension module, the latter is for clusters.
_ON_USE = ("ops", "ray")

if not TYPE_CHECKING:  # type checkers would accept any name from the package if they saw this

    def __getattr__(name: str) -> Any:
        if name in _ON_USE:
            from importlib import import_module

            return import_module(f"packhorse.{name}")
        raise AttributeError(f"module 'packhorse' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*__all__, *_ON_USE, "__version__", "__doc__", "__file__", "__path__"})
