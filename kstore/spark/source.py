"""The data source ``kstore``: creates the reader or writer that Spark asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from kstore.spark.options import ReadOptions
from kstore.spark.schema import check_columns, spark_schema
from kstore.spark.sentences import without_causes

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class KStoreDataSource(DataSource):
    """Logs as DataFrames: ``spark.read.format("kstore").load("/data/kafka-logs")``, and ``readStream``, ``write``,
    ``writeStream``.

    Columns and options are those of Spark's Kafka source, plus a few more; docs/spark.md lists them.
    """

    @classmethod
    def name(cls) -> str:
        return "kstore"

    @without_causes()
    def schema(self) -> StructType:
        options = ReadOptions.parse(self.options, streaming=None)
        return spark_schema(options.columns, include_headers=options.include_headers, header_keys=options.header_keys)

    @without_causes()
    def reader(self, schema: StructType) -> DataSourceReader:
        from kstore.spark.reader import KStoreReader

        check_columns(schema)
        return KStoreReader(ReadOptions.parse(self.options, streaming=False), schema)

    @without_causes()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from kstore.spark.stream import KStoreStreamReader

        check_columns(schema)
        return KStoreStreamReader(ReadOptions.parse(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from kstore.spark.writer import KStoreWriter

        return KStoreWriter(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from kstore.spark.writer import KStoreStreamWriter

        return KStoreStreamWriter(schema, self.options, overwrite)
