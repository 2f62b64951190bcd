"""Measures a write of very many tasks by Spark, on a cluster of several executors on this machine.

Run as ``python -m tools.scale.spark_writes --tasks 2000``; it writes to a temporary directory. The write is
kstore's own; around its commit this notes what reaches the driver and what the driver spends:

    stage      from the start of the write to the start of the commit: the tasks, and Spark's own work
    commit     the commit alone: wall time, and the processor time of its Python process, user and system
    messages   bytes of all commit messages, pickled as Spark's executors send them
    memory     the greatest resident size of the driver's Java process, and of the Python process that commits

The executors and the driver share the machine's cores, so ``stage`` says little about a real cluster; the rest is the
driver's alone.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from kstore.spark import KStoreDataSource, session
from tests.spark.sessions import QUIET, spark_home

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NOTED = "noted.json"


class _Measured(DataSourceArrowWriter):
    """kstore's writer, with notes of its commit."""

    def __init__(self, writer: DataSourceArrowWriter, noted: str) -> None:
        self._writer = writer
        self._noted = noted

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._writer.write(iterator)

    def commit(self, messages: Any) -> None:
        sizes = [len(pickle.dumps(message)) for message in messages]
        before, started = resource.getrusage(resource.RUSAGE_SELF), time.time()
        self._writer.commit(messages)
        after, ended = resource.getrusage(resource.RUSAGE_SELF), time.time()
        noted = {
            "started": started,
            "commit_seconds": ended - started,
            "user_seconds": after.ru_utime - before.ru_utime,
            "system_seconds": after.ru_stime - before.ru_stime,
            "python_mib": after.ru_maxrss / 1024,  # KiB on Linux
            "python_mib_before": before.ru_maxrss / 1024,
            "messages": len(sizes),
            "message_bytes": sum(sizes),
            "message_bytes_max": max(sizes, default=0),
        }
        Path(self._noted).write_text(json.dumps(noted), encoding="utf-8")

    def abort(self, messages: Any) -> None:
        self._writer.abort(messages)


class _MeasuredSource(KStoreDataSource):
    noted = ""

    @classmethod
    def name(cls) -> str:
        return "kstore-measured"

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return _Measured(super().writer(schema, overwrite), self.noted)


def measure(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One write in a new store below ``root``. Linux only: memory is read from ``/proc``."""
    os.environ.update(SPARK_HOME=str(spark_home(root / "spark")), SPARK_LOCAL_IP="127.0.0.1", TMPDIR=str(root))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    spark = session(
        master=f"local-cluster[{options.executors},1,1024]",
        app_name="writes",
        **{
            **QUIET,
            "spark.local.dir": str(root / "local"),
            "spark.driver.memory": options.driver_memory,
        },
    )
    try:
        spark.sparkContext.setLogLevel("ERROR")
        _MeasuredSource.noted = str(root / NOTED)
        spark.dataSource.register(_MeasuredSource)
        java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
        # The executors' first tasks start Java's and Python's processes; these are not counted.
        spark.range(options.executors * 4, numPartitions=options.executors * 4).mapInArrow(_same, "id long").count()
        before_mib, started = _peak_mib(java), time.time()
        rows = spark.range(options.tasks * options.rows, numPartitions=options.tasks).selectExpr(
            "cast(id as string) as key", f"rpad(cast(id as string), {options.value_bytes}, 'x') as value"
        )
        rows.write.format("kstore-measured").mode("append").options(
            topic="orders", partitions=str(options.partitions), compressionType=options.codec
        ).save(str(root / "store"))
        ended = time.time()
        noted: dict[str, Any] = json.loads((root / NOTED).read_text(encoding="utf-8"))
        stored = sum(path.stat().st_size for path in (root / "store").glob("*/*.log"))
        return {
            "stage_seconds": noted.pop("started") - started,
            **noted,
            "write_seconds": ended - started,
            "stored_mib": stored / 2**20,
            "java_mib": _peak_mib(java),
            "java_mib_before": before_mib,
        }
    finally:
        spark.stop()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _peak_mib(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures one write, and prints a line for each number."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.scale.spark_writes", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=1000, help="of a task")
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=32)
    parser.add_argument("--executors", type=int, default=2, help="with one core each")
    parser.add_argument("--codec", default="none")
    parser.add_argument("--driver-memory", default="1g")
    parser.add_argument("--directory", help="where to write; by default the system's temporary directory")
    options = parser.parse_args(arguments)
    root = Path(tempfile.mkdtemp(prefix="spark-writes-", dir=options.directory))
    try:
        found = measure(root, options)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for name, value in found.items():
        print(f"{name:20} {value:,.2f}" if isinstance(value, float) else f"{name:20} {value:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
