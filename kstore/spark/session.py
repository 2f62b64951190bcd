"""Sessions that suit the data source: a Java that Spark runs on, this Python, and the right settings."""

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

# The settings of a session unless the caller gives others.
RECOMMENDED = {
    # With the option filterPushdown, a `where` then skips whole segments; without it this changes nothing.
    FILTER_PUSHDOWN: "true",
    # Halves the cost of a Python task before it does anything.
    "spark.python.unix.domain.socket.enabled": "true",
    # A crash in compiled code then says where it happened, not only that the worker is gone.
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}
# On one machine Spark listens only locally.
LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


def session(*, master: str | None = None, app_name: str = "kstore", **conf: object) -> SparkSession:
    """A session with the data source registered: ``session(master="local[4]", **{"spark.driver.memory": "4g"})``.

    Reuses a running session, as ``SparkSession.builder.getOrCreate()`` does, and changes its SQL settings. ``master``
    defaults to that of ``spark-submit`` or of Spark's configuration, and else to this machine.
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
        # No JVM runs yet: this process starts one.
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
    """Registers ``format("kstore")`` with a session, whose settings stay unchanged."""
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
