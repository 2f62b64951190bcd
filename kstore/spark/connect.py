"""Spark Connect: the data source goes to a server, by value, so that a server without kstore can say what it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is a client of Spark Connect, which has no Java of its own."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def sent_source() -> type[DataSource]:
    """A class that becomes kstore's data source where it is made, and raises there if kstore does not load.

    A class within a function is sent by value. One that is sent by its name would fail before anything of ours runs.
    """

    class KStoreDataSource(DataSource):
        """Logs as DataFrames: see ``kstore.spark.source``."""

        @classmethod
        def name(cls) -> str:
            return "kstore"

        def __new__(cls, options: dict[str, str]) -> Any:
            try:
                from kstore.spark.source import KStoreDataSource
            except ImportError as error:
                import sys

                message = (
                    f"the Python of Spark's server, {sys.executable}, does not load kstore ({error}): install it there,"
                    " or start the server with PYSPARK_PYTHON set to a Python that has it"
                )
                raise ImportError(message) from None
            return KStoreDataSource(options)

    return KStoreDataSource
