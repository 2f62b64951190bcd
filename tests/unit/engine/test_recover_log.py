"""Recovery on demand: a dry run says what a recovery would do, and changes nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kstore.errors import LockedError, LogNotFoundError, NotALogError
from kstore.log import Log
from kstore.types import RecoveryReport
from kstore.upkeep.recover import plan_recovery, recover_log
from tests.support.harness.golden_data import copy_partition, golden_partitions


def tree(path: Path) -> dict[str, tuple[bytes, int, int]]:
    found = {}
    for file in sorted(path.rglob("*")):
        stat = file.stat()
        found[file.name] = (file.read_bytes(), stat.st_mtime_ns, stat.st_mode)
    return found


def timeless(report: RecoveryReport) -> RecoveryReport:
    return replace(report, seconds=0.0)


def crashed(path: Path) -> Path:
    """A log with damage in its middle and a torn tail, whose writer died."""
    with Log(path.with_suffix(".alive"), durability="os", index_interval_bytes=64) as log:
        for _ in range(20):
            log.append_many([b"x" * 40] * 3)
        shutil.copytree(log.path, path)
    segment = path / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[500] ^= 1
    segment.write_bytes(data[:-7])
    return path


def test_a_dry_run_says_what_the_recovery_does_and_changes_nothing(tmp_path: Path) -> None:
    path = crashed(tmp_path / "log")
    before = tree(path)
    planned = plan_recovery(path)
    assert tree(path) == before
    assert planned.corrupt
    assert planned.cut
    assert timeless(recover_log(path)) == timeless(planned)
    assert plan_recovery(path).clean


@pytest.mark.parametrize("name", golden_partitions("damaged"))
def test_a_plan_for_damage_of_a_broker_s_log_is_what_happens(name: str, tmp_path: Path) -> None:
    path = copy_partition("damaged", name, tmp_path)
    before = tree(path)
    planned = plan_recovery(path)
    assert tree(path) == before
    assert timeless(recover_log(path)) == timeless(planned)


def test_a_writer_at_work_is_not_disturbed(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.append(b"x")
        with pytest.raises(LockedError):
            plan_recovery(tmp_path / "log")
        with pytest.raises(LockedError):
            recover_log(tmp_path / "log")


def test_only_a_log_is_recovered(tmp_path: Path) -> None:
    for work in (plan_recovery, recover_log):
        with pytest.raises(LogNotFoundError):
            work(tmp_path / "none")
        with pytest.raises(NotALogError):
            work(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_the_bytes_that_are_checked(tmp_path: Path) -> None:
    steps: list[int] = []
    report = recover_log(crashed(tmp_path / "log"), advance=steps.append)
    assert sum(steps) == report.bytes_scanned
