"""A disk that fills up at every size, and a limit on file sizes: the append fails whole, and works again with room."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import DiskFullError, PoisonedError
from kstore.log import Log
from kstore.types import Durability
from tests.support.fakes.without_flusher import log_without_flusher
from tests.support.harness.evidence import Crashed, Lost, Wrong

SETTINGS: dict[str, Any] = {"segment_bytes": 8192, "index_interval_bytes": 512, "flush_ms": 10**9}
PAGE_BYTES = 4096
# Creating a log takes fewer pages; on a larger disk the log is only full later.
BUDGETS = range(2, 40)
QUICK = (3, 5, 8, 13, 21, 34)
BALLAST_PAGES = 8
APPENDS_MAX = 2000


def value_of(number: int) -> bytes:
    return b"%d-" % number + b"x" * (200 + number % 300)


def found_in(log: Log) -> dict[int, bytes | None]:
    return {record.offset: record.value for record in log.read()}


def assert_holds(log: Log, acknowledged: dict[int, bytes]) -> None:
    found = found_in(log)
    if missing := [offset for offset in acknowledged if offset >= log.start_offset and offset not in found]:
        raise Lost(f"no offsets {missing}")
    if wrong := [offset for offset, value in found.items() if acknowledged.get(offset) != value]:
        raise Wrong(f"offsets {wrong} were not acknowledged, or hold other values")


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a disk of this many pages; one at a time."""
    target = tmp_path / "disk"
    target.mkdir()
    is_mounted = False

    def unmount() -> None:
        nonlocal is_mounted
        if is_mounted:
            subprocess.run(["umount", "-l", str(target)], check=True)
            is_mounted = False

    def mount(pages: int) -> Path:
        nonlocal is_mounted
        unmount()
        command = ["mount", "-t", "tmpfs", "-o", f"size={pages * PAGE_BYTES}", "tmpfs", str(target)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no disk of a chosen size can be mounted here: {error}")
        is_mounted = True
        return target

    yield mount
    unmount()


def fill(log: Log, acknowledged: dict[int, bytes]) -> None:
    """Appends until the disk is full, and a few more times."""
    refused = 0
    for number in range(APPENDS_MAX):
        value = value_of(number)
        end = log.end_offset
        try:
            acknowledged[log.append(value)] = value
        except DiskFullError:
            refused += 1
            assert log.end_offset == end
            assert_holds(log, acknowledged)
            if refused == 3:
                return
    raise AssertionError("the disk is not full")


def live_on_a_full_disk(disk: Path, durability: Durability) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(BALLAST_PAGES * PAGE_BYTES))
    acknowledged: dict[int, bytes] = {}
    path = disk / "log"
    try:
        log = log_without_flusher(path, durability=durability, **SETTINGS)
    except DiskFullError:
        # No room even for an empty log: with room it opens, whatever the first try left.
        ballast.unlink()
        log = log_without_flusher(path, durability=durability, **SETTINGS)
        ballast.touch()
    fill(log, acknowledged)
    log.check()
    ballast.unlink()
    acknowledged[log.append(b"room again")] = b"room again"
    fill(log, acknowledged)
    if log.end_offset - 1 > log.start_offset:
        # A full disk may refuse even this; then nothing is deleted unless it is reported.
        try:
            log.delete_records(log.end_offset - 1)
        except DiskFullError:
            pass
    try:
        acknowledged[log.append(b"small")] = b"small"
    except DiskFullError:
        pass
    assert_holds(log, acknowledged)
    log.check()
    try:
        log.close()
    except DiskFullError:
        pass
    with Log(path, read_only=True) as view:
        assert_holds(view, acknowledged)
    # What a kill leaves on a full disk: opening it succeeds or raises a typed error, and loses nothing.
    (path / "kstore.state").write_bytes(bytes(PAGE_BYTES))
    try:
        with Log(path, durability=durability, **SETTINGS) as log:
            assert_holds(log, acknowledged)
    except (DiskFullError, PoisonedError):
        pass
    with Log(path, read_only=True) as view:
        assert_holds(view, acknowledged)


@pytest.mark.promise("disk full", "set aside")
@pytest.mark.usefixtures("abandons_logs")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("durability", ["sync", "os"])
def test_a_full_disk_loses_nothing_and_is_left_behind(
    durability: Durability, mounted: Callable[[int], Path], tried: Callable[[str, int], None]
) -> None:
    for pages in QUICK:
        live_on_a_full_disk(mounted(pages + BALLAST_PAGES), durability)
    tried("faults", len(QUICK))


@pytest.mark.soak
@pytest.mark.promise("disk full", "set aside")
@pytest.mark.usefixtures("abandons_logs")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
def test_a_disk_full_at_any_page_loses_nothing(
    durability: Durability, mounted: Callable[[int], Path], tried: Callable[[str, int], None]
) -> None:
    for pages in BUDGETS:
        live_on_a_full_disk(mounted(pages + BALLAST_PAGES), durability)
    tried("faults", len(BUDGETS))


def live_below_a_limit(path: Path, limit: int, durability: Durability) -> None:
    """In a child: no file may become larger than ``limit``."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    acknowledged: dict[int, bytes] = {}
    settings = {**SETTINGS, "segment_bytes": 1 << 20}
    log = log_without_flusher(path, durability=durability, **settings)
    fill(log, acknowledged)
    log.check()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    acknowledged[log.append(b"room again")] = b"room again"
    log.close()
    with Log(path, durability=durability, **settings) as log:
        assert log.recovery.clean
        assert_holds(log, acknowledged)


@pytest.mark.promise("disk full")
@pytest.mark.parametrize("limit", [5000, 8192, 10_001, 20_000])
@pytest.mark.parametrize("durability", ["sync", "os"])
def test_a_limit_of_file_sizes_is_a_full_disk(
    durability: Durability, limit: int, tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            live_below_a_limit(tmp_path / "log", limit, durability)
            status = 0
        except BaseException as error:
            (tmp_path / "error").write_text(repr(error))
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if status:
        raise Crashed(f"status {status}: {(tmp_path / 'error').read_text()}")
    tried("faults", 1)
