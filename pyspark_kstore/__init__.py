"""Lets Spark find the data source ``kstore``: it imports every top-level module named ``pyspark_...``.

An exception here would hide the data sources of every other package too, so this module raises none: if kstore does not
load, the source exists and reports that when it is used.
"""

__all__ = ["DefaultSource"]

try:
    from kstore.spark.source import KStoreDataSource as DefaultSource
except Exception as error:  # whatever is wrong with kstore, Spark must find the others
    from pyspark_kstore.unusable import unusable

    DefaultSource = unusable(error)  # type: ignore[misc]
