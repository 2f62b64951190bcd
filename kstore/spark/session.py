"""Sessions that the data source works well in: a Java that Spark runs on, this Python, and the settings to have."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kstore.errors import MissingExtraError
from kstore.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

# What a session is given unless the caller says otherwise.
RECOMMENDED = {
    # With the option filterPushdown a `where` then leaves out whole segments; without it this changes nothing.
    FILTER_PUSHDOWN: "true",
    # Half of what a Python task costs before it does anything.
    "spark.python.unix.domain.socket.enabled": "true",
    # A crash in compiled code then says where, not only that the worker is gone.
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}
# On one machine Spark listens to nobody else.
LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


def session(*, master: str | None = None, app_name: str = "kstore", **conf: object) -> SparkSession:
    """A session with the data source registered: ``session(master="local[4]", **{"spark.driver.memory": "4g"})``.

    A running one is taken, as by ``SparkSession.builder.getOrCreate()``; its settings of the SQL kind are changed.
    Without ``master`` it is that of ``spark-submit`` or of Spark's configuration, and else this machine.
    Raises: MissingExtraError, JavaNotFoundError.
    """
    spark = start(master, app_name, {name: _text(value) for name, value in conf.items()})
    register(spark)
    return spark


def start(master: str | None, app_name: str, conf: Mapping[str, str]) -> SparkSession:
    """The session without the registration."""
    _ensure_pyspark()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    settings = dict(RECOMMENDED)
    if SparkContext._active_spark_context is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        # No JVM runs yet: it is this process that starts one.
        os.environ["JAVA_HOME"] = str(java_home())
        if master is None and not any(os.environ.get(name) for name in ("SPARK_HOME", "SPARK_CONF_DIR")):
            master = "local[*]"
        if master is not None and master.startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            settings |= LOOPBACK
    builder = SparkSession.Builder().appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in {**settings, **conf}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Makes ``format("kstore")`` known to a session, whose settings stay as they are."""
    from kstore.spark.source import KStoreDataSource

    spark.dataSource.register(KStoreDataSource)


def _text(value: object) -> str:
    """A setting as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _ensure_pyspark() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("Spark needs pyspark: pip install 'kstore[spark]'") from error
