"""Spark's executors, and data nodes of a real HDFS, are killed in the middle of a read and of a write of ``export``."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kstore
from kstore.errors import MissingExtraError, StorageError
from kstore.files import remote_stores
from kstore.files.remote import Location, open_remote
from kstore.spark.java import java_home
from tests.interop.interrupted_export import GO, INTERRUPTED, Moment, interrupting
from tests.interop.on_hdfs import put_files
from tests.spark.sessions import QUIET, environment, run_script, spark_home
from tools.interop.dfs import Dfs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.long]

LOGS, COUNT = 2, 20_000
# Several tasks for each log.
TASK_BYTES = 500_000
MOMENTS: tuple[Moment, ...] = ("read", "write")
WAIT_SECONDS_MAX = 300
# What a library's dump of Hadoop's messages contains.
DUMPED = "Proto"


@pytest.fixture
def there(dfs: Dfs, request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A directory on HDFS, by hdfs-native, with ``data``: logs of several segments."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    location = open_remote(f"{dfs.hdfs}/{name}")
    location.fs.make_dirs(location.path)
    for number in range(LOGS):
        with kstore.Log(tmp_path / "data" / f"t-{number}", segment_bytes=TASK_BYTES) as log:
            for start in range(0, COUNT, 500):
                log.append_many([b"%08d" % offset * 10 for offset in range(start, start + 500)])
        put_files(tmp_path / "data" / f"t-{number}", location / "data" / f"t-{number}")
    return location


def check_table(spark: SparkSession, there: Location) -> None:
    """Each record is in the table of the export once."""
    frame = spark.read.parquet(there.fs.url_of(there.path / "lake"))
    found = sorted((row.partition, row.offset, bytes(row.value)) for row in frame.collect())
    assert found == [(number, offset, b"%08d" % offset * 10) for number in range(LOGS) for offset in range(COUNT)]


def test_a_reader_goes_on_when_a_data_node_is_killed(dfs: Dfs, there: Location) -> None:
    wanted = [b"%08d" % offset * 10 for offset in range(COUNT)]
    for _ in range(2):
        with kstore.Log(there.path / "data" / "t-0", read_only=True, fs=there.reading) as log:
            reader = iter(log.read_values())
            first = next(reader)
            with dfs.without_data_node():
                assert list(chain([first], reader)) == wanted
                with kstore.Log(there.path / "data" / "t-1", read_only=True, fs=there.reading) as other:
                    assert list(other.read_values()) == wanted


def test_a_file_is_whole_or_absent_when_a_data_node_is_killed(
    dfs: Dfs, there: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the name node knows of it, a new file may fail: with one sentence, and a limit of time."""
    monkeypatch.setattr(remote_stores, "WRITE_SECONDS_MAX", 10.0)
    for number in range(4):
        data = bytes([number]) * 3_000_000
        said = ""
        with dfs.without_data_node():
            try:
                there.fs.put(there.path / "a", [data])
            except StorageError as error:
                said = str(error)
            if said:
                assert "a" not in there.fs.list(there.path)
            else:
                assert there.fs.open(there.path / "a").pread(len(data) + 1, 0) == data
                there.fs.unlink(there.path / "a")
        assert "\n" not in said
        assert DUMPED not in said


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_export_goes_on_when_a_data_node_is_killed(
    moment: Moment,
    spark: SparkSession,
    dfs: Dfs,
    there: Location,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kstore.spark.jobs import export as job

    monkeypatch.setattr(job, "export_stretch", interrupting("wait", moment, tmp_path))
    # One task: no other writes a file before the name node knows that the data node is dead.
    options = job.ExportOptions(task_bytes=1 << 30)
    data, lake = (there.fs.url_of(there.path / name) for name in ("data", "lake"))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(job.export, spark, [data], lake, options)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not (tmp_path / INTERRUPTED).exists() and not running.done():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        # What is being read or written loses its data node without notice; later files are placed elsewhere.
        with dfs.without_data_node(is_noticed=True):
            (tmp_path / GO).touch()
            found = running.result(WAIT_SECONDS_MAX)
    assert (tmp_path / INTERRUPTED).exists()
    assert found.records == LOGS * COUNT
    check_table(spark, there)


EXPORT = """
import json, sys
from pathlib import Path
from kstore.spark.jobs import export as job
from kstore.spark.session import session
from tests.interop.interrupted_export import interrupting

data, lake, shared, moment, task_bytes, conf = sys.argv[1:]
spark = session(master="local-cluster[2,1,1024]", app_name="killed", **json.loads(conf))
before = spark.sparkContext._jsc.sc().getExecutorIds().mkString(",")
job.export_stretch = interrupting("kill", moment, Path(shared))
found = job.export(spark, [data], lake, job.ExportOptions(task_bytes=int(task_bytes)))
after = spark.sparkContext._jsc.sc().getExecutorIds().mkString(",")
spark.stop()
print(json.dumps({"records": found.records, "executors": [before, after]}))
"""


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_export_goes_on_when_an_executor_is_killed(
    moment: Moment, spark: SparkSession, there: Location, tmp_path: Path
) -> None:
    try:
        home = java_home()
    except MissingExtraError as error:
        pytest.skip(str(error))
    env = environment(tmp_path, JAVA_HOME=str(home), SPARK_HOME=str(spark_home(tmp_path / "spark")))
    conf = {**QUIET, "spark.executorEnv.PYTHONPATH": env["PYTHONPATH"]}
    data, lake = (there.fs.url_of(there.path / name) for name in ("data", "lake"))
    found = run_script(EXPORT, tmp_path, data, lake, tmp_path, moment, TASK_BYTES, json.dumps(conf), env=env)
    assert (tmp_path / INTERRUPTED).exists()
    assert found["records"] == LOGS * COUNT
    check_table(spark, there)
