"""The segment indexes, one file each; ``kstore.index`` is their public module.

An index is a hint: it says where to begin to read, and the batches there say whether that is so. `entry_index` is what
the two searchable ones share: entries of one size, sorted, mapped while they grow and bytes afterwards. `_search` is
its compiled search.

    offset_index        offset -> position, 8 bytes an entry
    time_index          greatest timestamp so far -> offset, 12 bytes an entry
    transaction_index   aborted transactions, which committed reads trust: it is as durable as the log
    transaction_sizes   how long each of those must be, so that the loss of one shows
    rebuild             both searchable ones from the batches
    stored              where the entries end in a file that a broker has allocated ahead
"""
