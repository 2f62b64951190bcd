"""How far a streaming query is behind its logs, from what Spark says of its progress.

Spark's Kafka source reports this as metrics of its own; a source in Python can only report where its logs end
(``reportLatestOffset``), and Spark adds that to each source of a progress.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from kstore.errors import ConfigError

Offsets = dict[tuple[str, str], int]


class Behind(NamedTuple):
    """Offsets that were readable and not in the micro-batch yet: over all partitions, as Spark's Kafka source counts
    them (``avgOffsetsBehindLatest``, ``maxOffsetsBehindLatest``, ``minOffsetsBehindLatest``)."""

    avg: float
    max: int
    min: int


def behind(progress: Any, *, source: int = 0) -> Behind | None:
    """How far the query of ``progress`` was behind the ends of its logs when that micro-batch was planned.

    Args:
        progress: ``query.lastProgress``, ``event.progress`` of a listener, or either as JSON.
        source: the number of the kstore source in the query, from 0.

    Returns: None without a progress, and before a source has reported an end. Raises: ConfigError for a source that
    does not exist, or is not one of kstore's.
    """
    if progress is None:
        return None
    report = _as_dict(progress)
    sources = report.get("sources") or []
    if not 0 <= source < len(sources):
        raise ConfigError(f"the query has {len(sources)} sources, expected source {source} among them")
    one = sources[source]
    latest, read = _offsets(one.get("latestOffset")), _offsets(one.get("endOffset"))
    if not latest:
        return None
    # A partition that no micro-batch has reached is new: all of it is to come.
    counts = [max(offset - read.get(owner, 0), 0) for owner, offset in latest.items()]
    return Behind(sum(counts) / len(counts), max(counts), min(counts))


def _as_dict(progress: Any) -> Mapping[str, Any]:
    if isinstance(progress, Mapping):
        return progress
    text = progress if isinstance(progress, str) else progress.json
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ConfigError(f"a progress is a JSON object, found {type(found).__name__}")
    return found


def _offsets(given: Any) -> Offsets:
    """``{"topic": {"0": 23}}``, as text or as a value; nothing for null."""
    value = json.loads(given) if isinstance(given, str) else given
    if value is None:
        return {}
    try:
        return {
            (topic, partition): int(offset)
            for topic, partitions in value.items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"the source's offset is {value!r:.100}, which is not of kstore's form") from None
