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
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from kstore.door.apis import Api, fallback_versions, find
from kstore.door.call import Call, ConnectionEnded, Message
from kstore.door.fetch_part import Seen
from kstore.door.frames import (
    API_VERSIONS,
    HEAD,
    RESPONSE_BYTES_MAX,
    SIZE,
    Head,
    Request,
    read_head,
    read_request,
    response_bytes,
    response_header,
    wire_of,
)
from kstore.door.guard import CAN_ASK, is_own_user
from kstore.door.memory import Budget, Loan, Memory, buffer_size
from kstore.door.reply import Reply
from kstore.door.served import Served
from kstore.door.waiting import Waiter
from kstore.errors import KstoreError

if TYPE_CHECKING:
    from kstore.engine.read.fetch import FetchSlice

logger = logging.getLogger(__name__)

# What every connection keeps; a larger frame gets memory of its own, for as long as it is handled.
BUFFER_BYTES = 64 << 10
# A frame must come, and an answer must go, at least this fast.
RATE_BYTES, RATE_SECONDS = 64 << 10, 10.0
# And this fast if it has memory that others wait for, from its first second on: else a few that send nothing would
# keep it from all others for hours.
WANTED_RATE_BYTES, GRACE_SECONDS = 256 << 10, 1.0
SEND_SECONDS = 30.0
# How long a request waits for memory that others use.
MEMORY_SECONDS = 30.0
ELEMENTS_MAX = 100_000
# What a parsed element takes, at most on average; each takes 2 bytes of the frame or more. Frames of less than that
# many bytes are not counted: all connections together could take that much.
ELEMENT_BYTES = 320
UNCOUNTED_BYTES = 1 << 10


class Connection:
    """The thread that calls ``run`` does all the work; what else may be called by others says so."""

    def __init__(self, peer: socket.socket, door: Served, budget: Budget) -> None:
        self.socket = peer
        self.began = time.monotonic()
        self._door = door
        self._budget = budget
        self._buffer = bytearray(BUFFER_BYTES)
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
        size = self._read_size()
        if size is None:
            return False
        if size < HEAD.size:
            raise ConnectionEnded(f"a frame of {size} bytes, expected at least {HEAD.size}")
        began = time.monotonic()
        start = memoryview(self._buffer)
        self._receive(start[: HEAD.size], began, 0)
        head = read_head(start)
        api = find(self._door, head.api)
        if api is None:
            raise ConnectionEnded(f"API {head.api}, which this door does not serve")
        limits = self._door.settings
        limit = limits.request_bytes_max if api.is_large else limits.other_request_bytes_max
        if size > limit:
            raise ConnectionEnded(f"a frame of {size} bytes, expected at most {limit} for {api.name}")
        with ExitStack() as held:
            frame = start[:size]
            if size > BUFFER_BYTES:
                self._take_memory(self._budget.frames, held, buffer_size(size))
                buffer = self._budget.spares.take(size)
                held.callback(self._budget.spares.give, buffer)
                frame = memoryview(buffer)[:size]
                frame[: HEAD.size] = start[: HEAD.size]
            self._receive(frame[HEAD.size :], began, HEAD.size, is_lent=size > BUFFER_BYTES)
            with self._lock:
                if self._door.closing:
                    return False
                self.is_busy = True
            started = time.monotonic()
            answer, error = self._handled(api, head, frame, held)
            self._door.counters.answered(api.name, time.monotonic() - started, size, answer, error=error)
        return True

    def _read_size(self) -> int | None:
        """The size of the next frame; None if the peer closes the connection, or is idle for too long."""
        view = memoryview(bytearray(SIZE.size))
        self.socket.settimeout(self._door.settings.idle_ms / 1000)
        try:
            got = self.socket.recv_into(view)
        except TimeoutError:
            return None
        if got == 0:
            return None
        if got < SIZE.size:
            self._receive(view[got:], time.monotonic(), 0)
        [size] = SIZE.unpack(view)
        return int(size)

    def _receive(self, target: memoryview, began: float, got: int, *, is_lent: bool = False) -> None:
        """Fills ``target``; ``got`` bytes of the frame came before. Raises: ConnectionEnded, OSError.

        ``is_lent``: it is memory that others may wait for.
        """
        at = 0
        while at < len(target):
            seconds = time.monotonic() - began
            rest = RATE_SECONDS * (1 + (got + at) // RATE_BYTES) - seconds
            if rest <= 0:
                raise ConnectionEnded(f"{got + at} bytes of a frame in {seconds:.0f} s: too slow")
            if is_lent:
                rest = min(rest, GRACE_SECONDS)
                if seconds > GRACE_SECONDS and got + at < WANTED_RATE_BYTES * seconds and self._budget.frames.is_wanted:
                    raise ConnectionEnded(
                        f"{got + at} bytes of a frame in {seconds:.0f} s, while others wait for memory"
                    )
            self.socket.settimeout(rest)
            try:
                count = self.socket.recv_into(target[at:])
            except TimeoutError:
                continue
            if count == 0:
                raise ConnectionResetError("the peer left within a frame")
            at += count

    def _take_memory(self, memory: Memory, held: ExitStack, size: int) -> Loan:
        loan = held.enter_context(memory.lent(size, MEMORY_SECONDS))
        if not loan:
            raise ConnectionEnded(f"no {size} bytes of memory for a request within {MEMORY_SECONDS:.0f} s (memory_max)")
        return loan

    def _handled(self, api: Api, head: Head, frame: memoryview, held: ExitStack) -> tuple[int, int]:
        """Handles a request and sends the answer: the bytes sent, and the error of the whole answer, if it has one."""
        if api.key == API_VERSIONS and (fallback := fallback_versions(head.version)) is not None:
            return self._send_message(api, head._replace(version=0), fallback)
        if not api.lowest <= head.version <= api.highest:
            raise ConnectionEnded(f"{api.name} version {head.version}, expected {api.lowest} to {api.highest}")
        loan = None
        if len(frame) > UNCOUNTED_BYTES:
            loan = self._take_memory(self._budget.elements, held, min(len(frame) // 2, ELEMENTS_MAX) * ELEMENT_BYTES)
        request = read_request(api.wire, frame, elements_max=ELEMENTS_MAX)
        if loan is not None:
            # The request may wait for long.
            loan.keep(request.element_count * ELEMENT_BYTES)
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
        self.socket.settimeout(SEND_SECONDS)
        rest = memoryview(data)
        while rest:
            rest = rest[self.socket.send(rest, flags) :]

    def send_slice(self, part: FetchSlice, count: int) -> None:
        self.socket.settimeout(SEND_SECONDS)
        part.send_to(self.socket, count=count)
