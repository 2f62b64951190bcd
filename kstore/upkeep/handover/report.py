"""What a handover did, or would do in a dry run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kstore.types import CorruptRange, CutRange

Direction = Literal["to-broker", "from-broker"]


class Change(NamedTuple):
    """One change: ``kind`` is "write", "remove", "open", "roll", "rebuild", "start" or "mode"."""

    kind: str
    path: str
    detail: str


class PartitionReport(NamedTuple):
    """One partition as handed over; ``topic_id`` is "" if unknown."""

    name: str
    start_offset: int
    end_offset: int
    topic_id: str


class ForgottenLoss(NamedTuple):
    """Offsets ``first`` to ``last`` (both inclusive) of partition ``name`` that ``kstore.state`` listed as lost, or as
    accepted. No file lists them after the handover, and a broker passes over them."""

    name: str
    first: int
    last: int
    is_accepted: bool


@dataclass(slots=True)
class HandoverReport:
    """What was found and done.

    ``refused`` says why nothing was handed over; ``damage`` is what the logs have lost, ``cut`` what recovery set
    aside; ``losses`` are those that only ``kstore.state`` listed; ``left`` names unchanged files; ``notes`` are tasks
    for the user.
    """

    directory: str
    direction: Direction
    dry_run: bool
    refused: list[str] = field(default_factory=list)
    damage: list[CorruptRange] = field(default_factory=list)
    cut: list[CutRange] = field(default_factory=list)
    losses: list[ForgottenLoss] = field(default_factory=list)
    steps: list[Change] = field(default_factory=list)
    partitions: list[PartitionReport] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether everything was handed over, without damage."""
        return not self.refused and not self.damage
