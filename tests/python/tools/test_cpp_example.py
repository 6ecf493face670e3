"""The C++ examples, built against the installed package through find_package."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import GOLDEN
from packhorse.audio import log_mel
from packhorse_weights import convert
from precisions import ModelMaker
from speech_cases import sound

EXAMPLE = Path(__file__).parents[3] / "examples" / "cpp"


def run(*command: str | Path) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def build(source: Path, folder: Path, prefix: str = "", *options: str) -> Path:
    """Builds an example in `folder`, as a user would, but fast: without optimisation."""
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    prefixes = f"-DCMAKE_PREFIX_PATH={Path(packhorse.__file__).parent};{prefix}"
    quick = ("-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0")
    run("cmake", "-S", source, "-B", folder, prefixes, *quick, *options)
    run("cmake", "--build", folder)
    return folder


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs."""
    return build(EXAMPLE, tmp_path_factory.mktemp("examples"))


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The extension module of `pybind11_module`."""
    pybind11 = pytest.importorskip("pybind11")
    folder = tmp_path_factory.mktemp("pybind11")
    python = f"-DPython_EXECUTABLE={sys.executable}"
    build(EXAMPLE / "pybind11_module", folder, pybind11.get_cmake_dir(), python)
    spec = importlib.util.spec_from_file_location("embedder", next(folder.glob("embedder*.so")))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_example_embeds(examples: Path, tiny_model: Path) -> None:
    lines = run(examples / "embed", tiny_model).splitlines()
    assert lines[0].startswith("memory: ")
    for line, (tokens, norm) in zip(lines[1:], [(5, 1.0), (0, 0.0), (2, 1.0)], strict=True):
        assert f" {tokens} tokens" in line
        assert float(line.rsplit(" ", 1)[1]) == pytest.approx(norm, abs=1e-5)


def test_example_generates(examples: Path, make_model: ModelMaker) -> None:
    folder = make_model(
        type_vocab_size=0, attention={"mask": "causal"}, heads={"lm": {"tied": True}}
    )
    memory, first, second = run(examples / "generate", folder).splitlines()
    assert re.fullmatch(r"memory: \d+ bytes, of them \d+ for 1024 tokens of cache", memory)
    assert re.fullmatch(r"first:( \d+){8} \(length\)", first)
    assert re.fullmatch(r"second:( \d+){8}", second)
    assert run(examples / "generate", folder).splitlines()[1:] == [first, second]


def test_example_transcribes(examples: Path, tmp_path: Path) -> None:
    """Two windows have the tokens that Python gives of frames of its own."""
    folder, samples = tmp_path / "speech", sound(1.3, 5)  # a window of this model is a second
    convert(GOLDEN / "speech" / "whisper", folder)
    (tmp_path / "samples").write_bytes(samples.tobytes())
    found = run(examples / "transcribe", folder, tmp_path / "samples", "256", "257", "266")
    frames = log_mel(np.pad(samples, (0, 32000 - samples.size)), 6, end="silence")
    sampling = packhorse.Sampling(stop_ids=[256])
    with packhorse.GenerationSession.load(folder, kv_tokens=8192) as session:
        requests = [
            session.submit_features([257, 266], window, sampling)
            for window in (frames[:100], frames[100:])
        ]
        expected = [request.result().ids for request in requests]
    assert [[int(token) for token in line.split()] for line in found.splitlines()] == expected
    assert all(expected)


def test_extension_module_gives_the_bits_of_the_session(embedder: Any, tiny_model: Path) -> None:
    ids, cu_seqlens = np.arange(1, 8, dtype=np.int32), np.array([0, 5, 5, 7], np.int32)
    with packhorse.Session.load(tiny_model, max_tokens=64, max_sequences=4) as session:
        expected = session.run((ids, cu_seqlens), outputs="embedding").embedding
    model = embedder.Embedder(str(tiny_model), max_tokens=64, max_sequences=4)
    found = model.embed(ids, cu_seqlens)
    assert (found.dtype, found.shape) == (np.float32, (3, model.size))
    assert found.tobytes() == expected.tobytes()
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda _: model.embed(ids, cu_seqlens).tobytes(), range(16)))
    assert set(texts) == {expected.tobytes()}
    assert model.embed(ids[:0], cu_seqlens[:1]).shape == (0, model.size)


def test_extension_module_raises_errors_of_python(embedder: Any, tiny_model: Path) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        embedder.Embedder("nowhere")
    model = embedder.Embedder(folder=str(tiny_model), max_tokens=64)
    ids, cu_seqlens = np.arange(1, 8, dtype=np.int32), np.array([0, 7], np.int32)
    for wrong in (ids.astype(np.int64), ids.astype(np.float32), np.arange(14, dtype=np.int32)[::2]):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            model.embed(wrong, cu_seqlens)
    with pytest.raises(ValueError, match="one dimension"):
        model.embed(ids[None], cu_seqlens)
    with pytest.raises(ValueError, match=r"cu_seqlens is empty"):
        model.embed(ids, cu_seqlens[:0])
    with pytest.raises(ValueError, match=r"ids\[6\] = -1"):
        model.embed(np.array([1, 2, 3, 4, 5, 6, -1], np.int32), cu_seqlens)
    assert model.embed(ids, cu_seqlens).shape == (1, model.size)
