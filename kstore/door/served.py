"""``Served``: what handlers may know and use of a door; and ``Part``: the log of one partition, as they use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from kstore.door import errors
from kstore.door.config import DoorConfig
from kstore.door.counters import Counters, Lines, Refusals
from kstore.door.groups import Groups
from kstore.door.parking import Parking
from kstore.engine.ends import Ends
from kstore.engine.read.reads import LogReads
from kstore.engine.source import LogSource
from kstore.errors import TopicNotFoundError
from kstore.files.checkpoint import EpochEntry
from kstore.log import Log, reads_of

if TYPE_CHECKING:
    from kstore.store import Store


@dataclass(slots=True)
class Served:
    """One door. Thread-safe: of its own fields only ``closing`` and ``handled`` change."""

    store: Store
    cluster_id: str
    node_id: int
    # Where clients connect to, as told in Metadata and FindCoordinator.
    host: str
    port: int
    admin: bool = True
    # Whether only processes of this process's own user may connect.
    same_user: bool = True
    settings: DoorConfig = field(default_factory=DoorConfig)
    counters: Counters = field(default_factory=Counters)
    refusals: Refusals = field(default_factory=Refusals)
    damage_lines: Lines = field(default_factory=Lines)
    closing: bool = False
    # In place of the handlers, for tests: ``Faults.answer``, whose types would be an import cycle here.
    handled: Callable[..., Any] | None = None
    # Called about twice a second in the door's own thread, with ``time.monotonic()``; they must not block.
    ticks: list[Callable[[float], object]] = field(default_factory=list)
    # Where fetches wait, and their numbers: each begins one partition further.
    parking: Parking = field(default_factory=Parking)
    turns: Iterator[int] = field(default_factory=count)
    groups: Groups = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        self.groups = Groups(
            self.store,
            rebalance_delay_ms=settings.rebalance_delay_ms,
            offsets_retention_minutes=settings.offsets_retention_minutes,
        )
        self.ticks.append(self.groups.run_due)

    @property
    def read_only(self) -> bool:
        return self.store.read_only

    @property
    def auto_create_partitions(self) -> int:
        """How many partitions a topic gets that a client creates by its name; 0 if none is created."""
        return 0 if self.read_only else self.settings.auto_create_partitions


# As clients number them.
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
# A client that does not check sends this in the place of an epoch.
UNCHECKED_EPOCH = -1


class Part(NamedTuple):
    """The log of one partition."""

    log: Log
    reads: LogReads
    source: LogSource

    def ends(self) -> Ends:
        """Its ends now, with what other processes have done."""
        self.source.refresh()
        return self.source.ends

    def epochs(self) -> Sequence[EpochEntry]:
        return self.source.leader_epochs()


def log_of(door: Served, topic: str, partition: int) -> Log:
    """The log of a partition. Raises: TopicNotFoundError, ClosedError, StorageError."""
    if partition < 0:
        raise TopicNotFoundError(f"{topic} has no partition {partition}")
    return door.store.log(topic, partition)


def part_of(door: Served, topic: str, partition: int) -> Part:
    """The log of a partition, with what reads it. Raises: TopicNotFoundError, ClosedError, StorageError."""
    log = log_of(door, topic, partition)
    reads = reads_of(log)
    return Part(log, reads, reads.source)


def epoch_error(part: Part, current: int) -> int:
    """The error if a client takes another leader epoch than the latest for current (KIP-320); NONE if it is right."""
    if current <= UNCHECKED_EPOCH:
        return errors.NONE
    latest = part.epochs()[-1].epoch
    if current == latest:
        return errors.NONE
    return errors.UNKNOWN_LEADER_EPOCH if current > latest else errors.FENCED_LEADER_EPOCH
