"""A backup sends several files at the same time to places that are not on this machine's disks."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import kstore
from kstore.backup import take
from kstore.backup.take import UPLOADS_MAX
from kstore.errors import LogNotFoundError, PathLike, StorageError
from kstore.files.paths import MANIFEST
from kstore.files.remote import RemoteFiles
from kstore.store import Store

SETTINGS: dict[str, Any] = {"background": False, "durability": "os"}
# A test that waits this long has failed.
SECONDS = 120


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store", **SETTINGS) as store:
        yield store


def fill(store: Store, *, partitions: int, segments: int) -> None:
    store.create_topic("orders", partitions)
    for partition in range(partitions):
        for number in range(segments):
            store.log("orders", partition).append_many([b"%d-%d" % (partition, number)] * 50)
            if number + 1 < segments:
                store.log("orders", partition).roll()


def contents(store: Store) -> list[list[bytes | None]]:
    return [
        [record.value for record in store.log("orders", partition).read()] for partition in store.partitions("orders")
    ]


class Uploads:
    """Replaces ``RemoteFiles.put``: counts the files in progress, and calls ``sending`` with each log file's number
    before it sends it."""

    def __init__(self, sending: Callable[[int], object]) -> None:
        self.sending = sending
        self.count = self.now = self.most = 0
        self.failures: list[BaseException] = []
        self._lock = threading.Lock()
        self._put = RemoteFiles.put

    def put(self, files: RemoteFiles, path: PathLike, chunks: Iterable[bytes]) -> int:
        if MANIFEST.fullmatch(Path(path).name):
            assert not self.now, "a manifest is sent beside what it names"
            return self._put(files, path, chunks)
        with self._lock:
            self.count += 1
            number = self.count
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            self.sending(number)
            return self._put(files, path, chunks)
        except BaseException as error:
            self.failures.append(error)
            raise
        finally:
            with self._lock:
                self.now -= 1

    def at_work(self) -> Any:
        return mock.patch.object(RemoteFiles, "put", lambda *arguments: self.put(*arguments))


@pytest.mark.parametrize(("partitions", "segments"), [(1, 12), (12, 1)], ids=["of one log", "of several logs"])
def test_several_files_are_sent_at_a_time(
    partitions: int, segments: int, store: Store, tmp_path: Path, memory: str
) -> None:
    fill(store, partitions=partitions, segments=segments)
    # The first ones wait for one another: they are sent at the same time, or the barrier breaks.
    barrier = threading.Barrier(UPLOADS_MAX)
    uploads = Uploads(lambda number: number <= UPLOADS_MAX and barrier.wait(SECONDS))
    with uploads.at_work():
        result = store.backup(memory)
    assert uploads.most == UPLOADS_MAX
    assert result.copied_count == uploads.count
    assert not store.backup(memory).copied_count
    kstore.restore(memory, tmp_path / "new")
    with Store(tmp_path / "new", **SETTINGS) as new:
        assert contents(new) == contents(store)


def test_one_file_is_sent_at_a_time_if_the_rate_is_limited(store: Store, memory: str) -> None:
    fill(store, partitions=3, segments=3)
    uploads = Uploads(lambda number: None)
    sizes: list[int] = []
    with uploads.at_work():
        result = store.backup(memory, bytes_per_second=1e9, progress=sizes.append)
    assert uploads.most == 1
    assert sum(sizes) == result.copied_bytes


def test_progress_is_reported_by_one_upload_at_a_time(store: Store, memory: str) -> None:
    fill(store, partitions=3, segments=6)
    lock, sizes = threading.Lock(), list[int]()

    def note(size: int) -> None:
        assert lock.acquire(blocking=False), "two calls at a time"
        sizes.append(size)
        lock.release()

    result = store.backup(memory, progress=note)
    assert sum(sizes) == result.copied_bytes == result.total_bytes


@pytest.mark.parametrize("failing", range(1, 8))
@pytest.mark.sampled(3)
def test_a_failed_upload_ends_the_backup_and_the_next_one_is_whole(
    failing: int, store: Store, tmp_path: Path, memory: str
) -> None:
    fill(store, partitions=2, segments=10)

    def fail(number: int) -> None:
        if number == failing:
            raise StorageError(errno.EIO, "the answer was lost")

    uploads = Uploads(fail)
    with uploads.at_work(), pytest.raises(StorageError, match="the answer was lost"):
        store.backup(memory)
    assert not uploads.now
    with pytest.raises(LogNotFoundError):
        kstore.restore(memory, tmp_path / "none")
    assert store.backup(memory).copied_count
    assert all(backup.ok for backup in kstore.check_backups(memory))
    kstore.restore(memory, tmp_path / "new")
    with Store(tmp_path / "new", **SETTINGS) as new:
        assert contents(new) == contents(store)


def test_an_upload_beside_a_failed_one_is_stopped(store: Store, memory: str) -> None:
    fill(store, partitions=2, segments=1)
    both = threading.Barrier(2)
    copiers: list[take.Copier] = []

    class Noted(take.Copier):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            copiers.append(self)

    def fail_or_wait(number: int) -> None:
        both.wait(SECONDS)
        if number == 1:
            raise StorageError(errno.EIO, "the answer was lost")
        deadline = time.monotonic() + SECONDS
        while not copiers[0]._has_failed and time.monotonic() < deadline:
            time.sleep(0.001)

    uploads = Uploads(fail_or_wait)
    with uploads.at_work(), mock.patch.object(take, "Copier", Noted), pytest.raises(StorageError, match="was lost"):
        store.backup(memory)
    assert [type(one) for one in uploads.failures] == [StorageError, take._StoppedError]
    with pytest.raises(LogNotFoundError):
        kstore.check_backups(memory)
