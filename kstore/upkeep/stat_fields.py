"""The statistics of a log as a dictionary, for JSON: the names that ``kstore stats`` and ``kstore report`` share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kstore.files.paths import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from kstore.types import NO_OFFSET
from kstore.upkeep.distribution import distribution_fields
from kstore.upkeep.stats import Stats

# Until the next minor release the names of an earlier one stay along with the new ones.
OLD_NAMES = {
    "segment_count": "segments",
    "size": "bytes",
    "batch_count": "batches",
    "record_count": "records",
    "start_offset": "start",
    "end_offset": "end",
    "damage_count": "damage",
}


def stat_fields(stats: Stats) -> dict[str, Any]:
    """The counts by name; a distribution with percentiles and histogram."""
    fields: dict[str, Any] = {
        "segment_count": stats.segment_count,
        "size": stats.size,
        "index_bytes": index_size(stats),
        "side_bytes": {suffix.lstrip(".") or "other": size for suffix, size in stats.side_sizes.items()},
        "batch_count": stats.batch_count,
        "empty_batches": stats.empty_batch_count,
        "record_count": stats.record_count,
        "first_timestamp": stats.first_timestamp,
        "last_timestamp": stats.last_timestamp,
        "formats": {str(magic): count for magic, count in sorted(stats.formats.items())},
        "codecs": {
            name: {"batches": codec.batch_count, "bytes": codec.size, "ratio": _rounded(codec.ratio)}
            for name, codec in sorted(stats.codecs.items())
        },
        "producer_batches": stats.producer_batch_count,
        "transactional_batches": stats.transactional_batch_count,
        "control_batches": stats.control_batch_count,
        "commits": stats.commit_count,
        "aborts": stats.abort_count,
        "segment_bytes": distribution_fields(stats.segment_sizes),
        "batch_bytes": distribution_fields(stats.batch_sizes),
        "batch_records": distribution_fields(stats.batch_records),
        "fenced_offsets": stats.fenced_count,
        "lost_offsets": stats.lost_count,
        "accepted_offsets": stats.accepted_count,
        "damage_count": stats.damage_count,
    }
    if stats.start_offset != NO_OFFSET:
        fields |= {"start_offset": stats.start_offset, "end_offset": stats.end_offset}
    if stats.elsewhere:
        fields["elsewhere"] = stats.elsewhere
    if (records := stats.records) is not None:
        fields |= {
            "decoded_records": records.record_count,
            "keyed_records": records.keyed_count,
            "tombstones": records.tombstone_count,
            "record_headers": records.header_count,
            "key_bytes": distribution_fields(records.key_sizes),
            "value_bytes": distribution_fields(records.value_sizes),
        }
    return with_old_names(fields, OLD_NAMES)


def with_old_names(fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """``fields``, then the same values by the old names of those that ``names`` has."""
    return {**fields, **{old: fields[name] for name, old in names.items() if name in fields}}


def index_size(stats: Stats) -> int:
    """Bytes of the indexes, without producer snapshots and leftovers."""
    return sum(stats.side_sizes.get(suffix, 0) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX))


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 3)
