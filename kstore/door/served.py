"""``Served``: what handlers may know and use of a door."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kstore.store import Store

__all__ = ["Served", "Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of a door that handlers and connections use; sizes in bytes."""

    auto_create_partitions: int = 1
    same_user: bool = True
    connections_max: int = 512
    request_bytes_max: int = 100 << 20
    other_request_bytes_max: int = 1 << 20
    memory_max: int = 256 << 20
    idle_ms: int = 600_000
    rebalance_delay_ms: int = 0


@dataclass(slots=True)
class Served:
    """One door. Thread-safe: only ``closing`` changes."""

    store: Store
    cluster_id: str
    node_id: int
    # Where clients connect to, as told in Metadata and FindCoordinator.
    host: str
    port: int
    admin: bool
    settings: Settings
    closing: bool = False
    # Called about twice a second in the door's own thread, with ``time.monotonic()``; they must not block or raise.
    ticks: list[Callable[[float], object]] = field(default_factory=list)

    @property
    def read_only(self) -> bool:
        return self.store.read_only
