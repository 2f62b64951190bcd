"""Beside a real broker that writes and compacts, every reader finds all records and no damage (``live_cleaner``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.conftest import Kafka
from tests.interop.live_cleaner import PASSES, TOPICS, read_beside

pytestmark = [pytest.mark.interop, pytest.mark.long]

SECONDS = 30


def test_every_reader_finds_all_records_and_no_damage_beside_a_brokers_cleaner(kafka: Kafka, directory: Path) -> None:
    beside = read_beside(kafka.broker(directory), kafka.java, kafka.jars, SECONDS)
    assert beside.failures == []
    assert len(beside.passes) == 2 * len(PASSES) * len(TOPICS)
    assert beside.rounds > 5
