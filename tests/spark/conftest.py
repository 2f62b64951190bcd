"""One Spark session for all tests that use ``spark``: it takes 16 s and two cores, so there is only one."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kstore.errors import MissingExtraError
from kstore.spark.session import register, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIXTURE = "spark"
# A Java process that lives for a minute spends most of its time compiling code that it never runs again.
SHORT_LIVED_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use the session are marked, before ``-m`` is applied."""
    for item in items:
        if FIXTURE in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A ``local[2]`` session with the data source registered; everything it writes is below pytest's own directory."""
    directory = tmp_path_factory.mktemp("spark")
    temporary = directory / "tmp"
    temporary.mkdir()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.driver.extraJavaOptions": " ".join(
            (f"-Djava.io.tmpdir={temporary}", f"-Dderby.system.home={directory / 'derby'}", *SHORT_LIVED_JAVA)
        ),
        # Small plans, each run once: compiling, re-optimizing or listing them costs more than it saves.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # Each batch that a source yields is checked against the schema, not only the first.
        "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    }
    try:
        session = start("local[2]", "kstore-tests", conf)
    except MissingExtraError as error:
        pytest.skip(str(error))
    session.sparkContext.setLogLevel("ERROR")
    if importlib.util.find_spec("kstore.spark.source") is not None:
        register(session)
    yield session
    session.stop()
