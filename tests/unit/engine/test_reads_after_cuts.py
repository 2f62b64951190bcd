"""Another process cuts a log, and writes it again, between two reads: no read goes back to what was cut.

The cut replaces a segment that the reader has open.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kstore.log import Log
from tests.support.lives.shared_parts import two_writers


@pytest.fixture(params=["view", "shared"])
def logs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Log, Log]]:
    """A log that is cut, and the same one as another process reads it."""
    if request.param == "shared":
        if sys.platform != "linux":
            pytest.skip("shared locks are Linux's")
        yield from two_writers(tmp_path / "log", "os")
        return
    with Log(tmp_path / "log", durability="os") as log, Log(tmp_path / "log", read_only=True) as view:
        yield log, view


Read = Callable[[Log], list[bytes | None]]


def _got(log: Log, *offsets: int) -> list[bytes | None]:
    return [record.value for record in map(log.get, offsets) if record is not None]


def _fetched(log: Log) -> list[bytes | None]:
    return [record.value for offset in (1, 2) for record in log.fetch(offset, 1).records()]


# All that they read is known, so that they need not look for more records.
READS: dict[str, tuple[Read, list[bytes]]] = {
    "get": (lambda log: _got(log, 2), [b"new 2"]),
    "get-each": (lambda log: _got(log, 1, 2), [b"new 1", b"new 2"]),
    "read": (lambda log: [record.value for record in log.read(0, 3)], [b"old 0", b"new 1", b"new 2"]),
    "read-from-first-batch": (lambda log: [record.value for record in log.read(1, 3)], [b"new 1", b"new 2"]),
    "read-values": (lambda log: list(log.read_values(1, 3)), [b"new 1", b"new 2"]),
    "read-one": (lambda log: [record.value for record in log.read(2, 3)], [b"new 2"]),
    "fetch": (_fetched, [b"new 1", b"new 2"]),
}


@pytest.mark.promise("bytes")
@pytest.mark.parametrize("name", READS)
def test_no_read_goes_back_to_what_another_process_has_cut(name: str, logs: tuple[Log, Log]) -> None:
    log, reader = logs
    for offset in range(4):
        if offset == 2:
            log.roll()
        log.append(b"old %d" % offset)
    assert len(list(reader.read())) == 4
    assert _got(reader, *range(4)) == [b"old %d" % offset for offset in range(4)]
    log.truncate_to(1)
    log.append(b"new 1")
    log.roll()
    log.append(b"new 2")
    read, expected = READS[name]
    assert read(reader) == expected
