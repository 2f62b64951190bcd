"""``Server``: the listening socket of a door, its connections, and the thread that looks after them.

    kstore-door         accepts, and twice a second wakes what waits in vain
    kstore-door-<port>  one a connection

A process that was forked closes its copies of all sockets, without a lock that a thread of the parent may have held.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from kstore.door.connection import Connection
from kstore.door.memory import Budget
from kstore.door.served import Served
from kstore.errors import StorageError, ThreadStartError
from kstore.files.lifetime import ForkGuard
from kstore.files.threads import start_thread

if TYPE_CHECKING:
    from kstore.metric_rows import MetricValue

logger = logging.getLogger(__name__)

BACKLOG = 128
TICK_SECONDS = 0.5
# At the end, what running requests may still take; and then for their threads to notice.
CLOSE_SECONDS, JOIN_SECONDS = 5.0, 5.0
# After an accept that failed for lack of descriptors or memory.
PAUSE_SECONDS = 0.1


def bound(host: str, port: int) -> socket.socket:
    """A socket that has an address, and does not listen yet. Raises: StorageError."""
    try:
        [found, *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        listener = socket.socket(found[0], socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(found[4])
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise StorageError(error.errno, error.strerror, f"{host}:{port}") from error
    return listener


class Server:
    """Serves a door from ``start`` to ``close``. Thread-safe."""

    def __init__(self, door: Served, listener: socket.socket) -> None:
        """Takes over ``listener``, which is bound."""
        self.door = door
        self._listener = listener
        self._guard = ForkGuard()
        self._memory = Budget(door.settings.memory_max)
        # Reentrant: a signal handler may close the door while it is being closed.
        self._lock = threading.RLock()
        # Guarded by _lock.
        self._connections: dict[Connection, threading.Thread | None] = {}
        self._bell_out, self._bell = socket.socketpair()
        self._accepting: threading.Thread | None = None
        self._is_over = threading.Event()

    @property
    def closed(self) -> bool:
        return self._is_over.is_set() or self._guard.forked

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def metrics(self) -> dict[str, MetricValue]:
        """See ``Door.metrics``."""
        group_count, member_count = self.door.groups.counts()
        return self.door.counters.read() | {
            "refusals": self.door.refusals.count,
            "connections": self.connection_count,
            "taken_bytes": self._memory.taken,
            "groups": group_count,
            "group_members": member_count,
        }

    def start(self) -> None:
        """Begins to listen. Raises: ThreadStartError, StorageError."""
        try:
            self._listener.listen(BACKLOG)
        except OSError as error:  # another socket was faster
            raise StorageError(error.errno, error.strerror, str(self._listener.getsockname())) from error
        _servers[id(self)] = weakref.ref(self)
        self._accepting = start_thread(self._accept_all, name="kstore-door")

    # --- end --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stops accepting; answers the requests that are being handled, and closes all connections. Every step can be
        repeated, after an interrupt. A second call returns when the door is closed."""
        if self._guard.forked or self._is_over.is_set():
            return
        self.door.closing = True
        self.door.groups.close()
        self._memory.end()
        with suppress(OSError):
            self._bell.send(b"!")
        if self._accepting is not None:
            self._accepting.join(JOIN_SECONDS)
        for connection in self._now():
            connection.end_when_idle()
        self._join(CLOSE_SECONDS)
        for connection in self._now():
            connection.end()
        self._join(JOIN_SECONDS)
        if left := len(self._now()):
            logger.warning("%d requests are still running after the door was closed", left)
        _servers.pop(id(self), None)
        for one in (self._listener, self._bell, self._bell_out):
            one.close()
        self._is_over.set()

    def abandon(self) -> None:
        """Begins to close, without waiting: for the finalizer of a door that was dropped."""
        if not self._guard.forked:
            self.door.closing = True
            with suppress(OSError):
                self._bell.send(b"!")

    def _now(self) -> list[Connection]:
        with self._lock:
            return list(self._connections)

    def _join(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with self._lock:
            threads = [thread for thread in self._connections.values() if thread is not None]
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))

    # --- accept -----------------------------------------------------------------------------------------------------

    def _accept_all(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._bell_out, select.POLLIN)
        tick = time.monotonic() + TICK_SECONDS
        while not self.door.closing:
            poll.poll(max(tick - time.monotonic(), 0) * 1000)
            now = time.monotonic()
            try:
                if now >= tick:
                    tick = now + TICK_SECONDS
                    self._look_after(now)
                if not self.door.closing:
                    self._accept()
            except Exception:  # such as a lack of memory: the next connection may find some
                logger.exception("a connection was not accepted")
                time.sleep(PAUSE_SECONDS)
        self._listener.close()
        # Those of a door that was dropped: ``close`` does the same.
        self.door.groups.close()
        self._memory.end()
        for connection in self._now():
            connection.end_when_idle()

    def _accept(self) -> None:
        try:
            peer, address = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            self.door.refusals.note("", f"no connection can be accepted: {error.strerror}")
            time.sleep(PAUSE_SECONDS)
            return
        # macOS hands on the listener's mode.
        peer.setblocking(True)
        host = str(address[0])
        if len(self._connections) >= self.door.settings.connections_max:
            self.door.refusals.note(host, f"{len(self._connections)} connections are open (connections_max)")
            peer.close()
            return
        try:
            connection = Connection(peer, self.door, self._memory)
        except BaseException:
            peer.close()
            raise
        try:
            with self._lock:
                self._connections[connection] = None
            thread = start_thread(self._serve, connection, name=f"kstore-door-{address[1]}")
        except BaseException as error:
            self._drop(connection)
            peer.close()
            if not isinstance(error, ThreadStartError):
                raise
            self.door.refusals.note(host, str(error))
            return
        with self._lock:
            if connection in self._connections:
                self._connections[connection] = thread

    def _serve(self, connection: Connection) -> None:
        try:
            connection.run()
        finally:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        with self._lock:
            self._connections.pop(connection, None)

    def _look_after(self, now: float) -> None:
        for connection in self._now():
            connection.look_for_peer()
        for tick in self.door.ticks:
            try:
                tick(now)
            except Exception:
                logger.exception("a task of the door failed")

    # --- fork -------------------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """In a forked child: closes its copies of the sockets."""
        self.door.closing = True
        for one in (self._listener, self._bell, self._bell_out, *(each.socket for each in list(self._connections))):
            one.close()


# The servers of this process, by id; weak, so that a door that was dropped can be collected.
_servers: dict[int, weakref.ref[Server]] = {}


def _forget_all() -> None:
    for reference in list(_servers.values()):
        if (server := reference()) is not None:
            server.forget()
    _servers.clear()


os.register_at_fork(after_in_child=_forget_all)
