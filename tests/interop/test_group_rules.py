"""The rules of groups (``door_group_rows``) against a real broker: what the door answers is what that does."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.interop.conftest import Kafka
from tests.support.lives.door_group_rows import ROWS
from tests.support.lives.door_group_stage import TOPIC, Stage

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def server(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    broker = kafka.broker(tmp_path_factory.mktemp("group-rules"))
    broker.life_seconds_max = 900
    with broker.running():
        broker.create_topics({TOPIC: {}, "other": {}})
        host, _, port = broker.server.partition(":")
        yield host, int(port)


def slept(seconds: float, group: str, unanswered: int) -> None:
    """A broker's time passes by itself."""
    time.sleep(seconds)


@pytest.mark.parametrize("name", ROWS)
def test_a_rule_of_groups_holds_at_a_broker(server: tuple[str, int], name: str) -> None:
    with ExitStack() as stack:
        ROWS[name](Stage(*server, f"{name}-{uuid.uuid4().hex[:6]}", stack, slept))
