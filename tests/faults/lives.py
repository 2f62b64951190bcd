"""The lives of the table: each is a preparation, a body and a check, over a recorded disk in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from kstore.log import Log
from kstore.types import Durability
from tests.crash.backup_life import BackupLife
from tests.crash.backup_life import prepared as store_to_back_up
from tests.crash.power_cut_lives import LIVES as LOG_LIVES
from tests.crash.power_cut_lives import LogLife, indexes_that_grow_early
from tests.crash.power_cuts import RecordedLife
from tests.crash.queue_life import QueueLife, small
from tests.crash.test_replicate_crashes import ReplicatedLife
from tests.crash.test_split_crashes import SplitLife
from tests.crash.transaction_life import TransactionLife
from tests.faults.compaction_life import CompactionLife
from tests.faults.group_life import GroupLife
from tests.faults.recorded_producers import RecordedProducers
from tests.faults.recorded_store import StoreLife
from tests.faults.shared_log_life import SharedLogLife
from tests.support.fakes.memory_fs import Machine, MemoryRecording, in_memory


class Life(RecordedLife, Protocol):
    """``before`` is its preparation, ``live`` its body, which may end with an error anywhere, ``survive`` its check."""

    fs: MemoryRecording

    def live(self) -> None: ...


class OneLog(LogLife):
    """A life of a log whose handle is closed at its end, however it ends."""

    def __init__(self, name: str, durability: Durability) -> None:
        super().__init__(durability)
        self._name = name
        self._opened: list[Log] = []

    def open(self) -> Log:
        log = super().open()
        self._opened.append(log)
        return log

    def live(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._close_last)
            LOG_LIVES[self._name](self)

    def _close_last(self) -> None:
        if self._opened:
            self._opened[-1].close()


def a_log(seed: int) -> Life:
    """Each seed has the next kind of life and the next durability."""
    names = [name for name in LOG_LIVES if name != "torn groups"]
    durabilities: tuple[Durability, ...] = ("sync", "os", "sync", "interval")
    return OneLog(names[seed % len(names)], durabilities[seed % len(durabilities)])


def a_sink(seed: int) -> Life:
    # Spark's modules bring pyarrow, which takes the programs of other lives as long as all else.
    from tests.crash.sink_life import SinkLife

    return SinkLife()


LIVES: dict[str, Callable[[int], Life]] = {
    "log": a_log,
    "shared": lambda seed: SharedLogLife(),
    "store": lambda seed: StoreLife(),
    "queue": lambda seed: QueueLife("sync" if seed % 2 else "interval"),
    "producer": lambda seed: RecordedProducers(),
    "group": lambda seed: GroupLife(),
    "transaction": lambda seed: TransactionLife(),
    "backup": lambda seed: BackupLife(store_to_back_up()),
    "replicate": lambda seed: ReplicatedLife(store_to_back_up()),
    "sink": a_sink,
    "compaction": lambda seed: CompactionLife(("sync", "interval", "os")[seed % 3], seed),
    "split": lambda seed: SplitLife(last=seed % 2 == 1),
}


@contextmanager
def machine_in_memory() -> Iterator[Machine]:
    """Inside, lives can be lived: in memory, with small queues and with indexes that grow all the time."""
    with in_memory() as machine, indexes_that_grow_early(), small():
        yield machine
