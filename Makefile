# Every target sets up what it needs, in .venv; `make clean` removes it again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BACKENDS := jax tensorflow torch
# The backend of the tests that need Keras and need it once: torch compiles nothing, so it is the quickest.
ONCE := torch
OTHERS := $(filter-out $(ONCE),$(BACKENDS))
STAMPS := .stamps
ADAPTERS := build/adapters
DEV_BUILD := build/dev
# The other Pythons at hand; 3.12 and later share a wheel, by the stable ABI.
PYTHONS ?= $(wildcard /usr/bin/python3.1[2-9] /usr/local/bin/python3.1[2-9] $(HOME)/.pyenv/versions/3.1[2-9].*/bin/python3)
# The CPU build: the default one brings gigabytes of CUDA.
TORCH ?= torch==2.13.0
# What the native core is built from.
NATIVE := CMakeLists.txt $(wildcard cmake/* csrc/*.h csrc/*/*.h csrc/*/*.cpp)
NATIVE_FORMATTED := $(wildcard csrc/*.h csrc/*/*.h csrc/*/*.cpp tests/csrc/*.h tests/csrc/*.cpp \
	src/cellerate/kernels/cuda/*.cuh src/cellerate/kernels/*/cuda/*.cuh tests/support/*/*.h tests/support/*/*.cpp)
# A comma cannot stand in the arguments of $(call).
comma := ,
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export TF_CPP_MIN_LOG_LEVEL = 2
export CTEST_OUTPUT_ON_FAILURE = 1

# The parts of the suite. Those that take longest begin.
PARTS := test-tensorflow test-jax test-torch test-plain test-kernels test-adapters test-devices
SLOW_PARTS := $(BACKENDS:%=test-slow-%) test-slow-plain test-slow-adapters $(OTHERS:%=test-others-%) $(OTHERS:%=test-xla-%)
NATIVE_PARTS := test-native-plain test-native-address test-native-thread test-native-emulated test-native-valgrind

.PHONY: help setup demo test $(PARTS) test-slow $(SLOW_PARTS) test-slow-alone test-lesser test-scalar \
	test-pythons test-native $(NATIVE_PARTS) test-native-arm mutation lint format keywords bench docs site site-versions release-check clean
help:
	@echo "make demo       three minutes: train a model and a forecaster, and see how much faster Cellerate is than Keras here"
	@echo "make test       the test-suite; what could differ between backends on each of: $(BACKENDS)"
	@echo "make test-slow  the tests that take minutes, those of the native core, and all of Keras on every backend"
	@echo "make test-lesser  the suite with AVX2 only, as on most desktops, and our core without any of these instructions"
	@echo "make test-pythons  the runtime, JAX and torch on the other Pythons at hand: half an hour for each"
	@echo "make test-native  the C++ tests, with sanitizers, under valgrind, and on an emulated ARM"
	@echo "make mutation   how many of a sample of small faults the tests notice: at most an hour"
	@echo "make lint       ruff, mypy and formatting"
	@echo "make keywords  the types of what public functions take as keyword arguments, from the records of settings"
	@echo "make bench      measure this machine, 40 minutes at most; results go to benchmarks/results/; CASE=step: one case"
	@echo "make docs       the tables and the chart of README.md and docs, from what may be published of benchmarks/results/"
	@echo "make site       the documentation as a site, in build/site/index.html; links are checked, warnings are errors"
	@echo "make site-versions  the sites of all released versions beside each other, in build/sites/"
	@echo "make release-check  build twice, check, install and run what a release would publish; nothing is published"
	@echo "make setup      only prepare .venv for all of these"

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Cellerate needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)

# The demo needs one backend only, and runs without the native core where there is no compiler.
$(STAMPS)/demo: pyproject.toml $(NATIVE) | $(BIN)/python
	$(BIN)/pip install --quiet -e '.[jax,plots]'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/tools: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet 'pip>=25.1'
	$(BIN)/pip install --quiet '$(TORCH)'
	$(BIN)/pip install --quiet --group dev --group clients
	@mkdir -p $(STAMPS) && touch $@

# Builds in a folder that stays and not in an environment of its own, so that a change compiles only what it touches.
$(STAMPS)/dev: $(STAMPS)/tools $(NATIVE)
	CELLERATE_REQUIRE_NATIVE=1 $(BIN)/pip install --quiet --no-build-isolation \
		-C build-dir=$(DEV_BUILD) -C cmake.define.CELLERATE_STRICT=ON -C cmake.define.CELLERATE_TESTS=ON \
		-e '.[tensorflow,jax,torch,cuda,tokenizers,onnx,litert,serve,sign,tensorboard,wandb,mlflow,plots]'
	@touch $@ $(STAMPS)/demo

$(STAMPS)/site: $(STAMPS)/dev
	$(BIN)/pip install --quiet --group site
	@touch $@

# An environment of its own on top of .venv: what it needs takes older versions of what other tests need newer.
$(STAMPS)/adapters: $(STAMPS)/dev
	$(BIN)/python -m venv --without-pip $(ADAPTERS)
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
		>"$$($(ADAPTERS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/beneath.pth"
	$(BIN)/pip --python $(ADAPTERS)/bin/python install --quiet --group adapters
	@touch $@

setup: $(STAMPS)/dev

demo: $(STAMPS)/demo
	@PATH="$(abspath $(BIN)):$$PATH" sh examples/demo.sh

# Tests run in parts, each to its end whatever becomes of the others. A part has a file in FAILED from its beginning
# until it has passed, in which tests/conftest.py writes the tests that fail.
FAILED := $(STAMPS)/failed
begin_all = @rm -rf $(FAILED) && mkdir -p $(FAILED)
# $(call parts,how many at once,which,environment)
parts = @$(3) $(MAKE) --no-print-directory --keep-going --jobs=$(1) --output-sync=target $(2) || touch $(FAILED)/.any
define end_all
	@test ! -e $(FAILED)/.any || { \
		for part in $(FAILED)/*; do echo "== failed: $${part##*/}"; sed 's/^/   /' "$$part"; done; exit 1; }
endef
# LESSER is set where the environment is that of `make test-lesser`.
PART = $(FAILED)/$@$(if $(LESSER), ($(LESSER)))
begin = @echo "== $(1)$(if $(LESSER),$(comma) $(LESSER))" && mkdir -p $(FAILED) && : >'$(PART)'
passed = @rm '$(PART)'
PYTEST = FAILED_TESTS='$(PART)' $(BIN)/python -m pytest --durations=12 --durations-min=2

# Threads of torch that have nothing to do leave the cores to the other part, instead of asking again and again.
BESIDE := OMP_WAIT_POLICY=passive

# The C++ tests; then one process for each backend and two for what needs no Keras, two at a time: most of their time
# goes into what uses one core.
test: $(STAMPS)/dev
	$(begin_all)
	$(call parts,1,test-native-plain)
	$(call parts,2,$(PARTS),$(BESIDE))
	$(end_all)

test-kernels: $(STAMPS)/dev
	$(call begin,kernels$(comma) without Keras)
	$(PYTEST) -m "not keras and not slow" tests/kernels
	$(passed)

test-plain: $(STAMPS)/dev
	$(call begin,the rest without Keras)
	$(PYTEST) -m "not keras and not slow" --ignore=tests/kernels
	$(passed)

$(BACKENDS:%=test-%): test-%: $(STAMPS)/dev
	$(call begin,$*)
	KERAS_BACKEND=$* $(PYTEST) -m "$(if $(filter $(ONCE),$*),keras,backends) and not slow"
	$(passed)

# Forecasters inside sktime and Darts, and beside StatsForecast.
test-adapters: $(STAMPS)/adapters
	$(call begin,adapters)
	KERAS_BACKEND=$(ONCE) FAILED_TESTS='$(PART)' $(ADAPTERS)/bin/python -m pytest -m "not slow" tests/adapters
	$(passed)

# Our operations on several devices of JAX, which a process has from its start or never.
test-devices: $(STAMPS)/dev
	$(call begin,jax$(comma) four devices)
	KERAS_BACKEND=jax JAX_NUM_CPU_DEVICES=4 $(PYTEST) tests/bridges/test_jax_devices.py
	$(passed)

# The C++ tests under sanitizers; then, two at a time as in `make test`, what is slow, the tests of one backend on the
# others, too, and the layers once more with XLA's optimizations, which `make test` leaves out; alone, what is judged by
# the clock; and the suite with AVX2.
test-slow: $(STAMPS)/dev
	$(BIN)/pip install --quiet --group browser --group cluster --group contract --group judges --group site
	$(begin_all)
	$(call parts,1,$(NATIVE_PARTS))
	$(call parts,2,$(SLOW_PARTS))
	$(call parts,1,test-slow-alone)
	$(lesser_parts)
	$(end_all)

# The runtime, JAX and torch on the other Pythons at hand, each in an environment of its own.
test-pythons:
	@for python in $(PYTHONS); do \
		there=build/python-$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		$(MAKE) PYTHON=$$python VENV=$$there/venv STAMPS=$$there/stamps DEV_BUILD=$$there/dev \
			test-plain test-torch test-jax || exit 1; \
	done

test-slow-plain: $(STAMPS)/dev
	$(call begin,slow$(comma) without Keras)
	$(PYTEST) -m "slow and not keras and not alone"
	$(passed)

test-slow-alone: $(STAMPS)/dev
	$(call begin,slow$(comma) alone)
	$(PYTEST) -m "alone and not keras"
	$(foreach backend,$(BACKENDS),KERAS_BACKEND=$(backend) XLA_FLAGS= $(PYTEST) -m "alone and keras" &&) true
	$(passed)

test-slow-adapters: $(STAMPS)/adapters
	$(call begin,slow$(comma) adapters)
	KERAS_BACKEND=$(ONCE) FAILED_TESTS='$(PART)' $(ADAPTERS)/bin/python -m pytest -m slow tests/adapters
	$(passed)

$(BACKENDS:%=test-slow-%): test-slow-%: $(STAMPS)/dev
	$(call begin,slow$(comma) $*)
	KERAS_BACKEND=$* XLA_FLAGS= $(PYTEST) -m "keras and slow and not alone"
	$(passed)

$(OTHERS:%=test-others-%): test-others-%: $(STAMPS)/dev
	$(call begin,tests of $(ONCE) on $*)
	KERAS_BACKEND=$* $(PYTEST) -m "keras and not backends and not slow"
	$(passed)

$(OTHERS:%=test-xla-%): test-xla-%: $(STAMPS)/dev
	$(call begin,layers with XLA's optimizations$(comma) $*)
	KERAS_BACKEND=$* XLA_FLAGS= $(PYTEST) -m "keras and not slow" tests/bridges tests/layers
	$(passed)

# What a processor with AVX2 alone computes, on a better one. TensorFlow asks the processor, not oneDNN, what this can
# do, and ends where it may do less: so without it.
AVX2 := LESSER=AVX2 CELLERATE_TARGET=avx2 ONEDNN_MAX_CPU_ISA=AVX2 TF_ENABLE_ONEDNN_OPTS=0 ATEN_CPU_CAPABILITY=avx2 \
	XLA_FLAGS=--xla_cpu_max_isa=AVX2
define lesser_parts
	$(if $(filter x86_64,$(shell uname -m)),$(call parts,2,$(PARTS),$(AVX2)))
	$(call parts,1,test-scalar)
endef

test-lesser: $(STAMPS)/dev
	$(begin_all)
	$(lesser_parts)
	$(end_all)

# Our core as any compiler makes it, where it differs: in its kernels and what runs on them alone.
test-scalar: $(STAMPS)/dev
	$(call begin,our core without vector instructions)
	CELLERATE_TARGET=scalar $(PYTEST) -m "not keras and not slow" tests/kernels tests/runtime
	$(passed)

# $(call build_native,name,what to tell CMake) makes the C++ tests in build/native-<name>.
define build_native
	@mkdir -p build
	$(BIN)/cmake -S . -B build/native-$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
		-DCELLERATE_PYTHON=OFF -DCELLERATE_TESTS=ON $(2) >build/native-$(1).log || { cat build/native-$(1).log; exit 1; }
	$(BIN)/cmake --build build/native-$(1) --target native_tests
endef

test-native: $(STAMPS)/dev
	$(begin_all)
	$(call parts,1,$(NATIVE_PARTS))
	$(end_all)

# On the objects that the extension was made of, which take minutes to compile.
test-native-plain: $(STAMPS)/dev
	$(call begin,the native core)
	$(BIN)/cmake --build $(DEV_BUILD) --target native_tests
	$(BIN)/ctest --test-dir $(DEV_BUILD) -LE valgrind
	$(passed)

test-native-address: $(STAMPS)/dev
	$(call begin,address and undefined-behaviour sanitizers)
	$(call build_native,address,-DCMAKE_BUILD_TYPE=RelWithDebInfo -DCELLERATE_SANITIZE=address$(comma)undefined)
	$(BIN)/ctest --test-dir build/native-address
	$(passed)

test-native-thread: $(STAMPS)/dev
	$(call begin,thread sanitizer)
	$(call build_native,thread,-DCMAKE_BUILD_TYPE=RelWithDebInfo -DCELLERATE_SANITIZE=thread)
	$(BIN)/ctest --test-dir build/native-thread
	$(passed)

test-native-emulated: $(STAMPS)/dev
	$(call begin,64-bit ARM$(comma) emulated)
	@if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null; then $(MAKE) test-native-arm; \
		else echo "the cross-compiler or qemu-user is not installed: left out"; fi
	$(passed)

test-native-valgrind: $(STAMPS)/dev
	$(call begin,valgrind)
	$(BIN)/cmake --build $(DEV_BUILD) --target native_tests
	@if command -v valgrind >/dev/null; then $(BIN)/ctest --test-dir $(DEV_BUILD) -L valgrind; \
		else echo "valgrind is not installed: left out"; fi
	$(passed)

# On another machine than ARM. The emulator cannot fork a process of several threads, as the tests of threads do.
test-native-arm: $(STAMPS)/dev
	$(call build_native,arm,-DCELLERATE_STRICT=ON -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
		-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
		"-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu")
	$(BIN)/ctest --test-dir build/native-arm -E "^threads"

# `make mutation MUTATION="data --number 40 --seed 2"` measures one room, with another sample.
mutation: $(STAMPS)/dev
	$(BIN)/pip install --quiet --group mutation
	$(BIN)/python tests/mutation/run.py $(MUTATION)

lint: $(STAMPS)/dev
	$(BIN)/ruff check src tests benchmarks docs .ci
	$(BIN)/ruff format --check src tests benchmarks docs .ci
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(NATIVE_FORMATTED)

format: $(STAMPS)/dev
	$(BIN)/ruff check --fix src tests benchmarks docs .ci
	$(BIN)/ruff format src tests benchmarks docs .ci
	$(BIN)/clang-format -i $(NATIVE_FORMATTED)

keywords: $(STAMPS)/dev
	KERAS_BACKEND=$(ONCE) $(BIN)/python tests/support/keyword_types.py
	$(BIN)/ruff format --quiet src/cellerate/keywords.py

# Which cases: `make bench CASE="step generate"`; how: `make bench CASE=step WITH=--quick`.
bench: $(STAMPS)/dev
	$(BIN)/pip install --quiet --group bench
	$(BIN)/python benchmarks/run.py $(CASE) $(WITH)

docs: $(STAMPS)/dev
	$(BIN)/python benchmarks/pages.py

site: $(STAMPS)/site
	KERAS_BACKEND=$(ONCE) $(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -j auto -d build/site-cache docs build/site
	@echo "build/site/index.html"

site-versions:
	$(PYTHON) .ci/site_versions.py

release-check: $(STAMPS)/dev
	$(BIN)/pip install --quiet --group release
	$(BIN)/python .ci/release_check.py

clean:
	rm -rf $(VENV) $(STAMPS) build demo
