"""Maintenance of logs: verify, recover, explain, mirror, hand over, count.

Why
===

`verify` takes a run as checked, and compares its batches with what the other files say, in compiled code
(`record/_runs_checks.pxi`): the entries of both indexes, leader epochs, gaps, and the ends of transactions. That code
finds contradictions; Python describes them. A batch that needs a decision is handled by itself: an abort marker, and
a producer's batch at which a snapshot is compared. Only the records of a compressed batch are checked by themselves,
after their library has decompressed them. `tests/property/test_verify_properties.py` compares it with a verification
of single batches.

**A search for text** (`kstore grep`) looks for it in the bytes of whole runs and batches, and decodes only the
records whose keys, values or headers hold it (`record/_runs_find.pxi`): 64 positions at a time, by the two bytes of
the text that are rarest in the first bytes of the data. Rejected: `bytes.find`, which needs 1 ns a byte for texts of
two to four bytes, and decoding every record of a chunk that holds a match. Batches without the text cost their CRC,
so records that do not fit their batch stay unnoticed there; `kstore verify` finds them.
"""
