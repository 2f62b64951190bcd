# Everything a developer or user runs. Each target installs what it needs first (tools/make_venv.py).
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
# Otherwise each of the tests' hundreds of processes would compile every module again.
export PYTHONDONTWRITEBYTECODE :=
COMPILED := $(wildcard kstore/*/*.pyx kstore/*/*.pxd kstore/*/*.pxi kstore/cli/dump/*.pyx)
SOURCES := kstore pyspark_kstore tests tools examples setup.py

.PHONY: test-all docs pictures crash-mutants simulate simulate-mutants release help demo demo-spark test check format bench bench-broker soak fuzz interop clean

help:
	@echo "Each command installs what it needs into $(VENV), once."
	@echo "make demo     the main job on real data: dump, append, kill, recover, read back"
	@echo "make demo-spark  a live producer and Spark streams killed half way, compared with plain Python (needs Java, 3 minutes)"
	@echo "make test     the tests that show in a few minutes whether every promise holds"
	@echo "make test-all  all tests but those of make interop and make soak"
	@echo "make check    format, lint, types, layers, and that no run left its files in the root"
	@echo "make docs     the documentation as a site, build/site"
	@echo "make pictures  the pictures in the documents, from BENCHMARKS.md and from what commands print (those of pages need a headless Chromium)"
	@echo "make bench    speed, each line beside this machine's own limit"
	@echo "make bench-broker  speed beside a live Kafka broker and its clients (needs Java and Maven)"
	@echo "make soak     the tests with their long counts (hours), or TESTS=tests/crash/test_forks.py of them; updates docs/promises.md"
	@echo "make fuzz     hostile bytes: coverage-guided, and with sanitizers (15 minutes; Linux)"
	@echo "make simulate SEED=17  one long life of a store with crashes; LIVES=100 of them, KEEP=3,20-25 only these steps, HARSH=1 with interrupts"
	@echo "make simulate-mutants  planted bugs, and how many simulated lives find each (half an hour)"
	@echo "make crash-mutants  planted bugs, each of which the crash tests must catch"
	@echo "make interop  the dump tool of Kafka 4.4, a broker of 4.3, and a real HDFS on kstore's files (needs Java and Maven)"
	@echo "make release  source archive and wheels in dist/, each tried without a compiler (half an hour); DRAFT=1 before the version says so"
	@echo "make format   formats the sources"
	@echo "make clean    removes everything that these commands make, and the virtual environment"

# A test that takes longer than this many seconds hangs: its process prints all stacks and ends; the others go on.
hung_after = -o faulthandler_timeout=$(1) -o faulthandler_exit_on_timeout=true

# One environment that grows: a target asks for kstore itself, compiled, and for its group of pyproject.toml.
with = $(VENV)/.with-$(1) $(VENV)/.with-kstore

$(VENV)/.with-kstore: setup.py $(COMPILED)
	@$(PYTHON) tools/make_venv.py $(VENV)

$(VENV)/.with-%: pyproject.toml tools/make_venv.py
	@$(PYTHON) tools/make_venv.py $(VENV) $*

demo: $(call with,demo)
	$(RUN) tools/demo.py

demo-spark: $(call with,demo-spark)
	$(RUN) tools/demo_spark.py

# BUT=spark leaves out the tests of that mark too, and TESTS="tests/unit tests/crash" names those to run.
test: $(call with,test)
	$(RUN) -m pytest -q $(call hung_after,300) -n auto --dist loadscope -m "not long and not soak and not interop$(if $(BUT), and not $(BUT))" $(or $(TESTS),tests)

test-all: $(call with,test-all)
	$(RUN) -m pytest -q $(call hung_after,900) -n auto --dist loadscope -m "not soak and not interop" tests

check: $(call with,lint)
	$(RUN) -m tools.root_names
	$(VENV)/bin/ruff format --check $(SOURCES)
	$(VENV)/bin/ruff check $(SOURCES)
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(call with,lint)
	$(VENV)/bin/ruff format $(SOURCES)
	$(VENV)/bin/ruff check --fix $(SOURCES)

# Every warning is an error, except Material's banner about its own future.
docs: $(call with,docs)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet --strict
	@echo "The site is in build/site. To read it: $(RUN) -m http.server --directory build/site"

pictures: $(call with,test)
	$(RUN) -m tools.pictures

bench: $(call with,bench)
	$(RUN) -m tools.bench

bench-broker: $(call with,bench) $(call with,interop)
	$(RUN) -m tools.bench.broker

# Its page keeps the rows of other runs, so it may be run in parts.
soak: $(call with,test-all)
	$(RUN) -m pytest -q -n auto --dist worksteal -m "not interop and not spark" --durations 25 --promises docs/promises.md $(or $(TESTS),tests)
	$(if $(TESTS),,$(RUN) -m pytest -q -m "spark and not interop" tests)

fuzz: $(call with,fuzz)
	$(RUN) -m tools.fuzz --engine atheris --seconds 60
	$(RUN) -m tools.fuzz --engine asan --seconds 60

simulate: $(call with,tools)
	$(RUN) -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(LIVES),--lives $(LIVES)) $(if $(KEEP),--keep $(KEEP)) $(if $(HARSH),--harsh)

simulate-mutants: $(call with,tools)
	$(RUN) -m tests.simulation.mutants

crash-mutants: $(call with,test)
	$(RUN) -m tools.crash.mutants

interop: $(call with,interop)
	$(RUN) -m pytest -q -m interop tests

release: $(call with,release)
	$(RUN) -m tools.release $(if $(DRAFT),--draft)

clean:
	rm -rf $(VENV) .editable build dist *.egg-info .demo .demo-spark target
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find kstore pyspark_kstore tests tools -name __pycache__ -prune -exec rm -rf {} +
	find kstore -name '*.so' -delete
	find kstore -name '*.c' -delete
