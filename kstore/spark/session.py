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
# On one machine Spark listens only locally, and its workers have this Python, and so kstore.
LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # No traceback of each worker that a limit ends before it has sent everything.
    "spark.python.daemon.module": "kstore.spark.daemon",
}


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
            settings |= LOCAL
    builder = SparkSession.Builder().appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in {**settings, **conf}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Registers ``format("kstore")`` with a session, whose settings stay unchanged; also through Spark Connect.

    Nothing changes if the session knows the format: Spark may have found it itself, and warns if it is replaced.
    """
    from kstore.spark.connect import is_connect, sent_source
    from kstore.spark.source import KStoreDataSource

    if is_connect(spark):
        spark.dataSource.register(sent_source())
        return
    if not _is_known(spark, KStoreDataSource.name()):
        spark.dataSource.register(KStoreDataSource)


def _is_known(spark: SparkSession, name: str) -> bool:
    """Whether a session knows a data source; False if it cannot be asked."""
    try:
        # No public call answers this. Registering looks at the same list, so this costs nothing more.
        return bool(spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists(name))
    except Exception:  # another version of Spark may raise anything: then it is registered, with a warning at worst
        return False


def _text(value: object) -> str:
    """A setting as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _ensure_pyspark() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise missing_extra(error) from error


def missing_extra(error: ImportError) -> MissingExtraError:
    """The error for a package that Spark, or kstore's part for it, needs and that is not installed."""
    name = (error.name or "pyspark").partition(".")[0]
    return MissingExtraError(f"Spark needs {name}: pip install 'kstore[spark]'")
