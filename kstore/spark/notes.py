"""What a query logs once, when it is planned: where it differs from the same query of Spark's own Kafka source.

The texts go to the log of the process that plans; no query fails because of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from kstore.files.paths import TopicPartition
from kstore.spark.options import ReadOptions
from kstore.spark.plan import Split
from kstore.spark.ranges import Held

logger = logging.getLogger(__name__)

# How many logs a note names.
SHOWN_MAX = 3
MIB = 1 << 20


def note_ignored(names: Sequence[str]) -> None:
    """Names the options without a meaning here."""
    if names:
        logger.warning(
            "%s: for a client of a Kafka broker, and ignored: kstore reads and writes the files themselves",
            ", ".join(sorted(names)),
        )


def note_isolation(options: ReadOptions, splits: Iterable[Split], held: Iterable[Held] = ()) -> bool:
    """Names the logs in which a query's rows depend on an isolation level that its user did not choose.

    Returns: whether any was named.
    """
    if not options.isolation_is_default:
        return False
    aborted = {
        f"{piece.place.topic}-{piece.place.partition}" for split in splits for piece in split.pieces if piece.aborted
    }
    undecided = {str(log.owner) for log in held if log.end_offset < log.high_watermark}
    differences = [
        what + _some(names)
        for what, names in (
            ("records of aborted transactions are left out of ", aborted),
            ("reading ends before the first open transaction of ", undecided),
        )
        if names
    ]
    if differences:
        logger.warning(
            "isolationLevel is read_committed by default: %s. Spark's Kafka source reads all of these by default: set "
            "isolationLevel to read_uncommitted to do so too, or to read_committed to confirm the default",
            " and ".join(differences),
        )
    return bool(differences)


def note_search(owner: TopicPartition, file_bytes: int, read_bytes: int) -> None:
    """Names a log in which the search for transactions reads much before any task starts."""
    logger.warning(
        "%s: to find where committed records end, planning reads the headers of the batches after the last producer "
        "snapshot. It has read %.1f MiB of %.1f MiB, and goes on, perhaps in other logs too. If no transaction was "
        "aborted or is open, isolationLevel=read_uncommitted gives the same rows and reads none of this",
        owner,
        read_bytes / MIB,
        file_bytes / MIB,
    )


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - SHOWN_MAX} more" if len(ordered) > SHOWN_MAX else ""
    return ", ".join(ordered[:SHOWN_MAX]) + more
