# Two commands for a newcomer: `make demo` and `make test`. Each sets up all it needs.
unexport PYTHONDONTWRITEBYTECODE # tests start hundreds of processes, and each would compile every module that it imports
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
BASE    = $(VENV)/.base
STAMP   = $(VENV)/.installed

DRIVER ?= drivers/pci
IMAGE  ?= $(notdir $(DRIVER))
ENGINE ?= docker

.PHONY: help demo examples dev check test test-rest test-all plugin pauses mutants lint type soak bench proto proto-env docs picture deploy drivers dist lock image sbom site clean
help:
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# What a driver needs at run time: enough for the demo. What develops it comes with the first `make test`.
$(BASE): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e .
	@touch $(BASE)

$(STAMP): $(BASE)
	@echo "installing what tests and lint need into $(VENV) (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(STAMP)

demo: $(BASE) ## the whole story on this machine's own hardware
	@$(BIN)/python drivers/pci/demo.py

examples: $(STAMP) ## each manifest of examples/ on the local cluster
	@$(BIN)/python -m pytest -v --no-header examples

dev: $(BASE) ## the local cluster with the PCI driver, until Ctrl-C
	@$(BIN)/dra dev drivers/pci

# Tests wait more than they work, so there are more workers than cores. A worker that has finished takes tests from another.
WORKERS ?= $(shell expr 2 '*' $$(getconf _NPROCESSORS_ONLN))
PYTEST   = $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal
# The markers of tests that need root, a container, an image build or a package index, and of long tests (pyproject.toml).
REST     = mounts or podman or runc or netns or image or index or full

check: $(STAMP) ## before a commit: lint, types, and within a minute the tests of the modules that changed
	@$(MAKE) --no-print-directory lint
	@$(BIN)/python -m tests.tools.changed --workers $(WORKERS) --leave-out "crash or $(REST)" $(ARGS)

test: $(STAMP) ## within 5 minutes: the tests that need no root, container, image or package index, and part of the crash tests
	@$(PYTEST) -m "not ($(REST))" $(ARGS)
	@echo "the tests that were left out: make test-rest; all tests: make test-all"

test-rest: $(STAMP) ## the tests that `make test` leaves out
	@$(PYTEST) -m "$(REST)" $(ARGS)

test-all: $(STAMP) ## every test, within 20 minutes
	@$(PYTEST) $(ARGS)

# What judges the plugin: its publisher, engine, health, events and controller before an API server and a kubelet.
PLUGIN = publisher gates_and_status newer_fields driver_on_a_node health_and_inventory served_versions undo_and_errors \
  vanished_in_use what_is_told pools_of_others pools_of_two device_status plugin_and_odd_servers slice_controller_rows \
  quantities_published own_device_nodes controller controller_faults control_plane
KILLED = killed_and_vanished processes node_dies
plugin: $(STAMP) ## the plugin's tests with the local cluster as another release: make plugin RELEASE=1.34
	@DRA_KUBERNETES=$(RELEASE) $(PYTEST) $(PLUGIN:%=tests/local/test_%.py) $(KILLED:%=tests/crash/test_%.py) $(ARGS)

pauses: $(STAMP) ## tests with pauses at random: make pauses ARGS="tests/local --pauses late,tasks,children"
	@$(BIN)/python -m pytest -q -p tests.tools.pauses $(ARGS)

mutants: $(STAMP) ## 200 small changes to the code: nine in ten must be noticed by a test
	@$(BIN)/python -m tests.tools.mutants $(ARGS)

lint: $(STAMP) ## ruff, mypy --strict, import rings, module sizes, class names and constructors, language
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@for driver in drivers/*/; do (cd $$driver && MYPYPATH=src:$(CURDIR)/src $(abspath $(BIN))/mypy) || exit; done
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python tests/tools/module_sizes.py
	@$(BIN)/python tests/tools/structure.py
	@$(BIN)/python tests/tools/language.py

soak: $(STAMP) ## 1,000 random kills while everything around fails too, then 10,000 cycles watching memory and descriptors
	@$(BIN)/python -m bench.soak $(ARGS)

bench: $(STAMP) ## the figures in docs/figures.md, with a baseline measured in the same run
	@$(BIN)/python -m bench $(ARGS)

proto-env:
	@test -x .venv-proto/bin/python || $(PYTHON) -m venv .venv-proto
	@.venv-proto/bin/python -m pip install --quiet --disable-pip-version-check grpcio-tools==1.80.0 mypy-protobuf==5.1.0

proto: proto-env ## regenerate the committed stubs, in an environment of their own
	@PATH="$(CURDIR)/.venv-proto/bin:$$PATH" .venv-proto/bin/python proto/generate.py src

docs: $(STAMP) ## regenerate the pages and files that come from the code
	@$(BIN)/python docs/generate.py

picture: $(STAMP) ## draw docs/demo.svg anew, from what the demo prints here
	@$(BIN)/python docs/picture.py

deploy: $(BASE) ## regenerate the kustomize components, the Helm chart and the drivers' overlays
	@$(BIN)/dra deploy --shared deploy
	@for values in drivers/*/deploy/values.yaml; do $(BIN)/dra deploy $$values --base ../../../deploy/kustomize || exit; done

drivers: $(STAMP) ## rewrite what drivers/ have word for word from the templates of `dra new`
	@$(BIN)/python -m tests.tools.drivers

LOCKED = image/requirements.txt image/build-requirements.txt
# Every pin needs a wheel for each of these: an image compiles nothing.
IMAGES  = 3.11:x86_64 3.11:aarch64 3.13:x86_64 3.13:aarch64
UV      = .venv-lock/bin/uv
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --custom-compile-command 'make lock'

$(UV):
	@test -x .venv-lock/bin/python || $(PYTHON) -m venv .venv-lock
	@.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.13,<0.14'

dist: $(UV) ## wheel and sdist in dist/, by the build backend that image/ pins: the same bytes for everybody
	@$(UV) build --quiet --build-constraint image/build-requirements.txt --require-hashes --out-dir dist .
	@cd dist && sha256sum *.whl *.tar.gz

lock: $(UV) ## pin what images install, by version and hash; make lock ARGS=--upgrade: the newest
	@$(COMPILE) pyproject.toml -o image/requirements.txt $(ARGS)
	@$(COMPILE) --group image -o image/build-requirements.txt $(ARGS)
	@for image in $(IMAGES); do for file in $(LOCKED); do \
	  $(UV) pip install --quiet --dry-run --target .venv-lock/none --require-hashes --only-binary :all: -r $$file \
	    --python-version $${image%:*} --python-platform $${image#*:}-manylinux_2_28 || exit; done; done

image: ## the image of a driver of this tree: make image DRIVER=drivers/pci IMAGE=registry.example.com/pci:0.1.0 ENGINE=podman
	$(ENGINE) build $(strip -t $(IMAGE) --build-arg DRIVER=$(DRIVER) $(ARGS) .)

sbom: ## what that image has, as CycloneDX
	@$(ENGINE) run --rm --entrypoint cat $(IMAGE) /usr/share/sbom/image.cdx.json

site: ## the documentation as pages in site/; a broken link or reference fails it
	@test -x .venv-docs/bin/mkdocs || $(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check 'mkdocs-material>=9.8,<10' 'mkdocstrings[python]>=1.0' ruff
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build

clean:
	rm -rf site .venv-docs .venv-lock $(VENV) .venv-proto .mypy_cache .ruff_cache .pytest_cache .hypothesis
