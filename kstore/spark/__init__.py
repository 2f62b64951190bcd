"""Segment directories as Spark DataFrames: the data source ``kstore``, batch and stream, reading and writing.

Spark's Python workers import this package in every process, so pyspark is imported only when something needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kstore.spark.frames import read
from kstore.spark.java import java_home
from kstore.spark.lag import Behind, behind
from kstore.spark.sentences import sentence
from kstore.spark.session import register, session

if TYPE_CHECKING:
    from kstore.spark.source import KStoreDataSource

__all__ = ["Behind", "KStoreDataSource", "behind", "java_home", "read", "register", "sentence", "session"]


def __getattr__(name: str) -> object:
    """Creates the data source on first use: its base class is pyspark's."""
    if name == "KStoreDataSource":
        from kstore.spark.source import KStoreDataSource

        return KStoreDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
