"""``Connection``: one client's connection. Its thread reads a request, has it handled, answers, and reads the next one.

So answers come in the order of the requests, and a request that waits parks its thread. What a peer may cost is
limited: the size of a frame by its kind, its elements, the time for which it may be sent, and the memory of all
connections together. A frame that breaks a limit, or cannot be parsed, ends its connection and harms no other.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from kstore.door.apis import Api, fallback_versions, find
from kstore.door.call import Call, ConnectionEnded, Message
from kstore.door.fetch_part import Seen
from kstore.door.frames import (
    API_VERSIONS,
    HEAD,
    RESPONSE_BYTES_MAX,
    Head,
    Request,
    read_head,
    read_request,
    response_bytes,
    response_header,
    wire_of,
)
from kstore.door.guard import CAN_ASK, is_own_user
from kstore.door.inbox import BUFFER_BYTES, Inbox, set_timeout
from kstore.door.memory import Budget, Loan, Memory, buffer_size
from kstore.door.reply import Reply
from kstore.door.served import Served
from kstore.door.waiting import Waiter
from kstore.errors import KstoreError
from kstore.messages.primitives import TooManyElementsError

if TYPE_CHECKING:
    from kstore.engine.read.fetch import FetchSlice

logger = logging.getLogger(__name__)

# How long a peer may take nothing of its answer.
SEND_SECONDS = 30.0
# How long a request waits for memory that others use.
MEMORY_SECONDS = 30.0
ELEMENTS_MAX = 100_000
# What a parsed element takes, at most on average; each takes 2 bytes of the frame or more. A request with so few of
# them is not counted: all connections together could take that much.
ELEMENT_BYTES = 352
UNCOUNTED_ELEMENTS = 512


class Connection:
    """The thread that calls ``run`` does all the work; what else may be called by others says so."""

    def __init__(self, peer: socket.socket, door: Served, budget: Budget) -> None:
        self.socket = peer
        self.began = time.monotonic()
        self._door = door
        self._budget = budget
        self._inbox = Inbox(peer, budget.frames)
        self._seen = Seen(budget.seen)
        self._host = ""
        # For other threads: the waiter of the request that is being handled, and whether one is.
        self.waiter: Waiter | None = None
        self.is_busy = False
        self._lock = threading.Lock()

    # --- for any thread --------------------------------------------------------------------------------------------

    def end_when_idle(self) -> None:
        """The request that is being handled is answered, and no other one is read."""
        with self._lock:
            if self.waiter is not None:
                self.waiter.leave()
            if not self.is_busy:
                self._shut(socket.SHUT_RD)

    def end(self) -> None:
        """Ends the connection at once, without an answer."""
        self._shut(socket.SHUT_RDWR)
        if self.waiter is not None:
            self.waiter.leave()

    def look_for_peer(self) -> None:
        """Wakes a request that waits though its peer has left."""
        waiter = self.waiter
        if waiter is None or waiter.gone:
            return
        poll = select.poll()
        # A closed connection shows as one of the last two elsewhere.
        with suppress(OSError, ValueError):
            poll.register(self.socket, getattr(select, "POLLRDHUP", 0))
            if poll.poll(0):
                waiter.leave()

    def _shut(self, how: int) -> None:
        with suppress(OSError):
            self.socket.shutdown(how)

    # --- the connection's thread -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Serves the connection to its end, and closes it. Raises nothing."""
        try:
            self._host = str(self.socket.getpeername()[0])
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._door.same_user and CAN_ASK and not is_own_user(self.socket):
                raise ConnectionEnded("another user's process: only this user's may connect (same_user)")
            while self._serve_one():
                pass
        except (ConnectionEnded, KstoreError) as error:
            # Also a file that became shorter while it was sent, or a store that is being closed.
            if not self._door.closing:
                self._door.refusals.note(self._host, str(error))
        except MemoryError:
            self._door.refusals.note(self._host, "there is no memory for a request and its answer")
        except OSError as error:
            # The peer left, or takes or sends nothing.
            logger.debug("a connection from %s ended: %s", self._host, error)
        except Exception:
            logger.exception("a connection from %s is closed after a failure", self._host)
        finally:
            self._seen.end()
            self.socket.close()

    def _serve_one(self) -> bool:
        """Reads and answers one request; False at the connection's orderly end."""
        with self._lock:
            if self._door.closing:
                return False
            self.is_busy = False
        size = self._inbox.next_size(self._door.settings.idle_ms / 1000)
        if size is None:
            return False
        if size < HEAD.size:
            raise ConnectionEnded(f"a frame of {size} bytes, expected at least {HEAD.size}")
        head = read_head(self._inbox.start(HEAD.size))
        api = find(self._door, head.api)
        if api is None:
            raise ConnectionEnded(f"API {head.api}, which this door does not serve")
        limits = self._door.settings
        limit = limits.request_bytes_max if api.is_large else limits.other_request_bytes_max
        if size > limit:
            raise ConnectionEnded(f"a frame of {size} bytes, expected at most {limit} for {api.name}")
        if size <= BUFFER_BYTES:
            return self._serve(api, head, self._inbox.whole(size))
        with self._lent(self._budget.frames, buffer_size(size)):
            buffer = self._budget.spares.take(size)
            try:
                frame = memoryview(buffer)[:size]
                self._inbox.fill(frame)
                return self._serve(api, head, frame)
            finally:
                self._budget.spares.give(buffer)

    def _serve(self, api: Api, head: Head, frame: memoryview) -> bool:
        """Handles a request and sends the answer; False if the door is being closed."""
        with self._lock:
            if self._door.closing:
                return False
            self.is_busy = True
        started = time.monotonic()
        answer, error = self._handled(api, head, frame)
        self._door.counters.answered(api.name, time.monotonic() - started, len(frame), answer, error=error)
        return True

    @contextmanager
    def _lent(self, memory: Memory, size: int) -> Iterator[Loan]:
        with memory.lent(size, MEMORY_SECONDS) as loan:
            if not loan:
                raise ConnectionEnded(
                    f"no {size} bytes of memory for a request within {MEMORY_SECONDS:.0f} s (memory_max)"
                )
            yield loan

    def _handled(self, api: Api, head: Head, frame: memoryview) -> tuple[int, int]:
        """Handles a request and sends the answer: the bytes sent, and the error of the whole answer, if it has one."""
        if api.key == API_VERSIONS and (fallback := fallback_versions(head.version)) is not None:
            return self._send_message(api, head._replace(version=0), fallback)
        if not api.lowest <= head.version <= api.highest:
            raise ConnectionEnded(f"{api.name} version {head.version}, expected {api.lowest} to {api.highest}")
        try:
            request = read_request(api.wire, frame, elements_max=UNCOUNTED_ELEMENTS)
        except TooManyElementsError:
            pass
        else:
            return self._answered(api, request)
        with self._lent(self._budget.elements, min(len(frame) // 2, ELEMENTS_MAX) * ELEMENT_BYTES) as loan:
            request = read_request(api.wire, frame, elements_max=ELEMENTS_MAX)
            # The request may wait for long.
            loan.keep(request.element_count * ELEMENT_BYTES)
            return self._answered(api, request)

    def _answered(self, api: Api, request: Request) -> tuple[int, int]:
        head = request.head
        answer = self._answer(api, request)
        if answer is None:
            return 0, 0
        if isinstance(answer, dict):
            return self._send_message(api, head, answer)
        header = response_header(api.wire, head, answer.length)
        self.write(header, more=True)
        answer.send(self)
        return len(header) + answer.length, 0

    def _answer(self, api: Api, request: Request) -> Message | Reply | None:
        head = request.head
        call = Call(
            head.api,
            head.version,
            request.body,
            request.client_id,
            self._host,
            None,
            self._door,
            self._new_waiter,
            self._seen,
        )
        try:
            answer: Message | Reply | None
            answer = api.handle(call) if self._door.handled is None else self._door.handled(api, call)
            return answer
        finally:
            self.waiter = None

    def _new_waiter(self) -> Waiter:
        waiter = Waiter()
        with self._lock:
            self.waiter = waiter
            if self._door.closing:
                waiter.leave()
        return waiter

    def _send_message(self, api: Api, head: Head, message: Message) -> tuple[int, int]:
        data = response_bytes(wire_of(api.name), head, message)
        if len(data) > RESPONSE_BYTES_MAX:
            raise ConnectionEnded(
                f"an answer of {len(data)} bytes to {api.name}, expected at most {RESPONSE_BYTES_MAX}"
            )
        self.write(data)
        return len(data), int(message.get("errorCode", 0))

    # --- ReplySink --------------------------------------------------------------------------------------------------

    def write(self, data: bytes | memoryview, *, more: bool = False) -> None:
        flags = getattr(socket, "MSG_MORE", 0) if more else 0
        set_timeout(self.socket, SEND_SECONDS)
        sent = self.socket.send(data, flags)
        while sent < len(data):
            sent += self.socket.send(memoryview(data)[sent:], flags)

    def send_slice(self, part: FetchSlice, count: int) -> None:
        set_timeout(self.socket, SEND_SECONDS)
        part.send_to(self.socket, count=count)
