# Everything a person or a machine does with a checkout. `make help` lists it.
# Only Python 3.11 or newer and a C compiler are needed; all else goes into .venv.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
SHELL := /bin/sh

VENV := .venv
PY := $(VENV)/bin/python
# The tests of our own client that want a broker, whichever, and not one that is alone.
ON_CLUSTER := $(addprefix tests/client/test_,consumer.py group.py producer.py aio.py admin.py arrays.py arrow.py interop.py)
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST_ARGS ?=
# More than there are cores: a test waits for half of its time, for a timer, an answer or a process that starts.
WORKERS ?= $(shell expr $(JOBS) + 3)
# What the clusters of tests are on, and their single brokers too: STORE=etcd or STORE=zookeeper with any target of tests.
ON_STORE = $(if $(STORE),--store $(STORE))
# The tests of clusters that run on etcd as well, by default. They have what differs between stores: sessions that end
# (fencing), servers that are away, empty or older (ensemble, rollback), large transactions (one to three), notices of
# changes (sasl), and a story of all else. A broker does the rest on either with the same code.
ON_ETCD := $(addprefix tests/,stories/test_cluster.py $(addprefix brokers/system/test_,fencing.py ensemble.py rollback.py \
	one_to_three.py sasl.py))

BESIDE = $(PY) -m pytest -n $(WORKERS) --dist loadgroup -m "not long" --durations 15 --durations-min 5 $(ON_STORE)
SYSTEMS = $(wildcard tests/system tests/*/system)

# The tests start a thousand Pythons, brokers and Spark's workers among them: what they import is compiled once.
unexport PYTHONDONTWRITEBYTECODE

# The same C is wanted again by a wheel's own build.
export PYBROKER_CYTHON_CACHE ?= $(CURDIR)/build/cython

# The newest fact wins: a stamp is older than what it was made from, or the step has nothing to do.
BASE := $(VENV)/.base
DEMO := $(VENV)/.demo
DEV := $(VENV)/.dev
BENCH := $(VENV)/.bench
SITE := $(VENV)/.site
BUILT := $(VENV)/.built
GENERATED := core/base/error_codes.pxd core/base/protocol.pxd
FACTS := tools/core_facts.py pybroker/errors.py pybroker/protocol/apis.py pybroker/protocol/schema.py $(wildcard pybroker/protocol/definitions/*.py)
SOURCES := $(filter-out $(GENERATED),$(foreach kind,pyx pxd h,$(wildcard core/*.$(kind) core/*/*.$(kind) core/*/*/*.$(kind)))) setup.py $(FACTS)

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v "$$p" && break; done)
# Two checks before anything is made: each stops make with its sentence and nothing else.
have_python = $(if $(PYTHON),,$(error No Python 3.11 or newer on PATH: install one, or name it with PYTHON=/path/to/python3))
problem = $(shell $(1) tools/preflight.py 2>&1)
have_tools = $(if $(call problem,$(1)),$(error $(call problem,$(1))))

.PHONY: help
help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: build
build: $(BUILT) ## .venv with pybroker built in place: .venv/bin/pybroker

.PHONY: demo
demo: $(BUILT) $(DEMO) ## a broker, a real client, a million records, kill -9, and all of them read back
	@$(PY) examples/demo.py

.PHONY: test
test: export PYBROKER_WERROR = 1
test: ## build, lint, types, what runs in a process, and each promise once
	@$(MAKE) --no-print-directory --jobs 2 $(BUILT) lint  # beside each other: an installation keeps one core busy
	@$(BESIDE) --ignore-glob='*/system' tests $(PYTEST_ARGS)

.PHONY: test-all
test-all: test ## make test, then whole systems: tests in folders called system, which start processes or take long; STORE=etcd
	@$(BESIDE) $(SYSTEMS) $(PYTEST_ARGS)
	@$(if $(STORE),,$(BESIDE) --store etcd $(ON_ETCD) $(PYTEST_ARGS))

.PHONY: lint
lint: $(DEV) ## ruff, mypy --strict, cython-lint
	@$(PY) -m ruff check .
	@$(PY) -m mypy pybroker pyspark_pybroker examples tools tests/client/typed_use.py
	@$(VENV)/bin/cython-lint --no-pycodestyle $(filter-out $(GENERATED),$(filter %.pyx %.pxd,$(SOURCES)))

.PHONY: docs
docs: $(BUILT) $(DEV) ## what code knows, written down: APIs, settings, log events, pictures, the messages' stubs
	@$(PY) tools/protocol_page.py
	@$(PY) tools/log_events.py
	@$(PY) tools/glance.py >/dev/null
	@$(PY) tools/messages.py
	@$(PY) tools/picture.py >/dev/null
	@$(PY) -m pybroker.config > docs/config.md

.PHONY: site
site: export NO_MKDOCS_2_WARNING = 1
site: $(BUILT) $(SITE) ## the documentation as a site, with search, that needs no web server: build/site/index.html
	@$(PY) -m mkdocs build --quiet --strict
	@$(PY) tools/site_pages.py build/site
	@echo "Built: build/site/index.html"

.PHONY: bench
bench: $(BUILT) $(BENCH) ## the benchmarks, printed beside the limit of this machine
	@$(PY) -m pytest bench --benchmark-enable -p no:xdist -p no:cacheprovider -s $(PYTEST_ARGS)

.PHONY: wheel
wheel: $(BUILT) $(DEV) ## dist/: an sdist, and a wheel built from it
	@echo "Building the sdist and the wheel"
	@mkdir -p build && $(PY) -m build --no-isolation >build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }
	@ls dist/*

.PHONY: release
release: $(BUILT) $(DEV) ## dist/: an sdist and a wheel of the tagged version, built twice to the same bytes, checked and tried
	@$(PY) tools/release.py

.PHONY: sanitize
sanitize: $(BUILT) $(DEV) ## core built with ASan and UBSan, then TSan: its tests, forks and storms under them
	@$(PY) tools/sanitize.py $(PYTEST_ARGS)

.PHONY: stalls
stalls: export PYBROKER_STALLS_MS ?= 50
stalls: $(BUILT) $(DEV) ## each file call slowed to 1 s in turn: what others wait meanwhile, and none longer than 50 ms
	@$(PY) -m pytest -q -s -p no:xdist tests/server/system/test_slow_disk.py $(PYTEST_ARGS)

.PHONY: scale
scale: PARTITIONS = 100000
scale: DESCRIPTORS = 20000
scale: $(BUILT) $(DEV) ## more partitions than file descriptors: PARTITIONS=100000 DESCRIPTORS=20000
	@PYBROKER_SCALE_PARTITIONS=$(PARTITIONS) PYBROKER_SCALE_DESCRIPTORS=$(DESCRIPTORS) \
		$(PY) -m pytest -s --durations 0 tests/faults/system/test_descriptors.py $(PYTEST_ARGS)

.PHONY: lives
lives: SECONDS = 600
lives: $(BUILT) $(DEV) ## a broker that is killed at random under clients of three libraries: SECONDS=600 SEED=7 STORE=etcd
	@$(PY) -m tests.lives.campaign --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ON_STORE)

.PHONY: cluster
cluster: $(BUILT) $(DEMO) ## three brokers and a ZooKeeper ensemble (or an etcd: ETCD=1) to try, and how to use them; Ctrl-C ends them
	@$(VENV)/bin/pybroker cluster start --store-servers 3 $(if $(ETCD),--store etcd)

.PHONY: chaos
chaos: SECONDS = 600
chaos: $(BUILT) $(DEV) ## brokers and a ZooKeeper or etcd, killed, frozen, cut apart, filled, while replicas move: SECONDS=600 SEED=7, SEEDS=1-10, ONLY=FAULT, STORE=etcd
	@$(PY) -m tests.brokers.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) \
		$(if $(ONLY),--only $(ONLY)) $(ON_STORE)

.PHONY: clients-on-cluster
clients-on-cluster: $(BUILT) $(DEV) ## the tests of all client libraries, groups and our own client, against three brokers with RF 3
	@$(PY) -m pytest -n $(WORKERS) --dist loadgroup $(ON_STORE) --target cluster tests/clients tests/groups/system/test_consumers.py $(ON_CLUSTER) $(PYTEST_ARGS)

.PHONY: clients
clients: $(BUILT) $(DEV) ## the tests of all client libraries and versions, and the table of docs/protocol.md
	@mkdir -p build
	@$(PY) -m pytest -q -n $(WORKERS) --dist loadgroup --junitxml build/clients.xml tests/clients $(PYTEST_ARGS)
	@$(PY) tools/clients_page.py build/clients.xml

.PHONY: long
long: $(BUILT) $(DEV) ## the tests that make test-all has no time for
	@$(PY) -m pytest -m long -p no:xdist --durations 20 $(ON_STORE) $(PYTEST_ARGS)

.PHONY: spark-cluster
spark-cluster: $(BUILT) $(DEV) ## Spark's standalone cluster and all ways of starting: what make test-all has no time for
	@$(PY) -m pytest -m "spark_cluster or long" -p no:xdist --durations 0 tests/spark $(PYTEST_ARGS)

.PHONY: simulate
simulate: SECONDS = 60
simulate: $(BUILT) $(DEV) ## the cluster's decisions in virtual time, one seed after another: SECONDS=60 SEED=1
	@$(PY) -m tests.simulation.world $(or $(SEED),1) $(SECONDS)

.PHONY: spark-chaos
spark-chaos: SECONDS = 600
spark-chaos: $(BUILT) $(DEV) ## a pipeline on a cluster that is killed at random: SECONDS=600 SEED=7 FORMAT=delta
	@$(PY) -m tests.spark.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(FORMAT),--table-format $(FORMAT))

.PHONY: clean
clean: ## what a build made; .venv stays (rm -rf .venv takes it too)
	@rm -rf build dist *.egg-info $(BUILT) $(GENERATED) $(foreach kind,c so,core/*.$(kind) core/*/*.$(kind) core/*/*/*.$(kind)) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find pybroker core tests bench examples tools -name __pycache__ -type d -prune -exec rm -rf {} +

# -- the steps behind them -------------------------------------------------------------------------------------------

$(PY):
	$(have_python)$(call have_tools,$(PYTHON))
	@echo "Making $(VENV) with $$($(PYTHON) -V)"
	@$(PYTHON) -m venv $(VENV)

# What is imported is compiled then: all of it took as long as a third of an installation.
# Ten retries: an index that answers again within two minutes ends no build.
pip := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile --retries 10
build_requires = $(shell $(PY) -c 'import shlex, tomllib; print(shlex.join(tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"]))')
# An editable install without extensions: they are compiled below, in place, and only when their sources change.
editable = PYBROKER_EXT=none $(pip) --no-build-isolation --editable

$(BASE): pyproject.toml | $(PY)
	@echo "Installing what pybroker needs"
	@$(pip) $(build_requires)
	@$(editable) .
	@touch $@

# The demo ends on Spark where Java is: PySpark is large, and of no use without it.
comma := ,
java = $(or $(JAVA_HOME),$(shell command -v java 2>/dev/null))
extra = $*$(if $(and $(filter demo,$*),$(java)),$(comma)spark)

$(DEMO) $(DEV) $(BENCH) $(SITE): $(VENV)/.%: pyproject.toml $(BASE)
	@echo "Installing what make $* needs"
	@$(editable) '.[$(extra)]'
	@touch $@

$(BUILT): $(SOURCES) $(BASE)
	$(call have_tools,$(PY))
	@echo "Building core with $(JOBS) jobs"
	@mkdir -p build && $(PY) setup.py --quiet build_ext --inplace --parallel $(JOBS) >build/build.log 2>&1 || { cat build/build.log; exit 1; }
	@touch $@
	@echo "Built: $(VENV)/bin/pybroker"
