"""Spark's way to find the data source ``kstore``: it imports every top-level module named ``pyspark_...``.

An exception here would hide the data sources of every other package too, so there is none: where kstore does not load,
the source is there and says so when it is used.
"""

__all__ = ["DefaultSource"]

try:
    from kstore.spark.source import KStoreDataSource as DefaultSource
except Exception as error:  # whatever is wrong with kstore here, others are to be found
    from pyspark_kstore.unusable import unusable

    DefaultSource = unusable(error)  # type: ignore[misc]
