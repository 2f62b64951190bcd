"""The result of mirroring one log."""

from __future__ import annotations

from dataclasses import dataclass, field

from kstore.errors import KstoreError
from kstore.types import CorruptRange


@dataclass(slots=True)
class MirroredLog:
    """One log: how much was copied, or would be with ``dry_run``. ``bytes_copied`` counts every file.

    ``segments_extended`` grew in place. ``damage`` was found in what was copied, and was copied unchanged. ``error``
    ended the log; what was copied before stays, and the next run continues from there.
    """

    name: str
    source: str
    target: str
    start_offset: int = 0
    end_offset: int = 0
    segments_copied: int = 0
    segments_extended: int = 0
    segments_skipped: int = 0
    segments_deleted: int = 0
    bytes_copied: int = 0
    dry_run: bool = False
    active_left_out: bool = False
    damage: list[CorruptRange] = field(default_factory=list)
    error: KstoreError | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and not self.damage
