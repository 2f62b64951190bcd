"""Backups, a replica, and reads in place, in a bucket of an S3 server (moto's, on loopback)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.cli.main import main

pytestmark = pytest.mark.interop

SETTINGS: dict[str, Any] = {"background": False, "durability": "os"}
RECORDS = 50


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = pytest.importorskip("moto.server", reason="needs moto, flask and flask-cors").ThreadedMotoServer
    pytest.importorskip("s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    started = server(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    yield f"http://{host}:{port}"
    started.stop()


@pytest.fixture
def url(endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """A place in an empty bucket. The environment names the server, as for a user."""
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", endpoint),
    ):
        monkeypatch.setenv(name, value)
    s3fs = pytest.importorskip("s3fs")
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = "".join(letter if letter.isalnum() else "-" for letter in request.node.name).lower()[:60].strip("-")
    s3fs.S3FileSystem().mkdir(bucket)
    yield f"s3://{bucket}/place"
    s3fs.S3FileSystem.clear_instance_cache()


def contents(store: kstore.Store) -> list[list[bytes | None]]:
    return [[record.value for record in store.log("orders", partition).read()] for partition in range(2)]


def append(store: kstore.Store, word: str) -> None:
    for partition in range(2):
        store.log("orders", partition).append_many([f"{word} {number}".encode() for number in range(RECORDS)])


def test_backups_and_a_replica_in_s3_are_restored(url: str, tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store", segment_bytes=1024, **SETTINGS) as store:
        store.create_topic("orders", 2)
        append(store, "first")
        times, expected = [store.backup(url).time_ms], [contents(store)]
        assert not store.backup(url).copied_count
        with store.replicator(url) as replicator:
            for number in range(5):
                append(store, f"round {number}")
                times.append(replicator.flush())
                expected.append(contents(store))
    checked = kstore.check_backups(url)
    assert all(backup.ok for backup in checked)
    assert {*times} <= {backup.time_ms for backup in checked}
    for number, time_ms in enumerate(times):
        kstore.restore(url, tmp_path / f"new-{number}", at_ms=time_ms)
        with kstore.open(tmp_path / f"new-{number}", **SETTINGS) as new:
            assert contents(new) == expected[number]


def test_a_replica_in_s3_is_read_in_place(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kstore.open(tmp_path / "store", segment_bytes=1024, **SETTINGS) as store:
        store.create_topic("orders", 2)
        append(store, "first")
        with store.replicator(url) as replicator:
            replicator.flush()
            append(store, "second")
        expected = contents(store)
    with kstore.open(url, read_only=True) as shown:
        assert contents(shown) == expected
    with kstore.Log(f"{url}/orders-1", read_only=True) as log:
        assert list(log.read_values()) == expected[1]
    lines = "".join(f"{value.decode()}\n" for value in expected[1] if value is not None)
    assert main(["read", f"{url}/orders-1"]) == 0
    assert capsys.readouterr().out == lines
    assert main(["dump-log", "--print-data-log", f"{url}/orders-1"]) == 0
    assert capsys.readouterr().out.count("payload: ") == 2 * RECORDS
    for command in ("verify", "stats"):
        assert main([command, url]) == 0
        assert "orders-1" in capsys.readouterr().out


def test_a_large_segment_is_sent_in_parts(url: str, tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store", **SETTINGS) as store:
        store.create_topic("orders", 2)
        for _ in range(20):
            store.log("orders", 0).append_many([bytes(1_000_000)] * 2)
        assert store.backup(url).copied_bytes > 40_000_000
        expected = contents(store)
    assert all(backup.ok for backup in kstore.check_backups(url))
    kstore.restore(url, tmp_path / "new")
    with kstore.open(tmp_path / "new", **SETTINGS) as new:
        assert contents(new) == expected
