"""A driver that writes a directory's files to a store as a stream, a batch each, and is killed in between.

python -m tests.spark.sink_driver SOURCE STORE CHECKPOINT
"""

from __future__ import annotations

import sys
from pathlib import Path

from kstore.spark.session import session

__all__: list[str] = []


def main(source: Path, store: Path, checkpoint: Path) -> None:
    local = checkpoint.parent / "local"
    spark = session(
        master="local[2]",
        **{
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(local / "warehouse"),
            "spark.local.dir": str(local),
            # It lives for some seconds only.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source)).repartition(3)
    query = (
        rows.selectExpr("value", "substring(value, 1, 3) as key")
        .writeStream.format("kstore")
        .options(topic="orders", checkpointLocation=str(checkpoint), lockTimeout="2m")
        .start(str(store))
    )
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
