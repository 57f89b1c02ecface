# Two commands for newcomers: `make demo` and `make test`. Each one installs what it needs.
unexport PYTHONDONTWRITEBYTECODE # without compiled files, each of hundreds of test processes would compile all its modules
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
BASE    = $(VENV)/.base
STAMP   = $(VENV)/.installed

DRIVER ?= drivers/pci
IMAGE  ?= $(notdir $(DRIVER))
ENGINE ?= docker

.PHONY: help demo examples dev check test test-rest test-all plugin pauses mutants lint type soak bench proto proto-env docs picture deploy e2e drivers dist release lock image sbom site site-versions clean
help:
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# Installs what a driver needs at run time, which is enough for the demo. The first `make test` installs the rest.
# The four packages are one repository and one version: nobody installs them one by one.
PACKAGES = devkit tools conformance
EDITABLE = -e . $(PACKAGES:%=-e packages/%)
PROJECTS = pyproject.toml $(PACKAGES:%=packages/%/pyproject.toml)
$(BASE): $(PROJECTS)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(EDITABLE)
	@touch $(BASE)

$(STAMP): $(BASE)
	@echo "installing what tests and lint need into $(VENV) (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(EDITABLE) -e '.[dev]'
	@touch $(STAMP)

demo: $(BASE) ## show each step of a claim, with the PCI hardware of this machine
	@$(BIN)/python drivers/pci/demo.py

examples: $(STAMP) ## run each manifest of examples/ on the local cluster
	@$(BIN)/python -m pytest -v --no-header examples

dev: $(BASE) ## run the local cluster with the PCI driver, until Ctrl-C
	@$(BIN)/dra dev drivers/pci

# Tests wait more than they work, so there are more workers than cores. A worker that has finished takes tests from another.
WORKERS ?= $(shell expr 2 '*' $$(getconf _NPROCESSORS_ONLN))
PYTEST   = $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal
# The tests of one package: make test PACKAGE=devkit. Without PACKAGE all tests run.
TESTS    = $(if $(PACKAGE),$(patsubst packages/framework/tests,tests,packages/$(PACKAGE)/tests))
# The markers of tests that need root, a container, an image build or a package index, and of long tests (pyproject.toml).
REST     = mounts or podman or runc or netns or image or index or full

check: $(STAMP) ## before a commit: lint, types, and within a minute the tests of the modules that changed
	@begun=$$(date +%s); $(MAKE) --no-print-directory lint && MAKE_CHECK_BEGUN=$$begun \
	  $(BIN)/python -m tests.tools.changed --workers $(WORKERS) --leave-out "crash or $(REST)" $(ARGS)

test: $(STAMP) ## within 5 minutes: the tests that need no root, container, image or package index, and part of the crash tests
	@$(PYTEST) -m "not ($(REST))" $(TESTS) $(ARGS)

test-rest: $(STAMP) ## the tests that `make test` leaves out
	@$(PYTEST) -m "$(REST)" $(TESTS) $(ARGS)

test-all: $(STAMP) ## every test, within 20 minutes
	@$(PYTEST) $(TESTS) $(ARGS)

# Tests of the plugin's publisher, engine, health, events and controller with an API server and a kubelet.
PLUGIN = $(patsubst %,tests/%.py,claims/test_device_status claims/test_claims_killed_and_device_removed claims/test_remote_devices_in_containers \
  claims/test_engine_repeated_event devices/slices/test_publisher devices/slices/test_publisher_quantities \
  devices/slices/test_scope devices/slices/test_status_and_gates devices/slices/test_sync_slice_controller_table \
  devices/test_health_monitor devices/test_inventory_removed_devices kube/test_discovery_served_versions \
  plugin/controller/binding/test_binder_faults plugin/controller/test_controller plugin/test_node plugin/test_node_processes \
  plugin/test_node_readiness plugin/test_node_unreachable_server resourceapi/test_resourceapi_newer_fields system/test_node_failure) \
  $(patsubst %,packages/devkit/tests/%.py,hosts/test_hosts_device_nodes testing/test_controlplane)
plugin: $(STAMP) ## run the plugin's tests with the local cluster as another release: make plugin RELEASE=1.34
	@DRA_KUBERNETES_VERSION=$(RELEASE) $(PYTEST) $(PLUGIN) $(ARGS)

pauses: $(STAMP) ## run tests with random pauses: make pauses ARGS="tests/kube --pauses late,tasks,children"
	@$(BIN)/python -m pytest -q -p tests.tools.pauses $(ARGS)

mutants: $(STAMP) ## change the code of claims in 100 places: tests must detect nine in ten changes
	@$(BIN)/python -m tests.tools.mutants $(ARGS)

lint: $(STAMP) ## run ruff, mypy --strict, and the checks of imports, structure, references, module sizes and language
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m tests.tools.module_sizes
	@$(BIN)/python -m tests.tools.structure
	@$(BIN)/python -m tests.tools.references
	@$(BIN)/python -m tests.tools.language

soak: $(STAMP) ## kill the plugin 1,000 times while its environment fails, then check memory and descriptors over 10,000 cycles
	@$(BIN)/python -m bench.soak $(ARGS)

bench: $(STAMP) ## measure the figures of docs/figures.md, with a baseline in the same run
	@$(BIN)/python -m bench $(ARGS)

proto-env:
	@test -x .venv-proto/bin/python || $(PYTHON) -m venv .venv-proto
	@.venv-proto/bin/python -m pip install --quiet --disable-pip-version-check grpcio-tools==1.80.0 mypy-protobuf==5.1.0

proto: proto-env ## regenerate the committed stubs, in an environment of their own
	@PATH="$(CURDIR)/.venv-proto/bin:$$PATH" .venv-proto/bin/python proto/generate.py src

docs: $(STAMP) ## regenerate pages, tables and diagrams of docs/
	@$(BIN)/python docs/generate.py

picture: $(STAMP) ## draw docs/demo.svg from the output of the demo on this machine, and the pictures of `dra top` and of the page
	@$(BIN)/python docs/picture.py
	@$(BIN)/python docs/view_pictures.py

deploy: $(BASE) ## regenerate the kustomize components, the Helm chart and the drivers' overlays
	@$(BIN)/dra deploy --shared-dir deploy
	@for values in drivers/*/deploy/values.yaml; do $(BIN)/dra deploy $$values --kustomize-base ../../../deploy/kustomize || exit; done

e2e: $(STAMP) ## test a driver on the cluster of KUBECONFIG: make e2e DRIVER=drivers/gpu_example ARGS="--image-load kind"
	@$(BIN)/python -m pytest -c /dev/null --noconftest -p no:cacheprovider -p dra_conformance.e2e.options --pyargs dra_conformance.e2e.steps -rs -v -p no:asyncio \
	  --driver-dir $(DRIVER) --image $(IMAGE) $(ARGS)

drivers: $(STAMP) ## rewrite the files of drivers/ that are copies of the templates of `dra new`
	@$(BIN)/python -m tests.tools.drivers

LOCKED = image/requirements.txt image/build-requirements.txt drivers/nvidia/image/requirements.txt
# Each pin needs a wheel for each of these platforms, because the image build compiles nothing.
IMAGES  = 3.11:x86_64 3.11:aarch64 3.13:x86_64 3.13:aarch64
UV      = .venv-lock/bin/uv
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --custom-compile-command 'make lock'

$(UV):
	@test -x .venv-lock/bin/python || $(PYTHON) -m venv .venv-lock
	@.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.13,<0.14'

dist: $(UV) ## build wheels and sdists of the four packages into dist/, reproducibly, with the pinned build backend
	@for package in . $(PACKAGES:%=packages/%); do \
	  $(UV) build --quiet --build-constraint image/build-requirements.txt --require-hashes --out-dir dist $$package || exit; done
	@cd dist && sha256sum *.whl *.tar.gz

# NOTES=no builds and checks before the changelog has the date of the release.
release: $(STAMP) ## build and check all that a release publishes, and publish nothing: dist/ with NOTES.md, and the site
	@$(if $(filter no,$(NOTES)),,$(BIN)/python -m tests.tools.release_notes > .notes.md)
	@rm -rf dist .venv-release
	@$(MAKE) --no-print-directory dist
	@$(if $(filter no,$(NOTES)),,mv .notes.md dist/NOTES.md)
	@$(PYTHON) -m venv .venv-release # an empty environment: the wheels and what they require, as a user installs them
	@.venv-release/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl && .venv-release/bin/python -m pip check
	@.venv-release/bin/dra --version && .venv-release/bin/dra new --kind chardev --directory .venv-release/new acme >/dev/null
	@$(MAKE) --no-print-directory site

lock: $(UV) ## pin what images install, by version and hash; `make lock ARGS=--upgrade` takes the newest versions
	@$(COMPILE) pyproject.toml -o image/requirements.txt $(ARGS)
	@$(COMPILE) --group image -o image/build-requirements.txt $(ARGS)
	@echo '-e .' | $(COMPILE) drivers/nvidia/pyproject.toml - --no-deps --no-emit-package dra-kubeletplugin \
	  -o drivers/nvidia/image/requirements.txt $(ARGS)
	@for image in $(IMAGES); do for file in $(LOCKED); do \
	  $(UV) pip install --quiet --dry-run --target .venv-lock/none --require-hashes --only-binary :all: -r $$file \
	    --python-version $${image%:*} --python-platform $${image#*:}-manylinux_2_28 || exit; done; done

image: ## build the image of a driver in this repository: make image DRIVER=drivers/pci IMAGE=registry.example.com/pci:0.1.0 ENGINE=podman
	$(ENGINE) build $(strip -t $(IMAGE) --build-arg DRIVER=$(DRIVER) $(ARGS) .)

sbom: ## print the contents of that image as CycloneDX
	@$(ENGINE) run --rm --entrypoint cat $(IMAGE) /usr/share/sbom/image.cdx.json

site: ## build the documentation site into site/; a broken link or reference is an error
	@test -x .venv-docs/bin/mkdocs || $(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check 'mkdocs-material>=9.8,<10' 'mkdocstrings[python]>=1.0' ruff
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build $(ARGS)

site-versions: $(STAMP) ## build the site of each release and of the present commit into site-versions/, with a menu of versions
	@rm -rf site-versions
	@$(BIN)/python -m tests.tools.site_versions site-versions

clean:
	rm -rf site site-versions .venv-docs .venv-release .venv-lock $(VENV) .venv-proto .mypy_cache .ruff_cache .pytest_cache .hypothesis
