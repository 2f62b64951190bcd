"""What a store's open found and did in its logs: the store keeps it, and the logs show it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import kstore
import kstore.aio


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """A store as a kill leaves it, with 180 bytes of half a batch at the end of one of its two logs."""
    with kstore.open(tmp_path / "live") as store:
        store.topic("t", partitions=2)
        for partition in (0, 1):
            store.log("t", partition).append(b"kept")
        path = Path(shutil.copytree(tmp_path / "live", tmp_path / "store"))
    log = path / "t-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes() + log.read_bytes()[:60] * 3)
    return path


def test_a_cut_at_the_open_of_a_store_is_shown_by_its_log(torn: Path) -> None:
    with kstore.open(torn) as store:
        assert sorted(store.recovery) == ["t-0", "t-1"]
        assert store.recovery["t-0"].bytes_cut == 180
        for _ in range(2):
            log = store.log("t", 0)
            assert (log.recovery.clean, log.recovery.bytes_cut) == (False, 180)
            assert log.recovery is store.recovery["t-0"]
            log.close()  # the next one finds a clean log, and this open of the store still made the cut


def test_a_store_that_was_closed_cleanly_has_nothing_to_show(torn: Path) -> None:
    kstore.open(torn).close()
    with kstore.open(torn) as store:
        assert store.log("t", 0).recovery.clean
        assert store.recovery == {}


def test_a_topic_that_is_created_again_has_no_report_of_the_deleted_one(torn: Path) -> None:
    with kstore.open(torn) as store:
        store.delete_topic("t")
        assert store.recovery == {}
        store.topic("t", partitions=1)
        assert store.log("t", 0).recovery.clean


def test_a_store_that_only_reads_repairs_nothing(torn: Path) -> None:
    with kstore.open(torn, read_only=True) as store:
        assert store.log("t", 0).end_offset == 1
        assert store.recovery == {}


def test_the_asynchronous_store_shows_the_same(torn: Path) -> None:
    async def main() -> None:
        async with await kstore.aio.open(torn) as store:
            assert store.recovery["t-0"].bytes_cut == 180

    asyncio.run(main())
