"""A cluster of two executors gets kstore from the archive, and makes up for killed tasks."""

from __future__ import annotations

import json
import site
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import kstore
from kstore.errors import MissingExtraError
from kstore.spark.java import java_home
from kstore.spark.pack import pack
from tests.spark.sessions import QUIET, environment, run_script, spark_home
from tests.support.harness.unpacking import unpack

JOB = Path(__file__).with_name("cluster_job.py")
PARTITIONS = 2
RECORDS = 3000
# What Spark's workers need beside the archive.
OF_SPARK = ("pyarrow", "numpy", "numpy.libs", "pandas", "pandas.libs", "pytz", "dateutil", "six.py", "tzdata")


def python_without_kstore(directory: Path) -> Path:
    """A virtual environment with what Spark itself needs, and no kstore."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(directory)], check=True)
    target = next(directory.glob("lib/python*/site-packages"))
    for name in OF_SPARK:
        for source in site.getsitepackages():
            if Path(source, name).exists():
                (target / name).symlink_to(Path(source, name))
                break
    return directory / "bin" / "python"


def write_store(directory: Path) -> Path:
    with kstore.open(directory) as store:
        store.create_topic("events", partitions=PARTITIONS, segment_bytes="64KiB")
        for partition in range(PARTITIONS):
            log = store.log("events", partition)
            for start in range(0, RECORDS, 100):
                log.append_many([b"%d-%d" % (partition, number) for number in range(start, start + 100)])
    return directory


@pytest.mark.spark
@pytest.mark.long
def test_executors_run_kstore_from_the_archive_and_killed_tasks_double_nothing(
    tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    try:
        home = java_home()
    except MissingExtraError as error:
        pytest.skip(str(error))
    logs = write_store(tmp_path / "logs")
    kstore.open(tmp_path / "target" / "store").close()
    with kstore.open(tmp_path / "target" / "store") as store:
        store.create_topic("copy", partitions=PARTITIONS)
    python = python_without_kstore(tmp_path / "python")
    packed = pack(tmp_path / "kstore.tar.gz")
    settings = {**packed.settings, **QUIET}
    # The driver's helpers run the same Python outside any executor's directory: for them, unpack the archive by hand.
    unpack(packed.path, tmp_path / "driver")
    env = environment(
        tmp_path,
        JAVA_HOME=str(home),
        PYSPARK_PYTHON=str(python),
        PYTHONPATH=str(tmp_path / "driver"),
        SPARK_HOME=str(spark_home(tmp_path / "spark")),
    )

    found = run_script(JOB, tmp_path, logs, tmp_path / "target", json.dumps(settings), env=env)

    assert len(found["executors"]) == 2
    for module, executable, has_kstore in found["executors"]:
        assert Path(module).is_relative_to(tmp_path / "spark" / "work"), "kstore is not the archive's"
        assert (executable, has_kstore) == (str(python), False)
    assert found["count"] == PARTITIONS * RECORDS
    assert found["killed"] == [True, True]
    assert found["parquet"] == [PARTITIONS * RECORDS, PARTITIONS * RECORDS]
    tried("kills", 2)
    with kstore.open(tmp_path / "target" / "store", read_only=True) as store:
        for partition in range(PARTITIONS):
            values = store.log("copy", partition).to_arrow(columns=["value"], isolation_level="read_committed")
            assert sorted(values.column(0).to_pylist()) == sorted(
                b"%d-%d" % (partition, number) for number in range(RECORDS)
            )
