# make demo   raw text to a scored model in minutes      make test   the tests, but for slow ones (minutes)
# make lint   ruff, mypy                                 make setup  the environment only
# make test-all   every test that needs no GPU, browser or network: all that follow up to test-wheel (hours)
# make test-slow  the tests marked slow, or a part of them: PART=3/8
# make test-cluster  ranks that are killed, hung, cut off or not alike (minutes; the network's need root), and preparation
#                    that is killed at random instants
# make test-crash  every crash, failure of the disk and damaged file, and random kills (hours on two cores)
# make test-fuzz  10,000 examples of each test that makes up input
# make test-exports  every format with every family and head, and native code (an hour on one core)
# make test-wheel  the source distribution and the wheel, which runs the demo in an environment without a checkout
# make test-page  the page of `lambert serve` in a browser (Chromium must be installed; axe-core is fetched from npm)
# make test-gpu  the tests that need a GPU
# make test-minimum  part of the tests with the oldest packages that pyproject.toml allows, torch apart
# make docs    the documentation as a site, build/site/index.html, which needs no network
# make native  the compiled kernels for CPUs, in place (`make setup` builds them too)
# make reference  docs/reference.md and docs/settings.md from the docstrings, tests/golden/messages.txt from the errors
# make pins   refresh constraints.txt
#
#   PYTHON=python3.12   another interpreter (3.11 to 3.14)
#   TORCH=torch==2.12.0 another torch
#   INDEX=URL           where torch's wheels come from (PyTorch's CPU, CUDA or ROCm index)

PYTHON ?= python3
TORCH ?= torch==2.13.0
INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: help setup demo demo-short test test-all test-slow test-cluster test-crash test-exports test-fuzz test-page test-gpu test-triton test-minimum test-wheel lint docs native reference pins
help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

# torch is pinned here, apart from the other pins, so that an image with its own build keeps it.
$(VENV)/torch.txt:
	@echo "[1/3] environment in $(VENV)"
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 15) else "Lambert needs Python 3.11 to 3.14, this is %d.%d: make PYTHON=python3.12" % v)'
	@$(PYTHON) -m venv $(VENV)
	@echo "[2/3] $(TORCH)"
	@$(PIP) $(if $(INDEX),--extra-index-url $(INDEX)) '$(TORCH)' numpy
	@$(BIN)/python -m pip freeze --disable-pip-version-check | grep -i '^torch==' > $@

NATIVE := setup.py $(wildcard src/lambert/native/*.cpp src/lambert/native/*.h)
$(VENV)/setup: $(VENV)/torch.txt pyproject.toml constraints.txt $(NATIVE)
	@echo "[3/3] lambert"
	@$(PIP) -c $(VENV)/torch.txt -e '.[report,tensorboard,serve]'
	@touch $@

$(VENV)/setup-dev: $(VENV)/setup
	@echo "      test tools"
	@$(PIP) -c $(VENV)/torch.txt -e '.[dev]'
	@touch $@

setup: $(VENV)/setup

demo: $(VENV)/setup
	@$(BIN)/lambert demo

demo-short: $(VENV)/setup
	@$(BIN)/lambert demo --short

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
ELSEWHERE = $(CLUSTER:%=--ignore=%) --ignore=tests/wings/serve/page --ignore=tests/packaging
test: $(VENV)/setup-dev
	@$(PYTEST) -n auto --dist worksteal -m 'not slow' $(FLAGS) $(ELSEWHERE)

PART ?= 1/1
WORKERS ?= auto
test-slow: $(VENV)/setup-dev
	@echo "slow tests, part $(PART)"
	@$(PYTEST) -n $(WORKERS) --dist worksteal -m slow --part $(PART) $(FLAGS) $(ELSEWHERE)

test-all: test test-slow test-cluster test-wheel test-exports test-fuzz test-crash

# One after the other: they start groups of processes and measure how fast these notice what happens to one of them.
CLUSTER := $(addprefix tests/faults/test_,cluster.py unlike_ranks.py unlike_disks.py lost_ranks.py uneven_ranks.py \
	network.py killed_preparation.py) tests/wings/serve/test_ray_serve.py
test-cluster: $(VENV)/setup-dev
	@$(PYTEST) -o cache_dir=.pytest_cache/cluster $(FLAGS) $(CLUSTER)

# One after the other: a point is quick where nothing else runs. POINTS=20 for so many of each kind and command.
POINTS ?= all
KILLED_RUNS ?= 200
test-crash: $(VENV)/setup-dev
	@OMP_NUM_THREADS=1 LAMBERT_TEST_CRASHES=$(POINTS) LAMBERT_TEST_KILLED_RUNS=$(KILLED_RUNS) LAMBERT_DAMAGE=all \
		LAMBERT_TEST_KILLED_PREPARATIONS=$(KILLED_RUNS) \
		nice $(BIN)/python -m pytest -s $(FLAGS) $(addprefix tests/faults/test_,every_crash.py damage.py killed_preparation.py)

test-exports: $(VENV)/setup-dev
	@OMP_NUM_THREADS=1 LAMBERT_TEST_EXPORTS=all nice $(BIN)/python -m pytest $(FLAGS) tests/wings/convert

FUZZ_EXAMPLES ?= 10000
test-fuzz: $(VENV)/setup-dev
	@OMP_NUM_THREADS=1 LAMBERT_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) nice \
		$(BIN)/python -m pytest $(FLAGS) --timeout 0 tests/faults/test_fuzz_*.py

AXE := axe-core@4.14.1
build/axe/package/axe.min.js:
	@mkdir -p build/axe
	@cd build/axe && npm pack --silent $(AXE) > name.txt && tar -xzf "$$(cat name.txt)" package/axe.min.js package/LICENSE
	@touch $@

test-page: $(VENV)/setup-dev build/axe/package/axe.min.js
	@$(PIP) playwright
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs $(FLAGS) tests/wings/serve/test_page.py tests/wings/serve/page

test-gpu: $(VENV)/setup-dev
	@LAMBERT_TEST_GPU=1 $(BIN)/python -m pytest -k 'cuda or gpu' -rs tests/model tests/engine tests/inference tests/runs/test_compile.py

# The kernels of GPUs without a GPU: computed by Triton's interpreter, and compiled. Triton, a gigabyte, gets its own folder.
TRITON := build/triton
test-triton: $(VENV)/setup-dev
	@test -d $(TRITON)/triton || $(BIN)/python -m pip install --quiet --no-deps --target $(TRITON) triton==3.9.0
	@PYTHONPATH=$(TRITON) TRITON_INTERPRET=1 $(BIN)/python -m pytest $(FLAGS) tests/ops/test_cuda.py tests/ops/test_cuda_blocks.py tests/ops/test_updates.py
	@PYTHONPATH=$(TRITON) $(BIN)/python -m pytest -s $(FLAGS) tests/ops/test_kernels.py

OLD := .venv-minimum
test-minimum:
	@$(PYTHON) -m venv $(OLD)
	@grep -oE '"[a-z0-9._-]+>=[0-9.]+' pyproject.toml | tr -d '"' | grep -v '^torch>\|^setuptools' | sed 's/>=/==/' > $(OLD)/minimum.txt
	@$(OLD)/bin/python -m pip install --quiet --disable-pip-version-check $(if $(INDEX),--extra-index-url $(INDEX)) \
		-c $(OLD)/minimum.txt '$(TORCH)' -e '.[test]'
	@OMP_NUM_THREADS=1 $(OLD)/bin/python -m pytest $(FLAGS) tests/core tests/wings/corpus tests/data tests/model tests/test_cli.py tests/commands \
		tests/wings/convert/test_convert.py tests/verbs/test_report.py

test-wheel: $(VENV)/setup-dev
	@$(BIN)/python -m pytest -p no:cacheprovider $(FLAGS) tests/packaging

docs: $(VENV)/setup-dev
	@rm -rf build/site
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --jobs auto -d build/site-cache -c docs . build/site

lint: $(VENV)/setup-dev
	@$(BIN)/ruff check src tests demo benchmarks
	@$(BIN)/ruff format --check src tests demo benchmarks
	@$(BIN)/mypy

native: $(VENV)/torch.txt
	@$(BIN)/python setup.py --quiet build_ext --inplace

reference: $(VENV)/setup
	@$(BIN)/python docs/make_reference.py

pins: $(VENV)/setup-dev
	@$(BIN)/python -m pip freeze --exclude-editable | grep -vi '^\(torch\|triton\|nvidia-.*\|lambert-bert\)\b' > constraints.txt
