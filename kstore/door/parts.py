"""What the handlers of logs share: the log of a partition, its ends, and the checks of leader epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kstore.door import errors
from kstore.door.served import Served
from kstore.engine.ends import Ends
from kstore.engine.read.reads import LogReads
from kstore.engine.source import LogSource
from kstore.errors import TopicNotFoundError
from kstore.files.checkpoint import EpochEntry
from kstore.log import Log, reads_of

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


def part_of(door: Served, topic: str, partition: int) -> Part:
    """The log of a partition. Raises: TopicNotFoundError, ClosedError, StorageError."""
    if partition < 0:
        raise TopicNotFoundError(f"{topic} has no partition {partition}")
    log = door.store.log(topic, partition)
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
