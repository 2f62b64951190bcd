"""One scan of a segment, and what it shows to visitors.

`visit` drives a walk over the batches of a segment (`record.walk`, `record.headers`) and shows each visitor the runs,
the single batches, the damage between them, and the offsets that are known to be lost. So where a batch is expected,
what a gap means, and when a run must be taken apart is decided once. A visitor has one job; verification, statistics,
recovery and the rebuilding of indexes are lists of them.

The floor lies below `indexes` and `segments`, because the builder of an index and the end of the active segment are
visitors too. It takes bytes, not a segment, and does no I/O except to drop what was read (`Progress`).

    visits        the scan itself, `Visitor`, and the visitors that several rooms need

Rejected: one walk for all. Recovery and verification check every record; statistics believe headers, and search only
where these contradict each other. The walk is the caller's, and what follows from it is here. The runs that statistics
count in compiled code, up to the first batch that needs a decision, are not walked at all.

Rejected: searches (`upkeep.search`) as visitors. A search is a read: it ends at the high watermark or the last stable
offset, leaves aborted records out, and looks again when a segment is replaced. All that is in the log's readers.

Rejected: a copy's bytes as a visitor's work (`upkeep.mirror.compare`). A mirror passes on each piece as it checks it,
and compares up to the first difference: both are loops around a walk. Only the end of a copy is a scan.

Rejected: the walks that end at the first batch they want (lookups, the largest timestamp, the end of a segment). They
are questions to a segment; a visitor would have to stop the scan, and each would be longer than its loop.
"""
