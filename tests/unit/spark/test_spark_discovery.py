"""How Spark finds the data source: ``pyspark_kstore`` exists, is light, and hides no other source."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import kstore.spark
import pyspark_kstore

# What Spark does in another process, pyspark/sql/worker/lookup_data_sources.py.
LOOK_UP = """
import sys
sys.path.insert(0, sys.argv[1])
from importlib import import_module
from pkgutil import iter_modules
from pyspark.cloudpickle import dumps, loads
from pyspark.sql.datasource import DataSource

found = {}
for info in iter_modules([sys.argv[1]]):
    if info.name.startswith("pyspark_"):
        module = import_module(info.name)
        if hasattr(module, "DefaultSource") and issubclass(module.DefaultSource, DataSource):
            found[module.DefaultSource.name()] = module.DefaultSource
source = loads(dumps(found["kstore"]))
try:
    print(source.__module__, source({"path": "/nowhere"}).schema().names[0])
except ImportError as error:
    print(error)
"""


def look_up(directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LOOK_UP, str(directory)], capture_output=True, text=True, cwd=directory
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_source_is_found_by_the_name_of_its_package() -> None:
    assert pyspark_kstore.DefaultSource is kstore.spark.KStoreDataSource
    assert look_up(Path(pyspark_kstore.__file__).parents[1]) == "kstore.spark.source key\n"


@pytest.mark.long
def test_a_kstore_that_does_not_load_is_found_and_says_why(tmp_path: Path) -> None:
    ours = Path(kstore.__file__).parent
    shutil.copytree(ours, tmp_path / "kstore", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copytree(Path(pyspark_kstore.__file__).parent, tmp_path / "pyspark_kstore")
    said = look_up(tmp_path)
    assert said.startswith("kstore does not load in this Python: ImportError: kstore's compiled modules for Python ")
    assert "kstore spark pack" in said
