"""What Spark's Kafka source and sink see at SERVER: ``python -m tests.interop.spark_program SERVER JARS FOLDER``.

JARS is a folder with the source's jars, and all that is written is below FOLDER. Prints a line for each step.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kstore.spark.session import start
from tests.interop.client_program import FIRST_MS, Confluent, Message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = 60
ENDED = '{"orders":{"0":15,"1":-1,"2":19}}'
STARTED = '{"orders":{"0":3,"1":-2,"2":17}}'
BATCHES: dict[str, dict[str, str]] = {
    "all": {"subscribe": "orders", "includeHeaders": "true"},
    "by a pattern": {"subscribePattern": "ord.*"},
    "assigned": {"assign": '{"orders":[0,2]}'},
    "between offsets": {"subscribe": "orders", "startingOffsets": STARTED, "endingOffsets": ENDED},
    "from a time to another": {
        "subscribe": "orders",
        "startingTimestamp": str(FIRST_MS + 10_500),
        "endingTimestamp": str(FIRST_MS + 40_000),
    },
    "in many parts": {"subscribe": "orders", "minPartitions": "7", "kafka.isolation.level": "read_committed"},
}


def started(jars: Path, folder: Path) -> SparkSession:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    options = {
        "spark.jars": ",".join(str(jar) for jar in sorted(jars.glob("*.jar"))),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        # Small plans, each run once: compiling them costs more than it saves.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dderby.system.home={folder}",
    }
    session = start("local[2]", "kstore-door", options)
    session.sparkContext.setLogLevel("ERROR")
    return session


def rows(frame: DataFrame, *left_out: str) -> list[str]:
    return sorted(str(row) for row in frame.drop(*left_out).collect())


def steps(server: str, jars: Path, folder: Path) -> Iterator[tuple[Any, ...]]:
    library = Confluent(server)
    library.create()
    library.send([Message(number) for number in range(COUNT)], "zstd")
    spark = started(jars, folder)
    where = {"kafka.bootstrap.servers": server}
    for name, options in BATCHES.items():
        yield name, *rows(spark.read.format("kafka").options(**where, **options).load())

    def stream(sink: str, more: dict[str, str]) -> tuple[Any, ...]:
        """One run until now of a stream, which continues where its last run stopped."""
        frame = spark.readStream.format("kafka").options(**where, **more).load()
        place = {"checkpointLocation": str(folder / f"{sink}.checkpoint"), "path": str(folder / sink)}
        query = frame.writeStream.format("parquet").options(**place).trigger(availableNow=True).start()
        query.awaitTermination()
        ends = [json.loads(each["sources"][0]["endOffset"]) for each in query.recentProgress if each["numInputRows"]]
        return ends[-1:], *rows(spark.read.parquet(str(folder / sink)))

    options = {"subscribe": "orders", "startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}
    small = {**options, "maxOffsetsPerTrigger": "17"}
    yield "stream", *stream("one", options)
    yield "in small batches", *stream("two", small)
    library.send([Message(number) for number in range(COUNT, 2 * COUNT)], "lz4")
    yield "continued", *stream("one", options)
    yield "continued in small batches", *stream("two", small)

    sent = spark.range(COUNT).selectExpr(
        "'orders' as topic", "cast(id % 3 as int) as partition", "concat('k', id) as key", "concat('v', id) as value"
    )
    sent.write.format("kafka").options(**where).save()
    later = {"subscribe": "orders", "startingOffsets": '{"orders":{"0":40,"1":40,"2":40}}'}
    # The order within a partition is that of the tasks, and the time is the clock's.
    yield "written", *rows(spark.read.format("kafka").options(**where, **later).load(), "timestamp", "offset")
    spark.stop()
    library.close()


def main(server: str, jars: str, folder: str) -> None:
    for step in steps(server, Path(jars), Path(folder)):
        name, *parts = step
        for part in parts:
            print(name, part, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
