"""A driver that streams a directory's files to a store, a batch for each, and is killed meanwhile.

python -m tests.spark.sink_driver SOURCE STORE CHECKPOINT
"""

from __future__ import annotations

import sys
from pathlib import Path

from kstore.spark.session import session


def main(source: Path, store: Path, checkpoint: Path) -> None:
    local = checkpoint.parent / "local"
    spark = session(
        master="local[2]",
        **{
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(local / "warehouse"),
            "spark.local.dir": str(local),
            # It lives for only a few seconds.
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
