"""``Served``: what handlers may know and use of a door."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from kstore.door.config import DoorConfig
from kstore.door.counters import Counters, Lines, Refusals
from kstore.door.groups import Groups
from kstore.door.parking import Parking

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
