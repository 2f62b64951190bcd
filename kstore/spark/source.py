"""The data source ``kstore``: what Spark asks for a reader or a writer."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

__all__ = ["KStoreDataSource"]


class KStoreDataSource(DataSource):
    """Logs as DataFrames: ``spark.read.format("kstore").load("/data/kafka-logs")``, and ``readStream``, ``write``,
    ``writeStream``.

    Columns and options are those of Spark's Kafka source, and a few more; docs/spark.md lists them.
    """

    @classmethod
    def name(cls) -> str:
        return "kstore"
