"""The cache of handles: it is bounded, and never closes a handle that a reader uses."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from pathlib import Path

import pytest

from kstore.files.handles import HandleCache
from kstore.files.local import SYSTEM_FS, OsFile


class Handle:
    def __init__(self, memory_bytes: int = 0) -> None:
        self.memory_bytes = memory_bytes


def test_a_handle_is_opened_once() -> None:
    cache = HandleCache(2)
    first = cache.get("a", Handle)
    assert cache.get("a", Handle) is first
    assert len(cache) == 1
    assert "a" in cache


def test_the_least_recently_used_handle_goes_first() -> None:
    cache = HandleCache(2)
    for key in ("a", "b", "a", "c"):
        cache.get(key, Handle)
        cache.check()
    assert [key for key in ("a", "b", "c") if key in cache] == ["a", "c"]


def test_an_evicted_file_stays_open_for_its_reader(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    cache = HandleCache(1)
    reader: OsFile = cache.get("a", lambda: SYSTEM_FS.open(tmp_path / "a"))
    fd = reader.fileno()
    cache.get("b", Handle)
    assert reader.pread(7, 0) == b"content"
    del reader
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_several_handles_are_dropped_at_once() -> None:
    cache = HandleCache(4)
    for key in "abcd":
        cache.get(key, lambda: Handle(5))
    cache.drop("a", "c", "missing")
    cache.check()
    assert [key for key in "abcd" if key in cache] == ["b", "d"]
    assert cache.memory_bytes == 10


def test_a_file_knows_its_inode_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a")
    first, number = SYSTEM_FS.open(path), path.stat().st_ino
    path.rename(tmp_path / "b")
    path.write_bytes(b"other")
    assert first.inode() == number == first.stat().inode
    assert SYSTEM_FS.open(path).inode() == path.stat().st_ino != number
    assert OsFile(os.dup(first.fileno()), first.path).inode() == number


def test_drop_and_clear_forget_handles() -> None:
    cache = HandleCache(3)
    handles = {key: weakref.ref(cache.get(key, Handle)) for key in "abc"}
    cache.drop("a")
    cache.drop("a")
    gc.collect()
    assert [key for key, handle in handles.items() if handle() is not None] == ["b", "c"]
    cache.clear()
    gc.collect()
    assert [key for key, handle in handles.items() if handle() is not None] == []
    cache.check()


def test_memory_is_bounded_beside_the_count() -> None:
    cache = HandleCache(10, memory_bytes_max=100)
    for key in "abc":
        cache.get(key, lambda: Handle(40))
        cache.check()
    assert (len(cache), cache.memory_bytes) == (2, 80)
    assert "a" not in cache


def test_a_handle_that_is_too_large_is_used_and_not_kept() -> None:
    cache = HandleCache(10, memory_bytes_max=100)
    cache.get("small", lambda: Handle(40))
    assert cache.get("large", lambda: Handle(101)).memory_bytes == 101
    assert (len(cache), cache.memory_bytes) == (1, 40)


def test_a_cache_of_none_keeps_none() -> None:
    cache = HandleCache(0)
    cache.get("a", Handle)
    assert len(cache) == 0


def test_a_handle_that_cannot_be_opened_leaves_nothing() -> None:
    def fail() -> Handle:
        raise FileNotFoundError

    cache = HandleCache(1)
    with pytest.raises(FileNotFoundError):
        cache.get("a", fail)
    assert len(cache) == 0


def test_of_two_threads_that_open_the_same_handle_both_get_the_first() -> None:
    cache = HandleCache(2)

    def open_late() -> Handle:
        # Another thread is faster while this one opens.
        quick.append(cache.get("a", Handle))
        return Handle()

    quick: list[Handle] = []
    assert cache.get("a", open_late) is quick[0]
    assert len(cache) == 1


def test_a_handle_opened_before_a_drop_is_not_kept_after_it() -> None:
    cache = HandleCache(2)

    def open_old_file() -> Handle:
        # The file is replaced during this open.
        cache.drop("a")
        return Handle()

    old = cache.get("a", open_old_file)
    assert cache.get("a", Handle) is not old


def test_many_threads_keep_the_bounds() -> None:
    cache = HandleCache(4, memory_bytes_max=100)
    failures: list[BaseException] = []

    def use(seed: int) -> None:
        try:
            for step in range(300):
                key = (seed * 7 + step * step) % 9
                assert cache.get(key, lambda: Handle(30)).memory_bytes == 30
                if step % 50 == 0:
                    cache.drop(key)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    cache.check()
