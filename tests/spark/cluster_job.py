"""Started by test_cluster.py: a job on a cluster whose executors have kstore only from the archive.

usage: python cluster_job.py LOGS TARGET SETTINGS      SETTINGS is JSON; prints JSON
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kstore.spark import KStoreDataSource, session

LOGS, TARGET, SETTINGS = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])


class KilledOnceReader(DataSourceReader):
    """kstore's reader; the first task to yield half of its records is killed with its process."""

    def __init__(self, reader: DataSourceReader, marker: str) -> None:
        self._reader = reader
        self._marker = marker

    def partitions(self) -> Any:
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(self._reader.read(partition)):
            if number == 5:
                self._kill_once()
            yield batch

    def _kill_once(self) -> None:
        try:
            os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class KilledOnce(KStoreDataSource):
    """kstore under another name, one of whose tasks is killed."""

    marker = ""

    @classmethod
    def name(cls) -> str:
        return "killed-once"

    def reader(self, schema: StructType) -> DataSourceReader:
        return KilledOnceReader(super().reader(schema), self.marker)


class KilledOnceWhileWriting(KilledOnce):
    @classmethod
    def name(cls) -> str:
        return "killed-once-while-writing"


def where(_: int) -> tuple[str, str, bool]:
    """In an executor: where its kstore is, which Python runs, and whether that Python has its own kstore."""
    import kstore

    alone = subprocess.run([sys.executable, "-I", "-c", "import kstore"], capture_output=True)
    return str(Path(kstore.__file__ or "").resolve()), sys.executable, alone.returncode == 0


def main() -> None:
    spark = session(master="local-cluster[2,1,1024]", app_name="cluster", **SETTINGS)
    try:
        print(json.dumps(run(spark)))
    finally:
        spark.stop()


def run(spark: SparkSession) -> dict[str, Any]:
    KilledOnce.marker = str(TARGET / "killed-in-read")
    KilledOnceWhileWriting.marker = str(TARGET / "killed-in-write")
    spark.dataSource.register(KilledOnce)
    spark.dataSource.register(KilledOnceWhileWriting)

    found: dict[str, Any] = {"executors": sorted(set(spark.sparkContext.range(8, numSlices=8).map(where).collect()))}
    read = spark.read.format("kstore").load(LOGS)
    found["count"] = read.count()

    killed = spark.read.format("killed-once").option("batchRows", 100).load(LOGS)
    killed.write.parquet(str(TARGET / "parquet"))
    back = spark.read.parquet(str(TARGET / "parquet"))
    found["parquet"] = [back.count(), back.select("partition", "offset").distinct().count()]

    killed = spark.read.format("killed-once-while-writing").option("batchRows", 100).load(LOGS)
    killed.select("key", "value", "partition").write.format("kstore").mode("append").option("topic", "copy").save(
        str(TARGET / "store")
    )
    found["killed"] = [Path(KilledOnce.marker).exists(), Path(KilledOnceWhileWriting.marker).exists()]
    return found


if __name__ == "__main__":
    main()
