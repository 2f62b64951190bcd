"""Shared by the interop tests: Kafka's jars, a real HDFS, and the partition directories that kstore wrote.

Brokers are of the release in tools/interop/pom.xml, Kafka's dump tool of the newest one, whose lines ``dump-log``
prints. With the variable KAFKA_SWAPPED it is the other way round, and only the tests that use Kafka run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kstore.files.remote import Location, open_remote
from tests.interop.scenarios import SCENARIOS
from tests.spark.conftest import spark as spark
from tests.support.oracles.older_release import as_older
from tools.interop import java
from tools.interop.broker import Broker
from tools.interop.dfs import Dfs, running_dfs
from tools.interop.records import Row


class Kafka(NamedTuple):
    """A Java, and the folder with the jars of a release of Kafka."""

    java: str
    jars: Path
    release: str

    def lines(self, out: bytes) -> bytes:
        """What ``kstore dump-log`` printed, as this release's tool prints it."""
        return out if self.release == java.NEWEST_KAFKA else as_older(out)

    def broker(self, root: Path) -> Broker:
        return Broker(root, self.java, self.jars)


class Written(NamedTuple):
    """A closed partition directory, and the rows that it must hold."""

    directory: Path
    rows: list[Row]


class Library:
    """Every scenario's directory, written once; one that cannot be written fails (or skips) the tests that need it."""

    def __init__(self, root: Path) -> None:
        self._written: dict[str, Written] = {}
        self._failed: dict[str, BaseException] = {}
        for name, scenario in SCENARIOS.items():
            directory = root / f"{name}-0"
            try:
                self._written[name] = Written(directory, scenario.write(directory))
            except (Exception, pytest.skip.Exception) as error:
                self._failed[name] = error

    def __getitem__(self, name: str) -> Written:
        if name in self._failed:
            raise self._failed[name]
        return self._written[name]

    def directories(self, is_wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Path]:
        """The directories of the scenarios that could be written, by name."""
        return {name: written.directory for name, written in self._written.items() if is_wanted(name)}


# "" is the release of the pom.
BROKER, DUMP_TOOL = (java.NEWEST_KAFKA, "") if os.environ.get("KAFKA_SWAPPED") else ("", java.NEWEST_KAFKA)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not BROKER:
        return
    others = [
        item
        for item in items
        if isinstance(item, pytest.Function)
        and item.get_closest_marker("interop")
        and not {"kafka", "dump_tool"}.intersection(item.fixturenames)
    ]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


@pytest.fixture(scope="session")
def kafka() -> Kafka:
    """For brokers, and for the dumps of what they wrote."""
    return kafka_of(BROKER)


@pytest.fixture(scope="session")
def dump_tool() -> Kafka:
    """For dumps alone."""
    return kafka_of(DUMP_TOOL)


def kafka_of(release: str) -> Kafka:
    try:
        return Kafka(java.find_java(), java.fetch_jars(kafka_release=release), release)
    except java.Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def dfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dfs]:
    """An HDFS that runs until the tests end."""
    pytest.importorskip("hdfs_native")
    pytest.importorskip("fsspec.implementations.webhdfs")
    try:
        found = java.find_java(), java.fetch_jars(java.HDFS_POM)
    except java.Unavailable as reason:
        pytest.skip(str(reason))
    with running_dfs(tmp_path_factory.mktemp("dfs"), *found) as cluster:
        yield cluster


@pytest.fixture(params=["hdfs", "webhdfs"])
def at(request: pytest.FixtureRequest, dfs: Dfs) -> Location:
    """An empty directory on HDFS for this test, by hdfs-native and over WebHDFS."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    location = open_remote(f"{getattr(dfs, request.param)}/{name}")
    location.fs.make_dirs(location.path)
    return location


@pytest.fixture(scope="session")
def library(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(tmp_path_factory.mktemp("written"))
