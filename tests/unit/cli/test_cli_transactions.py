"""``kstore producers`` and ``kstore transactions`` as commands: output and exit status."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kstore.cli.main import main
from kstore.log import Log, reads_of
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.golden_data import copy_partition, golden_root
from tests.support.lives.log_cases import data, marker, offsets, transaction
from tests.support.lives.log_helpers import TIME


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(list(arguments))
    out, err = capsys.readouterr()
    return status, out, err


def objects(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def owner(log: Path) -> dict[str, Any]:
    """How JSON names the log."""
    return {"log": str(log), "topic": "orders", "partition": 0}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Producer 1 committed 0-1, 2 and 3 are in transactions from 3 and 5 on, 4 is in none; all long ago."""
    path = tmp_path / "orders-0"
    with Log(path, durability="os", clock=ManualClock(TIME)) as log:
        for batch in (
            transaction(1, 0, 1),
            marker(1, 2, commit=True),
            transaction(2, 3, 4, epoch=6),
            transaction(3, 5, sequence=8),
            data(6, producer_id=4, producer_epoch=0, base_sequence=2),
        ):
            log.append_batches(batch, assign_offsets=False)
    return path


def test_producers_are_a_table(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "producers", str(log))
    assert (status, err) == (0, "")
    head, *rows = out.splitlines()
    assert " ".join(head.split()) == "log producer epoch sequence offset last written coordinator transaction from"
    assert {row.split()[0] for row in rows} == {str(log)}
    assert [row.split()[1:] for row in rows] == [
        ["1", "0", "1", "1", "2023-11-14T22:13:20.002Z", "0", "-"],
        ["2", "6", "1", "4", "2023-11-14T22:13:20.004Z", "-", "3"],
        ["3", "0", "8", "5", "2023-11-14T22:13:20.005Z", "-", "5"],
        ["4", "0", "2", "6", "2023-11-14T22:13:20.006Z", "-", "-"],
    ]


def test_producers_are_json(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "producers", "--format", "json", str(log))
    found = objects(out)
    assert (status, len(found)) == (0, 4)
    assert found[1] == {
        **owner(log),
        "producer_id": 2,
        "producer_epoch": 6,
        "last_sequence": 1,
        "last_offset": 4,
        "last_timestamp": TIME + 4,
        "coordinator_epoch": -1,
        "first_offset": 3,
        "transaction_start": 3,
    }
    assert found[0]["transaction_start"] is None


def test_a_log_without_producers_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Log(tmp_path / "log") as log:
        log.append(b"x")
    for command in ("producers", "transactions"):
        status, out, _ = run(capsys, command, str(tmp_path / "log"))
        assert (status, len(out.splitlines())) == (0, 1)
        assert run(capsys, command, "--format", "json", str(tmp_path / "log"))[:2] == (0, "")


@pytest.mark.parametrize("command", ["producers", "transactions"])
def test_a_broker_s_partition_is_listed_and_left_as_it_is(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    directory = golden_root() / "clean" / "txn-open-0"
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in directory.iterdir()}
    status, out, _ = run(capsys, command, "--format", "json", str(directory))
    assert status == 0
    assert objects(out)
    assert before == {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in directory.iterdir()}


@pytest.mark.parametrize("command", ["producers", "transactions", "transactions --abort 1"])
def test_what_is_no_log_is_an_error_and_is_not_made(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, *command.split(), str(tmp_path / "none"))
    assert (status, out) == (1, "")
    assert str(tmp_path / "none") in err
    assert not (tmp_path / "none").exists()


def test_open_transactions_are_a_table_and_the_oldest_is_first(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "transactions", str(log))
    assert (status, err) == (0, "")
    head, *rows = out.splitlines()
    assert head.split()[:3] == ["log", "producer", "epoch"]
    assert [row.split()[1:6] for row in rows] == [
        ["2", "6", "-", "3", "2023-11-14T22:13:20.004Z"],
        ["3", "0", "-", "5", "2023-11-14T22:13:20.005Z"],
    ]


def test_open_transactions_are_json(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "transactions", "--format", "json", str(log))
    first, second = objects(out)
    assert status == 0
    assert first.pop("age_ms") > 0
    assert first == {
        **owner(log),
        "producer_id": 2,
        "producer_epoch": 6,
        "coordinator_epoch": -1,
        "first_offset": 3,
        "last_timestamp": TIME + 4,
    }
    assert second["producer_id"] == 3


def test_only_hanging_transactions_are_listed_when_asked(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Log(log) as opened:
        opened.append_batches(transaction(5, 0, timestamp=reads_of(opened).source.context.clock.now_ms()))
    hanging = objects(run(capsys, "transactions", "--hanging", "15m", "--format", "json", str(log))[1])
    assert [transaction["producer_id"] for transaction in hanging] == [2, 3]
    assert len(objects(run(capsys, "transactions", "--format", "json", str(log))[1])) == 3
    assert run(capsys, "transactions", "--hanging", f"{2**60}ms", "--format", "json", str(log))[:2] == (0, "")


def test_a_transaction_is_aborted(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "transactions", "--abort", "2", str(log))
    assert (status, out) == (0, "aborted the transaction of producer 2: its end is at offset 7\n")
    with Log(log, read_only=True) as view:
        assert view.recovery.clean
        assert (view.last_stable_offset, offsets(view, isolation_level="read_committed")) == (5, [0, 1])
    status, out, _ = run(capsys, "transactions", "--abort", "3", "--abort", "3", "--format", "json", str(log))
    assert (status, objects(out)) == (0, [{**owner(log), "aborted": 3, "offset": 8}])
    with Log(log, read_only=True) as view:
        assert (view.last_stable_offset, offsets(view, isolation_level="read_committed")) == (9, [0, 1, 6])
        assert view.transactions() == []


def test_several_transactions_are_aborted_at_once(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "transactions", "--abort", "3", "--abort", "2", "--format", "json", str(log))
    ends = [(line["aborted"], line["offset"]) for line in objects(out)]
    assert (status, ends) == (0, [(3, 7), (2, 8)])


def test_a_directory_shows_all_its_logs(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(log, log.parent / "orders-1")
    with Log(log.parent / "plain-0") as plain:
        plain.append(b"x")
    for command, count in (("producers", 4), ("transactions", 2)):
        found = objects(run(capsys, command, "--format", "json", str(log.parent))[1])
        assert [line["partition"] for line in found] == [0] * count + [1] * count
        # A log that is named twice is shown once.
        assert len(objects(run(capsys, command, "--format", "json", str(log), str(log))[1])) == count


def test_only_a_log_s_own_directory_can_have_a_transaction_aborted(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(log, log.parent / "orders-1")
    for path in (log.parent, log / f"{0:020d}.log"):
        status, out, err = run(capsys, "transactions", "--abort", "2", str(path))
        assert (status, out) == (2, "")
        assert "give the directory of a partition" in err


def test_what_is_not_open_cannot_be_aborted(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for producer_id in ("1", "4", "99"):
        status, out, err = run(capsys, "transactions", "--abort", producer_id, str(log))
        assert (status, out) == (1, "")
        assert f"producer {producer_id} has no open transaction" in err
    with Log(log, read_only=True) as view:
        assert view.end_offset == 7


def test_with_a_least_silence_only_hanging_transactions_are_aborted(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, "transactions", "--hanging", f"{2**60}ms", "--abort", "2", str(log))
    assert status == 1
    assert f"that is silent for {2**60} ms" in err
    assert run(capsys, "transactions", "--hanging", "1s", "--abort", "2", str(log))[0] == 0


def test_a_log_with_a_writer_is_listed_but_nothing_in_it_is_aborted(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Log(log) as writer:
        assert len(objects(run(capsys, "transactions", "--format", "json", str(log))[1])) == 2
        assert len(objects(run(capsys, "producers", "--format", "json", str(log))[1])) == 4
        status, out, err = run(capsys, "transactions", "--abort", "2", str(log))
        assert (status, out) == (1, "")
        assert "locked" in err
        assert str(log) in err
        assert (writer.end_offset, len(writer.transactions())) == (7, 2)


def test_a_broker_s_hanging_transaction_is_aborted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = copy_partition("clean", "txn-open-0", tmp_path)
    found = objects(run(capsys, "transactions", "--format", "json", str(directory))[1])
    assert found
    for transaction_ in found:
        assert run(capsys, "transactions", "--abort", str(transaction_["producer_id"]), str(directory))[0] == 0
    with Log(directory, read_only=True) as view:
        assert (view.transactions(), view.last_stable_offset) == ([], view.end_offset)
        spared = offsets(view, isolation_level="read_committed")
        assert not any(transaction_["first_offset"] in spared for transaction_ in found)


@pytest.mark.parametrize(
    "arguments", [("--abort", "-1"), ("--abort", "x"), ("--hanging", "-1s"), ("--hanging", "900000"), ("--format", "x")]
)
def test_bad_usage_has_its_own_status(
    arguments: tuple[str, ...], log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "transactions", *arguments, str(log))[0] == 2
    assert run(capsys, "producers")[0] == 2
