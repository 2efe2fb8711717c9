# Everything is written to .venv, build and artifacts; nothing outside this directory is changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CPP := build/cpp
UNITY := ON
FAST := tests/core tests/report tests/evidence tests/runs/test_request.py tests/whole/test_structure.py tests/whole/test_imports.py
WHOLE_EXPORTS := --ignore tests/evidence/test_samples.py \
  --deselect tests/evidence/test_operations.py::test_a_model_with_a_loop_is_exported \
  --deselect tests/core/test_machine_code.py::test_cpp_rejects_before_loading
SIDE_BY_SIDE := -n 3 --dist loadfile --no-loadscope-reorder
export PATH := $(CURDIR)/$(BIN):$(PATH)
unexport PYTHONDONTWRITEBYTECODE # hundreds of processes would compile the same sources
export TORCHINDUCTOR_CACHE_DIR ?= $(CURDIR)/build/inductor

.PHONY: help demo test check install lint docs cpp ctest asan tsan pytest coverage fuzz fuzz-cpp schemas wheels bench tables test-gpu clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

demo: install cpp ## export BERT to four targets, print the report, run the traced artifact without Python
	exporter export bert --weights random --targets trace,script,compile,onnx
	@echo 'The traced artifact in C++, with an empty environment and no Python:'
	env -i $(CPP)/exporter-run verify artifacts/bert/trace.pt

test: install cpp ## run lint, types, docs, ctest and pytest
	$(MAKE) --no-print-directory --jobs 2 --output-sync lint docs ctest
	$(MAKE) --no-print-directory pytest

check: lint ## run lint, types and the fast tests, in under 2 minutes
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -q $(FAST) $(WHOLE_EXPORTS)

install: $(VENV)/.installed ## create .venv with all dependencies

# Without --no-compile, pip compiles all modules of all packages; Python compiles those that it imports.
$(VENV)/.installed: setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "exporter needs Python 3.11 or later")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[demo,dev]'
	touch $@

lint: install ## run ruff, mypy --strict, import-linter and clang-format
	ruff check .
	ruff format --check .
	mypy
	lint-imports
	clang-format --dry-run --Werror $$(git ls-files 'cpp/*.h' 'cpp/*.cpp')
	clang-format --style=file:cpp/.clang-format --dry-run --Werror $$(git ls-files 'examples/*.h' 'examples/*.cpp' 'examples/*.cu')

docs: install ## build the documentation site in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

cpp: install ## build exporter-run; UNITY=OFF for fast incremental builds
	@mkdir -p build
	cmake -S cpp -B $(CPP) -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=$(UNITY) \
	  -DPython3_EXECUTABLE=$(CURDIR)/$(BIN)/python > build/cpp.log 2>&1 \
	  || { cat build/cpp.log; exit 1; }
	@env -u MAKEFLAGS cmake --build $(CPP)  # ninja cannot use make's job server

ctest: cpp
	ctest --test-dir $(CPP) --parallel 2 --output-on-failure

tsan: install ## run the C++ tests with threads under ThreadSanitizer
	cd cpp && cmake --preset tsan -DPython3_EXECUTABLE=$(CURDIR)/$(BIN)/python && cmake --build --preset tsan && ctest --preset tsan -R '^(fixtures|artifact|stream)$$'

asan: install ## run the C++ tests under AddressSanitizer
	cd cpp && cmake --preset asan -DPython3_EXECUTABLE=$(CURDIR)/$(BIN)/python && cmake --build --preset asan && ctest --preset asan

pytest: cpp
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --durations=20 --durations-min=10

coverage: cpp ## run pytest with coverage, which takes twice as long; 90% of branches must be covered
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --cov=exporter --cov-branch --cov-fail-under=90 --cov-report=term:skip-covered

fuzz: cpp ## export 500 generated modules to every target, in Python and C++; read 25,000 damaged archives and manifests
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -p no:cacheprovider -s tests/whole/test_fuzz.py tests/whole/test_hostile.py

fuzz-cpp: cpp ## read 10,000 damaged files of each kind under libFuzzer and AddressSanitizer
	@clang++ --version > build/clang.log 2>&1 || { echo 'fuzz-cpp needs clang++ with libFuzzer: apt-get install clang'; exit 1; }
	ctest --test-dir $(CPP) -R '^fixtures$$' --output-on-failure
	cd cpp && cmake --preset fuzz -DPython3_EXECUTABLE=$(CURDIR)/$(BIN)/python && cmake --build --preset fuzz
	$(BIN)/python cpp/fuzz/make_seeds.py $(CPP)/tests/fixtures build/seeds
	for reader in contract archive golden graph program; do mkdir -p build/corpus/$$reader && ASAN_OPTIONS=detect_leaks=0 $(CPP)-fuzz/fuzz/fuzz_$$reader \
	  -runs=10000 -timeout=20 -detect_leaks=0 -artifact_prefix=build/corpus/ build/corpus/$$reader build/seeds/$$reader || exit 1; done

schemas: install ## generate the JSON Schemas of manifests and release files from the code
	$(BIN)/python -m exporter.core.manifest_schema > build/schema && mv build/schema exporter/core/manifest.schema.json
	$(BIN)/python -m exporter.release.schema > build/schema && mv build/schema exporter/release/schema.json

wheels: cpp ## make dist/: the sources, the wheel, and a wheel with exporter-run for the installed torch; try both wheels
	rm -rf dist
	$(BIN)/python cpp/packaging/make_wheels.py --build $(CPP) --out dist
	$(BIN)/python cpp/packaging/check_wheels.py dist --example

bench: install cpp ## measure start-up, overhead and the C++ side
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/native.py

tables: install cpp ## repeat the published comparisons with small models on the CPU; writes build/tables
	$(BIN)/python benchmarks/tables.py --quick --out build/tables

test-gpu: ## run the tests for CUDA with the python3 on the PATH (PYTHON=... for another)
	$(PYTHON) -m pytest tests/gpu

clean: ## remove everything that was built or exported here
	rm -rf build dist artifacts $(VENV) *.egg-info .coverage*
