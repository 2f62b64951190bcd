"""What the keys of logs are like, from compiled sketches of fixed memory (``record._runs.KeySketch``). No I/O here.

distinct keys      HyperLogLog, with Ertl's estimator (2017), which has no bias for few or many keys
most frequent      counts that are at most ``missed_count`` too low
superseded bytes   a sample of keys: all their records against the last one of each
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, log, sqrt
from typing import Any, NamedTuple

from kstore.record._runs import KeySketch, greatest_bytes

FREQUENT_MAX = 10
REGISTER_COUNT = 1 << 14
# The greatest rank: that of 50 zeros.
RANK_MAX = 51
# The standard error of a HyperLogLog with this many registers: 0.8 %.
DISTINCT_ERROR = 1.04 / sqrt(REGISTER_COUNT)


class FrequentKey(NamedTuple):
    """A key with at least ``record_count`` records; ``start`` are its first bytes."""

    record_count: int
    hash: int
    size: int
    start: bytes


@dataclass(slots=True)
class KeySummary:
    """The keys of a log, or after ``merge`` of a topic.

    ``sampled_bytes`` is an estimate of the bytes of all keyed records in sealed segments, and ``last_bytes`` of those
    that are the last of their key, both from ``sampled_count`` keys.
    """

    keyed_count: int = 0
    missed_count: int = 0
    registers: bytes = b""
    frequent: list[FrequentKey] = field(default_factory=list)
    sampled_count: int = 0
    sampled_bytes: int = 0
    last_bytes: int = 0

    @classmethod
    def of(cls, sketch: KeySketch) -> KeySummary:
        if not sketch.keyed_count:
            return cls()
        frequent = [FrequentKey(*row) for row in sketch.frequent(FREQUENT_MAX)]
        count, total, last = sketch.sampled()
        # Each sampled key stands for as many as were left out.
        sums = (total << sketch.level, last << sketch.level)
        return cls(sketch.keyed_count, sketch.missed_count, sketch.registers(), frequent, count, *sums)

    @property
    def superseded_share(self) -> float | None:
        """The estimated share of keyed bytes in sealed segments that later records replace; None without a sample."""
        return (self.sampled_bytes - self.last_bytes) / self.sampled_bytes if self.sampled_bytes else None

    def merge(self, other: KeySummary) -> None:
        """Adds another partition of the topic. The error of counts then holds for keys that are in one partition."""
        if not other.keyed_count:
            return
        self.keyed_count += other.keyed_count
        self.missed_count = max(self.missed_count, other.missed_count)
        self.registers = greatest_bytes(self.registers, other.registers) if self.registers else other.registers
        together: dict[int, FrequentKey] = {}
        for key in (*self.frequent, *other.frequent):
            known = together.get(key.hash)
            together[key.hash] = (
                key if known is None else key._replace(record_count=key.record_count + known.record_count)
            )
        self.frequent = sorted(together.values(), key=lambda key: -key.record_count)[:FREQUENT_MAX]
        self.sampled_count += other.sampled_count
        self.sampled_bytes += other.sampled_bytes
        self.last_bytes += other.last_bytes

    def fields(self, *, with_keys: bool) -> dict[str, Any]:
        """For the document: shares and counts, and only ``with_keys`` the keys themselves."""
        counts = [key.record_count for key in self.frequent]
        fields: dict[str, Any] = {
            "keyed": self.keyed_count,
            "distinct": min(round(distinct_count(self.registers)), self.keyed_count),
            "distinct_error": round(DISTINCT_ERROR, 4),
            "most_frequent": counts,
            "frequent_error": self.missed_count,
            "sampled_keys": self.sampled_count,
            "superseded_share": None if self.superseded_share is None else round(self.superseded_share, 4),
        }
        if with_keys:
            fields["frequent_keys"] = [
                {
                    "key": key.start.decode("utf-8", "backslashreplace"),
                    "cut": len(key.start) < key.size,
                    "size": key.size,
                    "records": key.record_count,
                }
                for key in self.frequent
            ]
        return fields


def distinct_count(registers: bytes) -> float:
    """The number of distinct keys by the registers of a HyperLogLog (Ertl: New cardinality estimation algorithms)."""
    if not registers:
        return 0.0
    counts = [registers.count(rank) for rank in range(RANK_MAX + 1)]
    total = float(REGISTER_COUNT)
    z = total * _tau(1 - counts[RANK_MAX] / total)
    for rank in range(RANK_MAX - 1, 0, -1):
        z = 0.5 * (z + counts[rank])
    z += total * _sigma(counts[0] / total)
    return total * total / (2 * log(2) * z)


def _sigma(x: float) -> float:
    if x == 1:
        return inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x *= x
        before = z
        z += x * y
        y += y
    return z


def _tau(x: float) -> float:
    if x in (0.0, 1.0):
        return 0.0
    y, z, before = 1.0, 1 - x, -1.0
    while z != before:
        x = sqrt(x)
        before = z
        y *= 0.5
        z -= (1 - x) ** 2 * y
    return z / 3
