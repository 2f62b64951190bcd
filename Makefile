# Everything a developer or user runs. Each target makes its own virtual environment first.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
COMPILED := $(wildcard kstore/*/*.pyx kstore/*/*.pxd kstore/*/*.pxi)
SOURCES := kstore pyspark_kstore tests tools examples setup.py

.PHONY: test-all crash-mutants simulate simulate-mutants help demo demo-spark test check format bench soak fuzz interop clean

help:
	@echo "make demo     the main job on real data: dump, append, kill, recover, read back"
	@echo "make demo-spark  a live producer, Spark streams killed once half way, compared with plain Python (needs Java, 3 minutes)"
	@echo "make test     the tests that show within 3 minutes whether every promise holds"
	@echo "make test-all  all tests but those of make interop and make soak"
	@echo "make check    format, lint, types, layers"
	@echo "make bench    speed, each line beside this machine's own limit"
	@echo "make soak     the tests with their long counts (an hour and more); writes docs/promises.md"
	@echo "make fuzz     hostile bytes: coverage-guided, and with sanitizers (15 minutes; Linux)"
	@echo "make simulate SEED=17  one long life of a store with its crashes; LIVES=100 of them, KEEP=3,20-25 only these steps"
	@echo "make simulate-mutants  planted bugs, and how many simulated lives it takes to find each (half an hour)"
	@echo "make crash-mutants  planted bugs, each of which the crash tests must catch"
	@echo "make interop  Kafka's own tools, a real broker and a real HDFS on kstore's files (needs Java and Maven)"

$(VENV)/.installed: pyproject.toml setup.py tools/make_venv.py $(COMPILED)
	$(PYTHON) tools/make_venv.py $(VENV)

demo: $(VENV)/.installed
	$(RUN) tools/demo.py

demo-spark: $(VENV)/.installed
	$(RUN) tools/demo_spark.py

test: $(VENV)/.installed
	$(RUN) -m pytest -q -n auto --dist loadscope -m "not long and not soak and not interop" tests

test-all: $(VENV)/.installed
	$(RUN) -m pytest -q -n auto --dist loadscope -m "not soak and not interop" tests

check: $(VENV)/.installed
	$(VENV)/bin/ruff format --check $(SOURCES)
	$(VENV)/bin/ruff check $(SOURCES)
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(VENV)/.installed
	$(VENV)/bin/ruff format $(SOURCES)
	$(VENV)/bin/ruff check --fix $(SOURCES)

bench: $(VENV)/.installed
	$(RUN) -m tools.bench

soak: $(VENV)/.installed
	$(RUN) -m pytest -q -n auto --dist worksteal -m "not interop and not spark" --durations 25 --promises docs/promises.md tests
	$(RUN) -m pytest -q -m "spark and not interop" tests

fuzz: $(VENV)/.installed
	$(RUN) -m tools.fuzz --engine atheris --seconds 60
	$(RUN) -m tools.fuzz --engine asan --seconds 60

simulate: $(VENV)/.installed
	$(RUN) -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(LIVES),--lives $(LIVES)) $(if $(KEEP),--keep $(KEEP))

simulate-mutants: $(VENV)/.installed
	$(RUN) -m tests.simulation.mutants

crash-mutants: $(VENV)/.installed
	$(RUN) -m tools.crash.mutants

interop: $(VENV)/.installed
	$(RUN) -m pytest -q -m interop tests

clean:
	rm -rf build dist *.egg-info .demo .demo-spark target
	find kstore -name '*.so' -delete
	find kstore -name '*.c' -delete
