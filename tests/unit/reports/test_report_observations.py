"""What a report learns while a log is counted: times and transactions, the same from headers and from compiled runs."""

from __future__ import annotations

import multiprocessing
import os
import random
from functools import cache
from pathlib import Path

import pytest

import kstore
from kstore.cli import spread as spread_module
from kstore.cli.main import main
from kstore.files.fs import FileSystem
from kstore.record._runs import Run, batch_times, follow_transactions, walk_run
from kstore.record.builder import build_batch
from kstore.reports import drawing, gathering
from kstore.reports.gathering import GatheredLog, examined
from kstore.scan.visits import Advance
from kstore.types import OFFSET_MAX
from kstore.upkeep.observed.timeline import Timeline
from kstore.upkeep.observed.transactions import LONGEST_MAX, OPEN_MAX, Ended, Transactions
from kstore.upkeep.verify import LogVerification, verify_log
from tests.support.harness.golden_data import copy_partition, golden_partitions, golden_root

GREATEST = 2**63 - 1


@cache
def looked_at(name: str, deep: bool) -> GatheredLog:
    return examined(golden_root() / "clean" / name, deep=deep)


def run_with(times: list[int]) -> tuple[Run, list[int]]:
    """A run of batches of one or two records at ``times``, and the sizes of the batches."""
    batches = []
    for at, time in enumerate(times):
        records = [kstore.Record(2 * at + number, time, value=b"v") for number in range(1 + at % 2)]
        batches.append(bytes(build_batch(records)))
    data = b"".join(batches)
    run = walk_run(data, 0, len(data), 0, 0, len(data), OFFSET_MAX, 0, OFFSET_MAX)
    assert run.stop == len(data)
    return run, list(map(len, batches))


# --- both ways --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", golden_partitions("clean"))
def test_headers_and_runs_tell_the_same(name: str) -> None:
    headers, deep = looked_at(name, False), looked_at(name, True)
    assert headers.timeline.fields() == deep.timeline.fields()
    assert headers.transactions.fields() == deep.transactions.fields()


@pytest.mark.parametrize("name", golden_partitions("clean"))
def test_transactions_are_those_of_the_log(name: str) -> None:
    seen = looked_at(name, True)
    assert seen.transactions.committed_count == seen.stats.commit_count
    assert seen.transactions.aborted_count == seen.stats.abort_count
    with kstore.Log(golden_root() / "clean" / name, read_only=True) as log:
        assert {one: first for one, (first, _) in seen.transactions.opened.items()} == {
            one.producer_id: one.first_offset for one in log.transactions()
        }


# --- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width_ms", [1, 1000, 1 << 40, GREATEST])
def test_times_of_a_run_are_those_of_its_batches(width_ms: int) -> None:
    choose = random.Random(5)
    known = [-1, 0, 999, 1000, GREATEST, GREATEST - 1, *[choose.randrange(5000) for _ in range(4)]]
    times = [choose.choice(known) for _ in range(300)]
    run, sizes = run_with(times)
    expected: list[list[int]] = []
    for at, (time, size) in enumerate(zip(times, sizes, strict=True)):
        number = time // width_ms if time >= 0 else -1
        if not expected or expected[-1][0] != number:
            expected.append([number, 0, 0, 0, -1])
        for column, more in ((1, size), (2, 1 + at % 2), (3, 1)):
            expected[-1][column] += more
        expected[-1][4] = 2 * at + at % 2
    assert list(map(list, batch_times(run, width_ms))) == expected


def test_a_width_below_a_millisecond_is_refused() -> None:
    run, _ = run_with([0])
    with pytest.raises(ValueError, match="at least 1"):
        batch_times(run, 0)


# --- transactions -----------------------------------------------------------------------------------------------------


def test_transactions_have_durations_and_ends(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os", background=False) as store:
        store.create_topic("t")
        with store.producer(transactional_id="one") as producer:
            producer.init_transactions()
            for number in range(5):
                producer.begin_transaction()
                producer.send("t", b"v")
                producer.flush()
                if number % 2:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
        document = kstore.report(tmp_path / "data" / "t-0").document
    [log] = document["partitions"]
    assert {name: log["transactions"][name] for name in ("committed", "aborted", "open")} == {
        "committed": 3,
        "aborted": 2,
        "open": 0,
    }
    assert log["transactions"]["duration_ms"]["count"] == 5
    assert [sum(row[at] for row in log["transactions"]["times"]) for at in (1, 2)] == [3, 2]
    assert {(row["first"], row["last"]) for row in log["transactions"]["longest"]} == {
        (at, at + 1) for at in range(0, 10, 2)
    }


def test_only_so_many_transactions_are_kept() -> None:
    every, other = Transactions(), Transactions()
    for producer in range(OPEN_MAX + 5):
        every.begin(producer, producer, 1000)
    assert len(every.opened) == OPEN_MAX
    for producer in range(LONGEST_MAX + 5):
        every.end(producer, 9, 1000 + producer, is_committed=producer % 2 == 0)
    other.end(1, 9, 50, is_committed=False)
    other.merge(every)
    fields = other.fields()
    assert (fields["committed"], fields["aborted"]) == (8, 8)
    assert [row["producer_id"] for row in fields["longest"]] == list(range(14, 4, -1))
    assert fields["duration_ms"]["max"] == 14


def test_a_marker_that_ends_nothing_has_no_duration() -> None:
    assert Ended(1, True, -1, -1, 5, 100).duration_ms == -1
    assert Ended(1, True, 3, 200, 5, 100).duration_ms == -1
    assert Ended(1, True, 3, 50, 5, 100).duration_ms == 50


def test_compiled_code_follows_at_most_as_many_transactions_as_asked() -> None:
    [name] = [name for name in golden_partitions("clean") if name == "txn-open-0"]
    data = b"".join(path.read_bytes() for path in sorted((golden_root() / "clean" / name).glob("*.log")))
    run = walk_run(data, 0, len(data), 0, 0, len(data), OFFSET_MAX, 0, OFFSET_MAX)
    assert run.has_producers
    known: dict[int, tuple[int, int]] = {}
    follow_transactions(run, known, 0)
    assert known == {}


def test_open_transactions_are_drawn_to_the_right_edge() -> None:
    drawn = Transactions()
    assert drawing.transactions(drawn.fields()).startswith("<svg")
    drawn.begin(1, 5, 1_700_000_000_000)
    drawn.begin(2, 6, -1)
    drawn.end(3, 9, 1_700_000_900_000, is_committed=True)
    picture = drawing.transactions(drawn.fields())
    assert picture.count('class="open"') == 1
    assert picture.count('class="bars commit"') == 1


def test_the_offsets_of_a_log_are_a_line_over_its_times(tmp_path: Path) -> None:
    for name in ("t-0", "t-1"):
        with kstore.Log(tmp_path / name, durability="os") as log:
            for number in range(4):
                log.append(b"v", timestamp=number * 5000)
    document = kstore.report(tmp_path).document
    [log_fields, _] = document["partitions"]
    assert [bucket[4] for bucket in log_fields["timeline"]["buckets"]] == [0, 1, 2, 3]
    assert 'class="offsets"' in drawing.timeline(log_fields["timeline"], titled=False)
    # For several logs together they mean nothing.
    assert {bucket[4] for bucket in document["total"]["timeline"]["buckets"]} == {-1}
    assert 'class="offsets"' not in drawing.timeline(document["total"]["timeline"], titled=True)


def test_a_timeline_of_runs_is_as_small_as_one_of_batches() -> None:
    timeline = Timeline()
    for at in range(5000):
        timeline.add(at * 10_000_000, 1, 1)
    assert len(timeline.buckets()) <= 128


# --- several processes ------------------------------------------------------------------------------------------------


def verified_elsewhere(log: Path, *, fs: FileSystem, advance: Advance) -> LogVerification:
    assert multiprocessing.parent_process() is not None
    return verify_log(log, fs=fs, advance=advance)


@pytest.mark.long
def test_other_processes_find_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["txn-open-0", "plain-0", "gzip-0"]
    for name in names:
        copy_partition("clean", name, tmp_path)
    arguments = ["report", "--deep", "--format", "json", str(tmp_path)]

    def printed() -> str:
        assert main(arguments) == 0
        out = capsys.readouterr().out
        return out[: out.index('"created"')] + out[out.index('"deep"') :]

    alone = printed()
    monkeypatch.setattr(spread_module, "BYTES_MIN", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(gathering, "verify_log", verified_elsewhere)
    assert printed() == alone
    assert not multiprocessing.active_children()
