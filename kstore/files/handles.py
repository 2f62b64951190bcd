"""A bounded cache of open handles.

Evicting a handle drops the cache's reference to it. A reader that still uses it has a reference too, so a file is
closed when the last reader finishes, and never before: its number could belong to another file by then.
"""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from kstore.files._locks import OwnedLock
from kstore.files.descriptors import EXHAUSTED_ERRNOS, add_reliever, soft_limit

if TYPE_CHECKING:
    Cached = OrderedDict[Hashable, tuple[Any, int]]

Handle = TypeVar("Handle")

# The memory that read indexes may keep; a larger one is used once and not kept. 2 MiB index 1 GiB of log.
MEMORY_BYTES_MAX = 16 << 20
# All caches together keep no more than this share of the process's descriptors.
KEPT_SHARE = 4


class HandleCache:
    """The most recently used handles, by any key.

    At most ``count_max`` of them, and at most ``memory_bytes_max`` bytes of what they report as ``memory_bytes``, if a
    handle has that attribute. Thread-safe: a handle is opened and dropped outside the lock, because either may take
    long.
    """

    __slots__ = ("__weakref__", "_drops", "_handles", "_lock", "_memory_bytes", "count_max", "memory_bytes_max")

    def __init__(self, count_max: int, *, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        assert count_max >= 0, "a count"
        self.count_max: int = count_max
        self.memory_bytes_max: int = memory_bytes_max
        self._lock = OwnedLock()
        # Guarded by the lock; the least recently used comes first.
        self._handles: Cached = OrderedDict()
        self._memory_bytes = 0
        self._drops = 0

    def __len__(self) -> int:
        return len(self._handles)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._handles

    @property
    def memory_bytes(self) -> int:
        """The bytes that the handles in the cache report."""
        return self._memory_bytes

    def get(self, key: Hashable, opener: Callable[[], Handle]) -> Handle:
        """The handle for ``key``, opened if it is not cached.

        Threads that open the same one concurrently all get the first one that finished.

        If the process has no descriptor left, the cache releases its own, and ``opener`` is called once more.

        Raises: what ``opener`` raises.
        """
        with self._lock:
            found = self._handles.get(key)
            if found is not None:
                self._handles.move_to_end(key)
                handle: Handle = found[0]
                return handle
            drops = self._drops
        try:
            opened = opener()
        except OSError as error:
            if error.errno not in EXHAUSTED_ERRNOS or not self._handles:
                raise
            self.clear()
            drops = self._drops
            opened = opener()
        return self._put(key, opened, drops)

    def drop(self, *keys: Hashable) -> None:
        """Drops the handles for ``keys``, those that are present."""
        with self._lock:
            self._drops += 1
            for key in keys:
                dropped = self._handles.get(key)
                if dropped is not None:
                    # Nothing between these two statements can run a signal handler.
                    del self._handles[key]
                    self._memory_bytes -= dropped[1]
                    _kept.discard(self, (key,))

    def clear(self) -> None:
        """Drops every handle."""
        with self._lock:
            self._drops += 1
            dropped, self._handles = self._handles, OrderedDict()
            self._memory_bytes = 0
            _kept.discard(self, dropped)
        dropped.clear()

    def check(self) -> None:
        """Asserts the cache's invariants."""
        with self._lock:
            assert len(self._handles) <= self.count_max
            assert self._memory_bytes == sum(size for _, size in self._handles.values()) <= self.memory_bytes_max

    def _put(self, key: Hashable, handle: Handle, drops: int) -> Handle:
        memory_bytes = getattr(handle, "memory_bytes", None)
        size = 0 if memory_bytes is None else int(memory_bytes)
        evicted = {}
        with self._lock:
            found = self._handles.get(key)
            if found is not None:
                first: Handle = found[0]
                return first
            if drops != self._drops or size > self.memory_bytes_max or not self.count_max:
                # A drop since then may mean that another file has this name now: then the handle is not cached.
                return handle
            self._handles[key] = handle, size
            self._memory_bytes += size
            while len(self._handles) > self.count_max or self._memory_bytes > self.memory_bytes_max:
                oldest = next(iter(self._handles))
                evicted[oldest] = self._handles[oldest]
                left = self._memory_bytes - evicted[oldest][1]
                # Nothing between these two statements can run a signal handler.
                del self._handles[oldest]
                self._memory_bytes = left
            _kept.discard(self, evicted)
            if memory_bytes is None and key in self._handles:
                _kept.add(self, key)
        evicted.clear()
        _kept.drop_beyond(max(soft_limit() // KEPT_SHARE, 1))
        return handle


class _Kept:
    """The handles of all caches that use a descriptor each, because they are not in memory. Thread-safe.

    There is no lock, as in ``OpenTails``: each change is one call of the dictionary.
    """

    def __init__(self) -> None:
        # Oldest first, by the ``id`` of the cache and the key in it.
        self._entries: OrderedDict[tuple[int, Hashable], weakref.ref[HandleCache]] = OrderedDict()

    def add(self, cache: HandleCache, key: Hashable) -> None:
        """Counts a handle. The caller has the cache's lock, as for ``discard``."""
        self._entries[id(cache), key] = weakref.ref(cache)

    def discard(self, cache: HandleCache, keys: Iterable[Hashable]) -> None:
        """Stops counting handles."""
        for key in keys:
            self._entries.pop((id(cache), key), None)

    def relieve(self) -> bool:
        """Drops all of them; returns whether any was dropped."""
        return self.drop_beyond(0) > 0

    def drop_beyond(self, count_max: int) -> int:
        """Drops the oldest handles of all caches until ``count_max`` are left; returns how many. The caller holds no
        cache's lock."""
        count = 0
        while len(self._entries) > count_max:
            try:
                (_, key), found = self._entries.popitem(last=False)
            except KeyError:
                break  # other threads were faster
            cache = found()
            if cache is not None:
                cache.drop(key)
                count += 1
        return count

    def _forget_all(self) -> None:
        """In a forked child: the handles belong to the parent."""
        self._entries.clear()


_kept = _Kept()
add_reliever(_kept.relieve)
os.register_at_fork(after_in_child=_kept._forget_all)
