"""Shared by the tests of a broker's cleaner: when it is done, and how its batches are compared with kstore's."""

from __future__ import annotations

import time
from collections.abc import Mapping

from tests.support.harness.evidence import Wrong
from tests.support.oracles.compaction_model import Kept
from tools.interop.broker import Broker

CLEAN_SECONDS_MAX = 60


def wait_until_clean(broker: Broker, stops: Mapping[str, int]) -> None:
    """Waits until the broker says that each topic is clean up to this offset."""
    wanted = {f"{topic} 0 {stop}" for topic, stop in stops.items()}
    checkpoint = broker.data / "cleaner-offset-checkpoint"
    deadline = time.monotonic() + CLEAN_SECONDS_MAX
    while time.monotonic() < deadline:
        if checkpoint.exists() and wanted <= set(checkpoint.read_text().splitlines()):
            return
        time.sleep(0.2)
    found = checkpoint.read_text() if checkpoint.exists() else "no checkpoint"
    raise Wrong(f"the broker did not clean up to {sorted(wanted)}: {found}")


def timeless(batches: list[Kept]) -> list[Kept]:
    """The horizon is the time of the pass: only its existence matters here."""
    return [batch._replace(delete_horizon_ms=batch.delete_horizon_ms and 0) for batch in batches]


def first_difference(theirs: list[Kept], ours: list[Kept]) -> str:
    both = zip(timeless(theirs), timeless(ours), strict=False)
    first = next((pair for pair in both if pair[0] != pair[1]), None)
    return f"the broker kept {len(theirs)} batches, kstore {len(ours)}; the first that differ: {first}"
