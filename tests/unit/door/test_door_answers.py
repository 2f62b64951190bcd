"""The size of answers is bounded, whatever is asked; and what has no memory for one ends alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import Store
from kstore.door import connection
from tests.support.lives.door_calls import Caller, served
from tests.support.lives.door_parts import WireClient, opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kstore.open(tmp_path / "store", durability="os", background=False) as opened:
        opened.create_topic("orders", 3)
        yield opened


@pytest.mark.parametrize(
    ("api", "version", "body", "answered"),
    [
        ("Metadata", 9, {"topics": [{"name": "orders"}] * 1000}, "topics"),
        ("DescribeGroups", 5, {"groups": ["g"] * 1000}, "groups"),
        ("DescribeConfigs", 4, {"resources": [{"resourceType": 2, "resourceName": "orders"}] * 1000}, "results"),
        ("OffsetFetch", 8, {"groups": [{"groupId": "g", "topics": None}] * 1000}, "groups"),
    ],
)
def test_what_is_asked_a_thousand_times_is_answered_once(
    store: Store, api: str, version: int, body: dict[str, Any], answered: str
) -> None:
    assert len(Caller(served(store)).call(api, version, body)[answered]) == 1


def test_an_answer_that_is_too_large_ends_its_connection(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "RESPONSE_BYTES_MAX", 100)
    with opened(store) as (door, client), WireClient(door.port) as other:
        client.send("Metadata", 9, {"topics": None})
        assert client.is_closed_by_peer()
        assert other.ask("Heartbeat", 4, {"groupId": "g"})["errorCode"]
    assert "bytes to Metadata, expected at most 100" in caplog.text


def test_without_memory_for_an_answer_its_connection_ends_with_one_line(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> bytes:
        raise MemoryError

    with opened(store) as (door, client), WireClient(door.port) as other:
        assert client.ask("ApiVersions", 0)["errorCode"] == 0
        with monkeypatch.context() as patch:
            patch.setattr(connection, "response_bytes", fail)
            client.send("Metadata", 9, {"topics": None})
            assert client.is_closed_by_peer()
        assert other.ask("ApiVersions", 0)["errorCode"] == 0
    [line] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "no memory" in line.getMessage()
    assert line.exc_info is None
