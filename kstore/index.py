"""A segment's three indexes: where to look for an offset, for a time, and which transactions were aborted.

    .index        8 bytes an entry    int32 offset - base | int32 position of the batch that ends with this offset
    .timeindex   12 bytes an entry    int64 greatest timestamp so far (ms) | int32 last offset of its batch - base
    .txnindex    34 bytes an entry    int16 version 0 | int64 producer id | int64 first offset | int64 last offset
                                      (the abort marker's) | int64 last stable offset after it

All big-endian, without a checksum. The first two are hints: an entry only says where to start looking, so a wrong one
costs time if the data found there is checked, and any bytes at all can be searched. Readers of committed records rely
on the third, so anything impossible in it is a CorruptIndexError. Losing one of them loses no data: they are rebuilt
from the log.
"""

from kstore.indexes.offset_index import OffsetIndex
from kstore.indexes.time_index import TimeIndex
from kstore.indexes.transaction_index import AbortedTransactions, TransactionIndex

__all__ = ["AbortedTransactions", "OffsetIndex", "TimeIndex", "TransactionIndex"]
