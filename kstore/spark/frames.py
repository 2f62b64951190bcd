"""``kstore.spark.read``: the records of logs as a DataFrame, of which only what a query needs is read and decoded."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kstore.errors import ConfigError
from kstore.setting_rules import shown
from kstore.spark.session import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Path = str | os.PathLike[str]


def read(
    spark: SparkSession,
    path: Path | Sequence[Path],
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    **options: object,
) -> DataFrame:
    """The records at ``path``: ``read(spark, "data", columns=["key"], where="topic = 'clicks' and offset >= 100")``.

    Spark tells a Python source neither which columns a query uses nor, safely, its conditions. Named here, columns that
    are not needed are never decoded, and logs, segments and parts of them that cannot match are never opened.

    Args:
        path: one path or several: a store, a broker's log directory, a partition, a glob, or URLs of these.
        columns: the columns of the result, in this order; by default all. ``["offset"]`` is the cheapest to count.
        where: a condition of Spark's SQL on any columns. It is applied in full. Conditions on offset, partition, topic,
            and lower bounds of timestamp, joined with AND, also bound what is read.
        options: as for ``spark.read.format("kstore")``, as Python values: ``includeHeaders=True``.

    Raises: ConfigError for an invalid argument; AnalysisException, by Spark, for an invalid option or condition. Logs
    are first looked at by an action.
    """
    from kstore.spark.conditions import columns_in
    from kstore.spark.schema import COLUMNS

    if isinstance(columns, str):
        raise ConfigError(f"columns is the text {shown(columns)}, expected a list of names")
    if where is not None and not isinstance(where, str):
        raise ConfigError(
            f"where is of type {type(where).__name__}, expected SQL as a text: columns do not say what they read"
        )
    given = dict(options)
    if columns is not None:
        needed = [] if where is None else [name for name in columns_in(where, COLUMNS) if name not in columns]
        given["columns"] = ",".join([*columns, *needed])
    if where is not None:
        given["pruneWhere"] = where
    register(spark)
    reader = spark.read.format("kstore").options(
        **{name: _text(value) for name, value in given.items() if value is not None}
    )
    frame = reader.load(os.fspath(path) if isinstance(path, str | os.PathLike) else [os.fspath(each) for each in path])
    if where is not None:
        frame = frame.where(where)
        if columns is not None:
            frame = frame.select(*columns)
    return frame


def _text(value: object) -> str:
    """An option as Spark passes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value)
    return str(value)
