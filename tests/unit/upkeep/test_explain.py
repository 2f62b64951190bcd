"""Explained lookups: the steps lead to the record that a read gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kstore.errors import OffsetOutOfRangeError
from kstore.log import Log
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.upkeep.explain import Explanation, explain_offset, explain_time
from tests.support.harness.golden_data import golden_partitions, golden_root
from tests.support.lives.foreign_batches import message, tampered

T = 1_700_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "log", segment_bytes=200_000, index_interval_bytes=0) as log:
        for number in range(4_000):
            log.append(b"x" * 20, timestamp=T + number)
        yield log


def steps(explanation: Explanation, what: str) -> list[dict[str, object]]:
    return [step.values for step in explanation.steps if step.what == what]


def test_every_offset_leads_to_its_record(log: Log) -> None:
    for offset in range(0, 4_000, 97):
        found = explain_offset(log, offset)
        assert found.record == next(log.read(offset))
        (segment,) = steps(found, "segment")
        assert segment["base_offset"] <= offset  # type: ignore[operator]


def test_the_parts_of_the_index_are_told_apart(log: Log) -> None:
    (segment,) = steps(explain_offset(log, 0), "segment")
    last = segment["next_base_offset"] - 1  # type: ignore[operator]
    assert steps(explain_offset(log, 1), "index")[0]["section"] == "cold"
    assert steps(explain_offset(log, last), "index")[0]["section"] == "warm"


def test_a_time_leads_to_the_first_record_at_or_after_it(log: Log) -> None:
    for delta in range(0, 4_000, 97):
        found = explain_time(log, T + delta)
        assert found.record is not None
        assert found.record.offset == delta
    assert explain_time(log, T + 4_000).record is None


def test_the_end_and_what_lies_beyond(log: Log) -> None:
    end = explain_offset(log, 4_000)
    assert end.record is None
    assert end.steps[-1].what == "end"
    with pytest.raises(OffsetOutOfRangeError):
        explain_offset(log, 4_001)


def test_damage_on_the_way_is_reported(log: Log) -> None:
    log.close()
    segment = log.path / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    segment.write_bytes(data)
    with Log(log.path, read_only=True) as damaged:
        found = explain_offset(damaged, 0)
    assert steps(found, "damage")
    assert found.record is not None
    assert found.record.offset == 1


@pytest.mark.parametrize("name", golden_partitions("clean"))
@pytest.mark.sampled(12)
def test_what_a_broker_wrote_is_explained_as_it_is_read(name: str) -> None:
    with Log(golden_root() / "clean" / name, read_only=True) as log:
        for record in log.read():
            if record.offset % 41 == 0:
                assert explain_offset(log, record.offset).record == record
                # The search by time may answer with a transaction's marker; a reader gets the record after it.
                found_offset = log.offset_for_time(record.timestamp)
                assert explain_time(log, record.timestamp).record == next(iter(log.read(found_offset)))


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(tampered(build_batch([Record(1, T, value=b"value")]), attributes=6), id="version 2"),
        pytest.param(message(1, 1, b"value", attributes=6), id="version 1"),
    ],
)
def test_the_steps_lead_to_a_batch_of_a_codec_that_does_not_exist(batch: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.mkdir()
    (path / f"{0:020d}.log").write_bytes(build_batch([Record(0, T, value=b"first")]) + batch)
    with Log(path, read_only=True) as log:
        found = explain_offset(log, 1)
    assert found.record is None
    assert [step.what for step in found.steps][-1] == "damage"
    assert "codec" in found.steps[-1].text
