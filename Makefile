# Forebay's chores, each by one name. `make` alone lists them.
# Every target that needs an environment begins with setup, which does nothing when nothing changed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Targets share one build tree, so running them side by side gains nothing.
.NOTPARALLEL:

# Shards for `make run`; empty: photos are made.
URLS ?=
# Samples per epoch of `make run`; empty: all.
SAMPLES ?=
# Rounds of `make bench` (default 5) and of `make torture` (default 1000).
ROUNDS ?=
# More options of `make checkpoint-bench`, such as --quick or --only staged.
FIGURES ?=
# Seed of `make torture`.
SEED ?= 1

python := .venv/bin/python
# Folders that hold Python code, and those that hold Python tests.
python_code := $(wildcard bindings/python cli/bench/contest benches/rivals benches/install benches/link benches/gpu benches/fairness benches/cluster benches/small benches/slow_samples benches/foresight benches/overhead benches/checkpoint benches/tokens benches/projection deploy/tests examples scripts tests/python)
python_tests := $(wildcard bindings/python/tests tests/python examples/tests cli/bench/contest/tests benches/cluster/tests benches/gpu/tests deploy/tests scripts/tests)
# Folder with half of the Python tests.
largest := bindings/python/tests
# Engine that tests and benchmarks compare the others with.
cross_check := forebay-benches/tokio-uring
heading = @printf '\n==> %s\n' "$(1)"

.PHONY: help
help: ## List the targets
	@echo "Forebay: keeps GPUs fed. Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  make run URLS='s3://bucket/train-{000000..000099}.tar'   train on your own shards"
	@echo "  make bench ROUNDS=9                                       more rounds, tighter figures"
	@echo "  make torture ROUNDS=100 SEED=7                            fewer kills, another seed"

.PHONY: setup
setup: ## Install what `make run` needs; it prints what and how large first
	@PYTHON="$${PYTHON:-}" scripts/setup.sh

.PHONY: setup-tests
setup-tests: setup ## Install what tests, lints and benchmarks need as well
	@scripts/setup-tests.sh

.PHONY: setup-deploy
setup-deploy: ## Install what tests of deploy/ need as well
	@scripts/setup-deploy.sh

.PHONY: run
run: setup ## Train one cold and one warm epoch, then print the starvation report
	$(call heading,run)
	@# A log gets one line of progress every 5 s, a terminal ten a second.
	@[ -t 2 ] || export TQDM_MININTERVAL=5; \
		$(python) examples/run.py $(if $(SAMPLES),--samples $(SAMPLES)) $(if $(URLS),'$(URLS)')

.PHONY: test
test: setup-tests check start-skips rust-test python-test list-skips ## Every check and every test

# Tools of the tests of deploy/, for which there is `make deploy-test`.
deploy_tools := helm,schemas,seccomp,runc,slurm,terraform,shellcheck,packages
# Requirements of tests that may be missing: a GPU, for which there is `make gpu-test`, a second
# name of this machine in its hosts file, network namespaces, the contest's loaders and the tools of
# deploy/, which setup does not install.
export FOREBAY_TESTS_MAY_SKIP ?= gpu,second-name,namespaces,mosaic,litdata,datasets,lancedb,spdl,dali,$(deploy_tools)
export FOREBAY_SKIPS ?= $(CURDIR)/target/skips

.PHONY: start-skips
start-skips:
	@mkdir -p $(dir $(FOREBAY_SKIPS)) && : > $(FOREBAY_SKIPS)

.PHONY: list-skips
list-skips:
	@scripts/skips.sh $(FOREBAY_SKIPS)

.PHONY: check
check: setup-tests fmt-check style rust-lint python-lint ptx-check deny ## Formatting, words, lints, types, kernels, licences

.PHONY: fmt
fmt: setup-tests ## Format everything
	@cargo fmt --all
	@.venv/bin/ruff format $(python_code)

.PHONY: fmt-check
fmt-check:
	$(call heading,formatting)
	@cargo fmt --all --check
	@.venv/bin/ruff format --check $(python_code)

# The release profile, so that build scripts and macros are compiled once.
.PHONY: rust-lint
rust-lint:
	$(call heading,clippy)
	@# The feature only adds code, so one run sees all of it.
	@cargo clippy --release --locked --workspace --features $(cross_check) --all-targets -- -D warnings

.PHONY: python-lint
python-lint:
	$(call heading,ruff and mypy)
	@.venv/bin/ruff check $(python_code)
	@.venv/bin/mypy
	@.venv/bin/mypy --config-file scripts/mypy.ini examples cli/bench/contest benches/rivals benches/install benches/link benches/gpu benches/fairness benches/cluster benches/small benches/slow_samples benches/foresight benches/overhead benches/checkpoint benches/tokens benches/projection

.PHONY: style
style:
	$(call heading,words and sizes)
	@$(python) scripts/style.py

.PHONY: ptx
ptx: setup-tests ## Compile the CUDA kernels, after a change of their source
	@$(python) scripts/ptx.py

.PHONY: ptx-check
ptx-check:
	$(call heading,CUDA kernels)
	@$(python) scripts/ptx.py --check

.PHONY: deny
deny:
	$(call heading,licences and sources of dependencies)
	@scripts/deny.sh

.PHONY: rust-test
rust-test:
	$(call heading,Rust tests)
	@$(python) scripts/rust_tests.py -- --release --locked --workspace
	@cargo test --release --locked --workspace --doc
	@# Again with the engine that only tests and benchmarks have, on the crate that has it; as part of
	@# the workspace, so that its dependencies are built already.
	@$(python) scripts/rust_tests.py -- --release --locked --workspace --features $(cross_check) \
		$(foreach test,$(notdir $(basename $(wildcard cache/uring/tests/*.rs))),--test $(test))

.PHONY: python-test
python-test:
	$(call heading,Python tests)
	@# One process per folder: JAX, once imported, warns of every fork that another folder makes. The
	@# largest folder has two, each with every other file. Three at a time, as most of the tests wait;
	@# the output of each appears when it has ended.
	@{ for half in 0 1; do \
		printf '%s\n' $(largest)/test_*.py | awk "NR % 2 == $$half" | xargs; \
	done; printf '%s\n' $(filter-out $(largest),$(python_tests)); } | xargs -P 3 -I {} bash -c \
		'log=$$(mktemp target/pytest-XXXXXX.log); $(python) -m pytest {} >"$$log" 2>&1; code=$$?; cat "$$log"; exit $$code'

.PHONY: deploy-test
deploy-test: setup-tests setup-deploy ## Test the files of deploy/ with helm, Kubernetes' schemas, runc and Slurm
	$(call heading,tests of deploy/)
	@FOREBAY_TESTS_MAY_SKIP=root,terraform,packages $(python) -m pytest deploy/tests

.PHONY: setup-packages
setup-packages: ## Install what tests of the packages need as well: a bare Debian, Podman, buildah
	@scripts/setup-packages.sh

# Files of TARGET, such as aarch64-unknown-linux-gnu; empty: of this machine.
TARGET ?=

.PHONY: wheel
wheel: ## Build the wheel that is published, for glibc 2.28 and newer: TARGET=aarch64-unknown-linux-gnu
	$(call heading,wheel)
	@scripts/wheel.sh $(TARGET)

.PHONY: sdist
sdist: ## Build the source package, from which pip builds the wheel where Rust is
	$(call heading,source package)
	@scripts/wheel.sh --sdist

.PHONY: deb
deb: ## Build the Debian package: the daemon, the command line, the unit, the manual
	$(call heading,Debian package)
	@scripts/deb.sh $(TARGET)

# The files of dist/ are built on purpose, by `make wheel deb`, not by whoever tests them.
.PHONY: package-test
package-test: setup-tests setup-packages ## Test wheel, Debian package and container image of dist/
	$(call heading,tests of packages)
	@FOREBAY_TESTS_MAY_SKIP=root $(python) -m pytest \
		deploy/tests/test_wheel.py deploy/tests/test_debian.py deploy/tests/test_container.py

.PHONY: torture
torture: ## Kill daemon after daemon on one cache directory: ROUNDS=1000 SEED=1
	$(call heading,torture)
	@FOREBAY_TORTURE_ROUNDS=$(or $(ROUNDS),1000) FOREBAY_TORTURE_SEED=$(SEED) \
		cargo test --release --locked --workspace --test cache --test checkpoints torture:: -- --nocapture

.PHONY: bench
bench: setup-tests ## Measure rivals, the disk and starvation; results go to benches/results
	$(call heading,benchmarks)
	@ROUNDS=$(or $(ROUNDS),5) scripts/bench.sh

.PHONY: contest
contest: setup-tests ## Measure how many accelerators each loader feeds, photos and bytes: some four hours
	$(call heading,contest)
	@PYTHONPATH=examples:cli/bench/contest $(python) benches/rivals/accelerators.py --rounds $(or $(ROUNDS),5)

.PHONY: checkpoint-bench
checkpoint-bench: setup-tests ## Measure saves, uploads and restores of checkpoints: a quarter of an hour
	$(call heading,checkpoints)
	@FIGURES='$(FIGURES)' ROUNDS='$(ROUNDS)' scripts/checkpoint-bench.sh

.PHONY: cluster
cluster: setup-tests ## Measure four nodes that share their caches, behind links of a gigabit; needs root
	$(call heading,cluster)
	@cargo build --release --locked --workspace --bin forebay-origin
	@$(python) benches/cluster/figures.py --forebay .venv/bin/forebay --origin target/release/forebay-origin

.PHONY: churn
churn: setup-tests ## Strike four nodes for ten minutes, and hold each sample against a model: SECONDS=600 SEED=1; needs root
	$(call heading,churn)
	@cargo build --release --locked --workspace --bin forebay-origin
	@$(python) benches/cluster/churn.py --forebay .venv/bin/forebay --origin target/release/forebay-origin \
		--seconds $(or $(SECONDS),600) --seed $(or $(SEED),1)

.PHONY: gpu-test
gpu-test: ## Run the tests that need a GPU; FOREBAY_WHEEL=… replaces make setup
	$(call heading,GPU tests)
	@$(if $(FOREBAY_WHEEL),,$(MAKE) setup-tests)
	@FOREBAY_WHEEL='$(FOREBAY_WHEEL)' scripts/gpu.sh test

.PHONY: gpu-bench
gpu-bench: ## Measure a GPU's decode; results go to benches/results
	$(call heading,GPU benchmarks)
	@$(if $(FOREBAY_WHEEL),,$(MAKE) setup-tests)
	@FOREBAY_WHEEL='$(FOREBAY_WHEEL)' scripts/gpu.sh bench

.PHONY: gpu-visit
gpu-visit: ## Ask, test and measure a GPU in nine minutes: STEPS='facts measure tests memcheck probe'
	$(call heading,visit to a GPU)
	@$(if $(FOREBAY_WHEEL),,$(MAKE) setup-tests)
	@FOREBAY_WHEEL='$(FOREBAY_WHEEL)' scripts/gpu.sh visit $(STEPS)

.PHONY: clean
clean: ## Remove what was built and made, but not .venv
	@cargo clean
	@rm -rf .data .run .mypy_cache .ruff_cache .pytest_cache
