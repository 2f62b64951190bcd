"""The distribution of many values in little memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kstore.types import OFFSET_MAX

# Two neighbouring buckets differ by at most 1/16; record/_runs_counts.pxi has the same ones.
BUCKET_BITS = 4
PERCENTILES = (50, 90, 99)


class Bar(NamedTuple):
    """``value_count`` values lie from ``low`` to ``high``, both inclusive."""

    low: int
    high: int
    value_count: int


@dataclass(slots=True)
class Distribution:
    """The distribution of values, 0 and above: count, sum and extremes exactly, the rest to 1/16, in little memory."""

    count: int = 0
    sum: int = 0
    maximum: int = 0
    minimum: int = OFFSET_MAX
    _counts: dict[int, int] = field(default_factory=dict)

    def add(self, value: int, count: int = 1) -> None:
        """Adds ``value``, ``count`` times."""
        self.count += count
        self.sum += value * count
        if value > self.maximum:
            self.maximum = value
        if value < self.minimum:
            self.minimum = value
        shift = max(value.bit_length() - BUCKET_BITS - 1, 0)
        bucket = (shift << BUCKET_BITS) + (value >> shift)
        self._counts[bucket] = self._counts.get(bucket, 0) + count

    def merge(self, other: Distribution) -> None:
        self.merge_counts(other.count, other.sum, other.minimum, other.maximum, other._counts)

    def merge_counts(self, count: int, total: int, minimum: int, maximum: int, counts: Mapping[int, int]) -> None:
        """Adds ``count`` values of which ``counts`` lie in each bucket (``RunCounts.spreads``)."""
        self.count += count
        self.sum += total
        self.minimum = min(self.minimum, minimum)
        self.maximum = max(self.maximum, maximum)
        for bucket, more in counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + more

    def percentile(self, percent: float) -> int:
        """A value that ``percent`` of all do not exceed, at most 1/16 too high; 0 without values."""
        rank = max(-(-self.count * percent // 100), 1)
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                return max(min(_bucket_end(bucket), self.maximum), self.minimum)
        return 0

    def histogram(self) -> list[Bar]:
        """Bars by powers of two, from the lowest to the highest with values, with empty ones in between."""
        by_bits: dict[int, int] = {}
        for bucket, count in self._counts.items():
            bits = _bucket_end(bucket).bit_length()
            by_bits[bits] = by_bits.get(bits, 0) + count
        if not by_bits:
            return []
        return [
            Bar((1 << bits) >> 1, (1 << bits) - 1, by_bits.get(bits, 0))
            for bits in range(min(by_bits), max(by_bits) + 1)
        ]


def _bucket_end(bucket: int) -> int:
    """The greatest value in the bucket."""
    shift = max((bucket >> BUCKET_BITS) - 1, 0)
    return ((bucket - (shift << BUCKET_BITS) + 1) << shift) - 1


def distribution_fields(values: Distribution) -> dict[str, Any]:
    """A distribution by name; only its count if that is 0."""
    if not values.count:
        return {"count": 0}
    return {
        "count": values.count,
        "sum": values.sum,
        "min": values.minimum,
        **{f"p{percent}": values.percentile(percent) for percent in PERCENTILES},
        "max": values.maximum,
        "histogram": [list(bar) for bar in values.histogram()],
    }
