"""A log that was opened for writing, before anything is written to it."""

from __future__ import annotations

from dataclasses import dataclass

from kstore.engine.ends import Ends
from kstore.engine.producers import LogProducers
from kstore.engine.segments import LogSegments
from kstore.files.boot import boot_id
from kstore.rules.losses import NO_LOSSES, LossRanges
from kstore.segment import SegmentContext
from kstore.state.leader_epoch import LeaderEpochCache
from kstore.state.log_state import LogState, StateFile
from kstore.types import Durability, RecoveryReport

__all__ = ["Loaded", "losses_of", "store_loaded"]


@dataclass(slots=True)
class Loaded:
    """An open log, before anything is written to it. ``position`` is the end of the last segment, in bytes."""

    context: SegmentContext
    durability: Durability
    segments: LogSegments
    producers: LogProducers
    state_file: StateFile
    start_offset: int
    end_offset: int
    position: int
    recovery_point: int
    epochs: LeaderEpochCache
    seal: bool
    report: RecoveryReport
    losses: LossRanges = NO_LOSSES

    @property
    def ends(self) -> Ends:
        """Where it begins and ends; all that is left in it is on disk."""
        end = self.end_offset
        return Ends(
            self.start_offset,
            min(self.recovery_point, end),
            end,
            end,
            end,
            self.segments.last.base_offset,
            self.position,
        )

    @property
    def leader_epoch(self) -> int:
        """The epoch of new batches: the latest of the directory, 0 if it has none."""
        return self.epochs.latest_epoch or 0


def losses_of(state: LogState | None) -> LossRanges:
    """What ``kstore.state`` says of the log's losses."""
    return NO_LOSSES if state is None else LossRanges(state.lost, state.accepted, state.unconfirmed)


def store_loaded(loaded: Loaded) -> None:
    """Stores what is known of the log in ``kstore.state``, durably. Raises: StorageError."""
    loaded.state_file.store(
        LogState(
            durability=loaded.durability,
            recovery_point=loaded.recovery_point,
            log_start_offset=loaded.start_offset,
            durable_end=loaded.end_offset,
            boot_id=boot_id(),
            lost=loaded.losses.lost,
            accepted=loaded.losses.accepted,
            unconfirmed=loaded.losses.unconfirmed,
            has_epochs=bool(loaded.epochs.entries),
            txn_bytes=loaded.producers.index_sizes.total(
                loaded.segments.bases, loaded.start_offset, loaded.recovery_point
            ),
        )
    )
