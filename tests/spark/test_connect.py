"""Spark Connect: a client without Java, and a server that has kstore, or lacks it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark.serializers import CloudPickleSerializer

import kstore
from kstore.spark import java_home, register
from kstore.spark.connect import sent_source
from kstore.spark.source import KStoreDataSource
from tests.spark.sessions import environment, run_script

# Without the packages of this environment, so without kstore.
BARE = """
import pickle, sys
sys.path.append(sys.argv[1])
source = pickle.loads(sys.stdin.buffer.read())
try:
    source({"path": "x"})
except ImportError as error:
    print(error)
"""


def test_a_server_without_kstore_says_what_it_lacks() -> None:
    sent = CloudPickleSerializer().dumps(sent_source())
    packages = Path(pyspark.__file__).parent.parent
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", BARE, str(packages)], input=sent, capture_output=True, check=True
    )
    said = found.stdout.decode()
    assert said.startswith(f"the Python of Spark's server, {sys.executable}, does not load kstore (")
    assert "start the server with PYSPARK_PYTHON" in said


def test_a_server_with_kstore_has_its_source() -> None:
    source = sent_source()
    assert source.name() == KStoreDataSource.name()
    assert type(source({"path": "x"})) is KStoreDataSource


def test_a_client_sends_the_source_to_its_server() -> None:
    class Client:
        """As ``pyspark.sql.connect.session.SparkSession``."""

        def __init__(self) -> None:
            self.registered: list[type] = []
            self.dataSource = SimpleNamespace(register=self.registered.append)

    Client.__module__ = "pyspark.sql.connect.session"
    client: Any = Client()
    register(client)
    (sent,) = client.registered
    assert sent is not KStoreDataSource
    assert sent.name() == "kstore"


THROUGH_CONNECT = """
import json, sys
import kstore.spark
from pyspark.sql import SparkSession

logs, there = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
kstore.spark.register(spark)
frame = spark.read.format("kstore").load(logs)
found = [type(spark).__module__, frame.count(), frame.where("offset >= 90").count()]
(
    frame.where("offset < 10").select("value").write.format("kstore")
    .options(topic="out", partitions="1").mode("append").save(there + "/store")
)
found.append(spark.read.format("kstore").load(there + "/store").count())
query = (
    spark.readStream.format("kstore").option("startingOffsets", "earliest").load(logs)
    .writeStream.format("parquet").option("checkpointLocation", there + "/checkpoint")
    .option("path", there + "/parquet").trigger(availableNow=True).start()
)
query.awaitTermination()
found += [spark.read.parquet(there + "/parquet").count(), kstore.spark.behind(query.lastProgress)]
try:
    spark.read.format("kstore").load(there + "/none").count()
except Exception as error:
    found.append(kstore.spark.sentence(error))
spark.stop()
print(json.dumps(found))
"""


@pytest.mark.spark
@pytest.mark.long
def test_reads_writes_and_streams_work_through_connect(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
    with kstore.Log(tmp_path / "logs" / "events-0", durability="os") as log:
        log.append_many([b"%d" % number for number in range(100)])
    env = environment(tmp_path, JAVA_HOME=str(java_home()), PYSPARK_PYTHON=sys.executable)
    module, count, late, written, streamed, behind, said = run_script(
        THROUGH_CONNECT, tmp_path, tmp_path / "logs", tmp_path, env=env
    )
    assert module == "pyspark.sql.connect.session"
    assert (count, late, written, streamed) == (100, 10, 10, 100)
    assert behind == [0.0, 0, 0]
    assert "there is no log, and no directory of logs" in said
