# The project's commands. Everything runs in a virtual environment of its own, .venv.
PYTHON ?= python3
# PyPI's newer CPU/GPU builds of torch are large; set TORCH to choose another build or version.
TORCH ?= torch==2.13.0
# What `make engines` exports: a recipe of engines/, and, where not empty, other weights or precision than it says.
MODEL ?= demo
WEIGHTS ?=
PRECISION ?=
# Set BACKEND to tensorrt or tensorrt-rtx to build engines too, and ARCH to name GPU architectures: sm_86,sm_89.
BACKEND ?=
ARCH ?=
BIN := .venv/bin
INSTALLED := .venv/.installed
ROOMS := vvs export runtime benchmarks cli tests

.DEFAULT_GOAL := help
.PHONY: help install engines demo test lint types check train eval bench replay gpu-check clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Make .venv and install the toolkit with everything it can use

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[export,bench,dev]'
	touch $@

engines: install ## Export the bundle of MODEL (default: demo) into engines/, with BACKEND=tensorrt-rtx ARCH=sm_89 built; nothing changed, nothing done
	$(BIN)/vvs export engines/$(MODEL).toml $(if $(WEIGHTS),--weights '$(WEIGHTS)') $(if $(PRECISION),--precision $(PRECISION))
	$(if $(BACKEND),$(BIN)/vvs build engines/$(MODEL) --backend $(BACKEND) $(if $(ARCH),--arch $(ARCH)))

demo: MODEL = demo
demo: engines ## Draw a grid in AR, EAGLE, LANTERN and VVS with the demo model, and compare them
	$(BIN)/python -m vvs.benchmarks.demo engines/demo --run ar --run eagle --run lantern --run vvs \
		--run 'vvs tree=k8-d3-n36-coupled'

test: install ## Pass the tests
	$(BIN)/python -m pytest

lint: install ## Check style and format
	$(BIN)/ruff check $(ROOMS)
	$(BIN)/ruff format --check $(ROOMS)

types: install ## Check types, strictly, on the package as it installs
	rm -rf build
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --target build/types .
	MYPYPATH=build/types $(BIN)/mypy -p vvs

check: lint types test ## Lint, format, types and tests

# The allocator settings keep freed memory in the process: large tensors come and go at every step.
train: install ## Train the demo model from Fashion-MNIST; goes on where it stopped
	MALLOC_MMAP_THRESHOLD_=8589934592 MALLOC_TRIM_THRESHOLD_=17179869184 \
	$(BIN)/python -m vvs.export.training

eval: MODEL = demo
eval: engines ## Judge 1,000 pictures of every mode of the demo model, into benchmarks/results/; goes on where it stopped
	$(BIN)/vvs eval engines/demo --batch 16 --out benchmarks/results/eval

bench: MODEL = demo
bench: engines ## Measure every mode and eager PyTorch side by side, into benchmarks/results/
	$(BIN)/vvs bench engines/demo --baselines engines/demo.toml --score benchmarks/results/eval/eval.json --out benchmarks/results/bench
	$(BIN)/vvs bench engines/demo --batch 1 --batch 2 --batch 4 --batch 8 --run ar --run eagle --run vvs --no-floor --out benchmarks/results/batches

replay: install ## Replay recorded runs of the published implementation in DIR
	$(BIN)/python -m vvs.benchmarks.replay $(DIR)

gpu-check: MODEL = demo
gpu-check: engines ## Check everything that needs a GPU, in under ten minutes, into benchmarks/results/gpu/
	$(BIN)/python -m vvs.benchmarks.gpu_check engines/demo

clean: ## Remove what the commands made, except .venv and training states
	rm -rf build out .pytest_cache .mypy_cache .ruff_cache
