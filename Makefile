# Every target does its own set-up: a machine needs Python 3.11, g++, make and git.
# TORCH_INDEX points pip at a wheel index for torch, for example https://download.pytorch.org/whl/cpu,
# since the default index brings CUDA packages on Linux.
PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# one torch thread per worker: two workers share the cores instead of fighting for them
PYTEST_WORKERS ?= 2
CPP_FOLDERS := benchmarks emulator op_host op_kernel tests toptheta_npu
TORCH := $(shell grep '^torch==' constraints.txt)

.PHONY: demo test test-npu lint docs benchmark train clean

demo: $(READY)
	$(BIN)/toptheta demo

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --ignore=tests/npu
	$(MAKE) --no-print-directory test-npu

# torch_npu itself, over emulated devices; the first time it is downloaded into build/ (40 MB)
test-npu: $(READY)
	REQUIRE_NPU=1 OMP_NUM_THREADS=1 $(BIN)/python -m emulator run $(BIN)/python -m pytest -n $(PYTEST_WORKERS) -m npu \
	  tests/npu tests/fallback tests/test_operator.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $$(find $(CPP_FOLDERS) -name '*.cpp' -o -name '*.h')
	$(BIN)/mypy

# every example in README, docs and docstrings runs as it stands there
docs: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PYTEST_WORKERS) tests/test_documentation.py toptheta_npu

# one page: every figure with its goal; about ten minutes
benchmark: $(READY)
	$(BIN)/python -m benchmarks.page

train: $(READY)
	$(BIN)/python examples/train_tiny_llama.py

$(READY): pyproject.toml emulator/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module. On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "The pinned set needs Python 3.11 or newer; name it with: make PYTHON=python3.11 ..."; exit 1; }
	@echo "Installing into $(VENV): PyTorch and some 60 small packages, once; one to five minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[hf,plot,dev]' -e ./emulator
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
