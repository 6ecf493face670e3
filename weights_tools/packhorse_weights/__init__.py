"""Reads transformer checkpoints with NumPy alone and converts them for Packhorse.

    inspect_checkpoint(path) -> Checkpoint     what a folder holds
    convert(src, dst, dtype=None)              writes a converted folder
    resolve_model(path) -> ModelFiles          what a session loads from
    read_adapter(path, spec) -> Adapter        a LoRA adapter of such a model
    find_model(name) -> Path                   a model by its name, from the Hugging Face cache

Nothing in a checkpoint is executed: an interpreter of our own, with a closed list of operations,
reads pickles.
"""

from packhorse_weights.adapters.peft import Adapter, read_adapter
from packhorse_weights.checkpoint import Checkpoint, ModelFiles, inspect_checkpoint, resolve_model
from packhorse_weights.convert import convert
from packhorse_weights.errors import CheckpointError
from packhorse_weights.hub.cache import find_model
from packhorse_weights.reranker import Reranker
from packhorse_weights.tensor import Tensor

__all__ = [
    "Adapter",
    "Checkpoint",
    "CheckpointError",
    "ModelFiles",
    "Reranker",
    "Tensor",
    "convert",
    "find_model",
    "inspect_checkpoint",
    "read_adapter",
    "resolve_model",
]
