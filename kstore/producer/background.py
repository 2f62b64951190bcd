"""``Background``: delivers what one producer has accepted, whether or not the producer object still exists.

What ``send`` has accepted belongs to the background. It is kept alive from the producer's creation until the producer
is closed, or is gone and everything has a result. So records survive their producer: its thread goes on, and what is
left is delivered when the store closes or the interpreter ends, for a limited time. The log names what is lost then.
``send`` itself pays nothing for that.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from typing import Final

from kstore.errors import DeliveryError, KstoreError, TransactionAbortedError
from kstore.logs.topics import Topics
from kstore.producer.parts import ProducerParts

logger = logging.getLogger(__name__)

# How long a store that closes, or the interpreter's exit, waits for the records of producers that were not closed.
EXIT_SECONDS: Final = 10.0
# How long a close whose time is over waits for writes in progress.
GRACE_SECONDS: Final = 1.0


class Background:
    """The parts of a producer that work after ``send``, and how they end. Thread-safe."""

    def __init__(self, parts: ProducerParts) -> None:
        """Nothing runs yet."""
        self.client_id: str = parts.client_id
        self.topics: Topics = parts.topics
        self._clock = parts.clock
        self._counters = parts.counters
        self._life = parts.life
        self._metadata = parts.metadata
        self._outbox = parts.outbox
        self._slow_path = parts.slow_path
        self._transactions = parts.transactions
        # Whether a thread is in ``close``, and whether a ``close`` came to its end.
        self._is_closing = False
        self.is_ended: bool = False
        # Whether the producer was garbage before it was closed.
        self._is_dropped = False

    def begin(self) -> None:
        """Starts the thread. Raises: ThreadStartError, and then nothing runs."""
        sender = self._outbox.sender
        try:
            self.topics.watch(self._metadata.note_change)
            # First: from here on it is known to whatever ends the store or the process.
            _running.add(self)
            sender.on_end = self._note_end
            if self._outbox.is_threaded:
                sender.start()
            self._life.closed = False
        except BaseException:
            # Its thread may run, after an interrupt.
            self._outbox.abandon()
            self._life.closed = self.is_ended = True
            self._leave()
            raise
        _deliver_at_the_end_of_a_child()

    def _leave(self) -> None:
        """Takes no lock."""
        self.topics.unwatch(self._metadata.note_change)
        self._outbox.sender.on_end = None
        _running.discard(self)

    # --- close ------------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None, why: str = "", *, grace: float = GRACE_SECONDS) -> None:
        """See ``Producer.close``. A second call does nothing, unless an interrupt ended the first: it continues.

        ``why`` ends the sentence that names an aborted transaction in the log; without it there is none. ``grace``: how
        long, in seconds, it waits for writes in progress after ``timeout``.
        Raises: DeliveryError.
        """
        # Nothing from here to the ``try`` can run a signal handler or another thread.
        if self._is_closing or self.is_ended:
            return
        self._is_closing = True
        try:
            self._life.closed = True
            self._close(0.0 if self._outbox.sender.is_this_thread else timeout, why, grace)
            self._slow_path.close()
            self._leave()
            self.is_ended = True
        finally:
            self._is_closing = False
        self._outbox.report_failures()

    def _close(self, timeout: float | None, why: str, grace: float) -> None:
        """May be repeated after an interrupt."""
        started = self._clock.monotonic()
        if self._transactions.is_open:
            self._end_transaction(timeout, why)
        if timeout is not None:
            timeout = max(timeout - (self._clock.monotonic() - started), 0.0)
        self._outbox.close(timeout, grace)

    def abort(self, timeout: float | None = None) -> None:
        """Ends the transaction, whose records are never read as committed; those not yet written fail.

        Raises: TimeoutError, and as ``Producer.abort_transaction``.
        """
        self._outbox.accumulator.is_paused = True
        cause = self._transactions.error
        error = TransactionAbortedError("the transaction was aborted") if cause is None else cause
        with self._counters.transaction_call("abort", self._clock):
            self._outbox.sender.abandon(error)
            if not self._outbox.drain(timeout):
                raise TimeoutError(f"not all records could be dropped within {timeout} s")
            # The caller aborts and so knows that its records are lost. Before the end: after an interrupt an abort can
            # be repeated until then.
            self._outbox.failures.take()
            self._transactions.end(commit=False)

    def _end_transaction(self, timeout: float | None, why: str) -> None:
        """``why`` is empty if the program itself has closed the producer."""
        if why:
            logger.error("%s: its open transaction is aborted %s", self.client_id, why)
        try:
            self._transactions.begin_end(commit=False)
            if timeout != 0:
                self.abort(timeout)
        except (KstoreError, OSError) as error:
            logger.warning("%s: its transaction is aborted when the store is next opened: %s", self.client_id, error)

    # --- without its producer -----------------------------------------------------------------------------------------

    def drop(self) -> None:
        """Called by the finalizer of a producer that was not closed: its thread delivers everything, then ends.

        Takes no lock: the garbage collector runs in any thread, also in one that holds the lock.
        """
        self._is_dropped = True
        self._life.closed = True
        self._outbox.abandon()
        if not (self._outbox.sender.is_running or self._outbox.accumulator.incomplete):
            self._leave()  # an interrupted close has ended the thread

    def _note_end(self) -> None:
        """Called by the sender's thread when everything has a result and nothing more is accepted."""
        if not self._is_dropped or self._is_closing or self.is_ended:
            return  # ``close`` does the rest
        self._is_closing = True
        try:
            if self._transactions.is_open:
                self._end_transaction(None, "because its producer was dropped")
            self._slow_path.close()
        finally:
            self._leave()
            self.is_ended = True
            self._is_closing = False
        try:
            self._outbox.report_failures()
        except DeliveryError:
            pass  # it is in the log now

    def hurry(self) -> None:
        """Makes its thread write everything at once. Does not wait."""
        self._outbox.begin_last_hurry()

    def finish(self, deadline: float, why: str) -> None:
        """Delivers what waits until ``deadline``, by the clock, and closes; the rest is lost, and its counts are logged
        as an error. ``why`` ends that sentence. Raises: what ends the wait, such as KeyboardInterrupt, after all of it.
        """
        interrupt: BaseException | None = None
        is_in_callback = self._outbox.sender.is_this_thread
        try:
            is_drained = not is_in_callback and self._outbox.drain(max(deadline - self._clock.monotonic(), 0.0))
        except BaseException as error:
            interrupt, is_drained = error, False
        lost = {} if is_drained else self._outbox.undelivered()
        try:
            left = deadline - self._clock.monotonic()
            # All producers together get the grace once.
            grace = min(max(left + GRACE_SECONDS, 0.0), GRACE_SECONDS)
            self.close(0.0 if lost else max(left, 0.0), why, grace=grace)
        except DeliveryError:
            pass  # it is in the log now
        except Exception:
            logger.exception("%s: %s", self.client_id, why)
        except BaseException as error:
            interrupt = error
        if not is_in_callback:
            # A dropped producer's thread may be ending it at this moment.
            self._outbox.sender.join(max(deadline - self._clock.monotonic(), 0.0))
        if lost:
            counts = ", ".join(f"{count} of {name}" for name, count in sorted(lost.items()))
            logger.error("%s: records were lost %s: %s", self.client_id, why, counts)
        if interrupt is not None and not isinstance(interrupt, Exception):
            raise interrupt


# --- the end of a store, of a process, and forks ----------------------------------------------------------------------

# Held strongly: a producer that is gone has left its records here.
_running: set[Background] = set()
# Whether this process has registered its end with multiprocessing.
_has_finalizer = False


def deliver_all(topics: Topics | None, why: str) -> None:
    """Delivers what the producers of a store, or of all stores, still have in memory, and closes them. It waits at most
    ``EXIT_SECONDS``; what is lost is logged. Raises: KeyboardInterrupt, which ends the wait."""
    found = [one for one in list(_running) if topics is None or one.topics is topics]
    found = [one for one in found if not (one.is_ended or one._life.forked)]
    interrupt: BaseException | None = None
    for one in found:
        # First: one that is stuck must not use up the time of the others.
        try:
            one.hurry()
        except Exception:
            logger.exception("%s: %s", one.client_id, why)  # a lack of memory, and ``finish`` tries again
        except BaseException as error:
            interrupt = error
    deadline = None
    for one in found:
        now = one._clock.monotonic()
        if deadline is None:
            deadline = now + EXIT_SECONDS
        try:
            one.finish(deadline if interrupt is None else now, why)
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


@atexit.register
def _deliver_at_exit() -> None:
    try:
        deliver_all(None, "at the interpreter's exit")
    except (KeyboardInterrupt, SystemExit):
        pass  # it has ended the wait, and what is lost is in the log


def _deliver_at_the_end_of_a_child() -> None:
    """Forked children of multiprocessing end without ``atexit``. They call the finalizers that they have registered."""
    global _has_finalizer
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    # Other processes end with ``atexit``, in whose order a program may still send.
    if _has_finalizer or util is None or process is None or process.parent_process() is None:
        return
    util.Finalize(None, _deliver_after_the_threads, exitpriority=0)
    _has_finalizer = True


def _deliver_after_the_threads() -> None:
    """As at an interpreter's exit, the threads that are not daemons may still send. The child waits for them
    afterwards, and so also for the thread that is started here, which waits for them and then delivers."""
    if _other_threads():
        try:
            threading.Thread(target=_wait_and_deliver, name="kstore-exit", daemon=False).start()
            return
        except RuntimeError:
            pass  # no thread can be started
    _deliver_at_exit()


def _wait_and_deliver() -> None:
    while others := _other_threads():
        others[0].join()
    _deliver_at_exit()


def _other_threads() -> list[threading.Thread]:
    here = (threading.current_thread(), threading.main_thread())
    return [thread for thread in threading.enumerate() if not thread.daemon and thread not in here]


def _forget_in_child() -> None:
    global _has_finalizer
    # They are the parent's, which delivers them.
    _running.clear()
    _has_finalizer = False


os.register_at_fork(after_in_child=_forget_in_child)
