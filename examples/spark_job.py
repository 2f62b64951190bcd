"""A Spark job over a store: counts the records of each key of one topic, and writes the counts as records of another.

usage: python spark_job.py [DIRECTORY]      needs pip install 'kstore[spark]', or 'kstore[spark,jre]' without a Java
"""

from __future__ import annotations

import sys

import kstore.spark


def main(directory: str = "data/shop") -> None:
    with kstore.open(directory) as store:
        if "orders" not in store.topics():
            store.create_topic("orders", partitions=2)
            with store.producer() as producer:
                for number in range(1_000):
                    producer.send("orders", b"order %d" % number, key=b"customer-%d" % (number % 5))

    spark = kstore.spark.session(app_name="counts", master="local[2]")
    orders = spark.read.format("kstore").option("subscribe", "orders").load(directory)
    counts = orders.groupBy("key").count().selectExpr("key", "cast(cast(count as string) as binary) as value")
    # The commit of the driver appends every record in one transaction: a job that is killed leaves nothing behind.
    counts.write.format("kstore").mode("append").options(topic="counts", partitions="1").save(directory)
    spark.stop()

    with kstore.open(directory, read_only=True) as store:
        latest = {record.key: record.value for record in store.log("counts").read(isolation_level="read_committed")}
    print(sorted(latest.items()))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except kstore.MissingExtraError as error:  # pyspark, or a Java
        sys.exit(str(error))
