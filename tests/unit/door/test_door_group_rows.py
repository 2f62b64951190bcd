"""The rules of groups (``door_group_rows.py``) against a door, through sockets."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

import kstore
from kstore.door.door import Door
from kstore.door.groups import Groups
from tests.support.fakes.fake_clock import ManualClock
from tests.support.lives.door_group_rows import ROWS
from tests.support.lives.door_group_stage import SECONDS_MAX, TOPIC, Stage


class Opened(NamedTuple):
    door: Door
    clock: ManualClock

    @property
    def groups(self) -> Groups:
        return self.door._served.groups

    def wait(self, seconds: float, group: str, unanswered: int) -> None:
        """Moves the clock once every request without an answer waits in the group, so that none comes too late."""
        deadline = time.monotonic() + SECONDS_MAX
        while self.waiting(group) != unanswered:
            assert time.monotonic() < deadline, f"{self.waiting(group)} requests wait, expected {unanswered}"
        self.clock.advance(int(seconds * 1000))
        for _ in range(3):  # a group that is busy just now is left out
            self.groups.run_due()

    def waiting(self, group: str) -> int:
        members = self.groups._entries[group].group.members.values()
        return sum((member.joining is not None) + (member.syncing is not None) for member in list(members))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    clock = ManualClock()
    path: Path = tmp_path_factory.mktemp("groups") / "store"
    with kstore.open(path, durability="os", background=False, clock=clock) as store:
        store.create_topic(TOPIC)
        store.create_topic("other")
        with Door(store, port=0) as door:
            yield Opened(door, clock)


@pytest.mark.parametrize("name", ROWS)
def test_a_rule_of_groups_holds_at_the_door(opened: Opened, name: str) -> None:
    with ExitStack() as stack:
        stage = Stage("127.0.0.1", opened.door.port, f"{name}-{uuid.uuid4().hex[:6]}", stack, opened.wait)
        ROWS[name](stage)
