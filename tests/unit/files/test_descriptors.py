"""How many descriptors open logs need."""

from __future__ import annotations

from pathlib import Path

import pytest

import kstore
from kstore.types import Durability

FDS = Path("/proc/self/fd")

pytestmark = pytest.mark.skipif(not FDS.exists(), reason="only Linux lists a process's descriptors")


def open_below(path: Path) -> list[str]:
    """The files below ``path`` that this process has open."""
    found = []
    for fd in FDS.iterdir():
        try:
            name = str(fd.readlink())
        except FileNotFoundError:
            continue  # that of the listing itself
        if name.startswith(f"{path}/"):
            found.append(name.removeprefix(f"{path}/"))
    return sorted(found)


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
def test_a_partition_that_is_appended_to_needs_one_descriptor(tmp_path: Path, durability: Durability) -> None:
    with kstore.open(tmp_path / "s", durability=durability, index_interval_bytes=1) as store:
        store.create_topic("t", 2)
        for number in (0, 1):
            for _ in range(10):
                store.log("t", number).append(b"x")
            assert store.log("t", number).offset_for_time(0) == 0
        assert [name for name in open_below(tmp_path / "s") if name != ".lock"] == [
            "t-0/00000000000000000000.log",
            "t-1/00000000000000000000.log",
        ]
    assert open_below(tmp_path / "s") == []


def test_a_lone_log_needs_one_more_for_its_lock(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "log", index_interval_bytes=1) as log:
        for _ in range(10):
            log.append(b"x")
        assert open_below(tmp_path / "log") == [".lock", "00000000000000000000.log"]
