"""The sentence of kstore in errors of a real Spark: batch and stream, on the driver and in tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kstore
from kstore.spark import sentence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def failure(run: Any) -> str:
    """The sentence of the error of ``run``; its traceback ends with it, and shows no inner frame."""
    with pytest.raises(Exception) as caught:  # Spark has many kinds
        run()
    told = sentence(caught.value)
    assert told is not None, caught.value
    assert "/kstore/engine/" not in str(caught.value)
    assert "/kstore/logs/" not in str(caught.value)
    return told


def stream(spark: SparkSession, path: Path, checkpoint: Path, **options: str) -> None:
    read = spark.readStream.format("kstore").options(**{"startingOffsets": "earliest", **options}).load(str(path))
    query = read.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    query.processAllAvailable()


@pytest.mark.long
def test_each_mistake_has_one_sentence_in_batch_and_stream(spark: SparkSession, tmp_path: Path) -> None:
    kstore.spark.register(spark)
    good, damaged = tmp_path / "good" / "t-0", tmp_path / "damaged" / "t-0"
    for path in (good, damaged):
        with kstore.Log(path) as log:
            log.append_many([b"v" * 100] * 100)
            log.append_many([b"v" * 100] * 100)
    [segment] = damaged.glob("*.log")
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)

    def batch(path: Path, **options: str) -> Any:
        return lambda: spark.read.format("kstore").options(**options).load(str(path)).collect()

    def streamed(path: Path, **options: str) -> Any:
        return lambda: stream(spark, path, tmp_path / f"checkpoint-{path.parent.name}-{len(options)}", **options)

    for read in (batch, streamed):
        assert "nowhere" in failure(read(tmp_path / "nowhere" / "t-0"))
        assert "bad crc" in failure(read(damaged))
        assert "startingOffset" in failure(read(good, startingOfset="earliest"))

    refused = spark.range(3).selectExpr("cast(id as string) as value", "id as unknown")
    assert "topic option required" in failure(
        lambda: refused.write.format("kstore").mode("append").option("path", str(tmp_path / "out")).save()
    )
