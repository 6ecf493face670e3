"""Probabilities of speech by Silero's network, which onnxruntime runs."""

from __future__ import annotations

import importlib.util
import os
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from packhorse.audio.decoding import Samples
from packhorse.audio.vad import CHUNK
from packhorse.result import FloatArray

_CONTEXT = 64  # samples before a chunk that the network hears, too
_STATE = (1, 1, 128)  # h and c of its recurrent layer
_AT_ONCE = 10_000  # chunks of a call
_NAME = "silero_vad_v6.onnx"
_PACKAGE = "faster-whisper==1.2.1"  # has the file among its assets
_INPUTS = {"input", "h", "c"}


class SpeechDetector(Protocol):
    """A network that hears speech."""

    def __call__(self, samples: Samples) -> FloatArray:
        """Probabilities of speech, one for each 512 samples, of which the last are padded."""
        ...


class Silero:
    """Silero's network in the form in which faster-whisper ships it: it takes many chunks of 512
    samples, with the 64 before each, and the state of its recurrent layer.

    path: of its file. Raises FileNotFoundError, ValueError for a file that is no such network, and
    ModuleNotFoundError that names onnxruntime.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise FileNotFoundError(f"vad_model: there is no file {path}")
        try:
            import onnxruntime
        except ImportError:
            from packhorse_weights.extras import missing_package

            raise missing_package("vad", "onnxruntime", "vad_filter") from None
        options = onnxruntime.SessionOptions()
        # One thread: probabilities do not depend on the machine, and other work has the cores.
        options.inter_op_num_threads = options.intra_op_num_threads = 1
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 4
        try:
            self._session: Any = onnxruntime.InferenceSession(
                os.fspath(path), providers=["CPUExecutionProvider"], sess_options=options
            )
        except Exception as error:
            raise ValueError(f"vad_model: {path} is no network of ONNX: {error}") from None
        found = {one.name for one in self._session.get_inputs()}
        if found != _INPUTS:
            raise ValueError(
                f"vad_model: the network of {path} takes {', '.join(sorted(found))}, expected "
                f"input, h and c, as in the {_NAME} of {_PACKAGE}"
            )

    def __call__(self, samples: Samples) -> FloatArray:
        count = samples.size // CHUNK + 1
        heard = np.zeros((count, _CONTEXT + CHUNK), np.float32)
        padded = np.zeros(count * CHUNK, np.float32)
        padded[: samples.size] = samples
        heard[:, _CONTEXT:] = padded.reshape(count, CHUNK)
        heard[1:, :_CONTEXT] = heard[:-1, -_CONTEXT:]
        h = c = np.zeros(_STATE, np.float32)
        found = []
        for begin in range(0, count, _AT_ONCE):
            chunks = {"input": heard[begin : begin + _AT_ONCE], "h": h, "c": c}
            output, h, c = self._session.run(None, chunks)
            found.append(np.asarray(output, np.float32).reshape(-1))
        return np.concatenate(found)


def find_silero(path: str | os.PathLike[str] | None = None) -> Path:
    """The file of Silero's network: as given, or that of the package faster-whisper, which is
    looked for and not imported. Raises FileNotFoundError that says how to get it."""
    if path is not None:
        return Path(path)
    package = importlib.util.find_spec("faster_whisper")
    for folder in () if package is None else package.submodule_search_locations or ():
        found = Path(folder) / "assets" / _NAME
        if found.is_file():
            return found
    raise FileNotFoundError(
        f"vad_filter needs {_NAME}: name such a file as vad_model, or install the package that "
        f"has one: pip install --no-deps {_PACKAGE}"
    )


_loading = threading.Lock()


def load_silero(path: str | os.PathLike[str] | None = None) -> Silero:
    """Silero's network of this file, loaded once. Raises as `find_silero` and `Silero`."""
    with _loading:
        return _load(find_silero(path))


@lru_cache(maxsize=4)
def _load(path: Path) -> Silero:
    return Silero(path)
