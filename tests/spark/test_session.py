"""Sessions: what ``kstore.spark.session`` sets, and that the data source is known in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_session_of_the_tests_runs_a_job(spark: SparkSession) -> None:
    assert spark.range(10).selectExpr("sum(id)").first() == (45,)
