"""What a finding of a verification means for the log's users, and what they can do: the words around its reason."""

from __future__ import annotations

from collections.abc import Callable

from kstore.types import NO_OFFSET, NO_TIMESTAMP
from kstore.upkeep.verify.findings import Finding

# What damage to files that hold no records means, by kind.
NO_RECORD_IS_LOST = {
    "index": "no record is lost; a lookup by offset may be slow until the index is rebuilt",
    "timeindex": "no record is lost; a search by time may miss records until the index is rebuilt",
    "txnindex": "no record is lost; a committed read may return aborted records until the index is rebuilt",
    "snapshot": "no record is lost; a producer may be refused, or repeat a batch, until the snapshot is replaced",
    "state": "no record is lost; the next open for writing checks the whole log",
    "epochs": "no record is lost; the next open for writing rebuilds the leader epochs",
    "checkpoint": "no record is lost; the store's next writer replaces the checkpoint",
    "name": "it cannot be read, and was not checked",
}
# What to do about damage, by group, in the order in which the groups are shown. A command follows.
ADVICE = {
    "batch": "Restore the log from a copy, or let reads continue without these records",
    "tail": "Restore the log from a copy, or cut what is incomplete, as the next open for writing does",
    "state": "Check the whole log, and store its state",
    "txnindex": "Rebuild the transaction indexes",
    "timeindex": "Rebuild the time indexes",
    "index": "Rebuild the offset indexes",
    "snapshot": "Remove the wrong snapshots",
    "epochs": "Rebuild the leader epochs",
}
# What does not exist any more, in contrast to damaged bytes that are still there.
MISSING = ("lost", "state", "checkpoint")


def advice_group(kind: str) -> str:
    """The group of findings of ``kind``, which one command repairs: a key of ``ADVICE`` if there is advice."""
    return "batch" if kind == "lost" else kind


def is_loss(finding: Finding) -> bool:
    """Whether it says that records cannot be read."""
    if finding.severity != "damage":
        return False
    return finding.kind in ("batch", "lost", "tail") or (finding.kind in MISSING and finding.first != NO_OFFSET)


def records_of(first: int, last: int, *, is_dense: bool = False) -> str:
    """The records of offsets ``first`` to ``last``, both inclusive, in words: "41 records, offsets 81 to 121,".

    ``is_dense``: each of them has a record, as is usual in a log that was not compacted.
    """
    if first >= last:
        return f"1 record, offset {first},"
    return f"{'' if is_dense else 'up to '}{last - first + 1:,} records, offsets {first} to {last},"


def consequence(finding: Finding, *, is_dense: bool = False) -> str:
    """One sentence without an end mark; "" for a note, which has none. ``is_dense``: as for ``records_of``."""
    first, last = finding.first, finding.last
    if finding.severity == "note":
        return ""
    if not is_loss(finding):
        return NO_RECORD_IS_LOST[finding.kind]
    if finding.kind == "tail" and last == NO_OFFSET:
        return f"nothing from offset {first} on can be read: the log ends with a batch that is incomplete or damaged"
    if first == NO_OFFSET:
        return "its records cannot be read"
    if last == NO_OFFSET:
        return f"the records from offset {first} on cannot be read"
    verb = "cannot be read" if finding.kind not in MISSING else "is missing" if first >= last else "are missing"
    return f"{records_of(first, last, is_dense=is_dense)} {verb}"


def times_around(finding: Finding, text: Callable[[int], str]) -> str:
    """The times of the records around those that cannot be read, which ``text`` shows; "" if they are not known."""
    after, before = finding.after_ms, finding.before_ms
    if not is_loss(finding) or (after == before == NO_TIMESTAMP):
        return ""
    subject = "it" if finding.kind == "tail" else "them"
    told = [f"up to {text(after)} before {subject}"] if after != NO_TIMESTAMP else []
    if before != NO_TIMESTAMP:
        told.append(f"up to {text(before)} in the batch after {subject}")
    return f"times: {', '.join(told)}"
