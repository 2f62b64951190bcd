"""Opening a log for writing: what its files say, and what a crash has left of them.

``opening`` locks and lists the directory, and believes the record in ``kstore.state`` if the files fit it. Otherwise
``recovery`` scans the segments from the recovery point on, decides what damage means, and cuts or fences it. Both end
in ``Loaded`` (``files``), from which the writer is made. A crash may come at any step: the next open starts again.

    opening               lock, list, believe or recover
    recovery              scans, decides, cuts
    evidence              what other files prove of records that are gone
    segment_end           where the last whole batch of a segment ends
    transaction_rebuild   indexes of transactions, from the batches
    swap, split           one segment in the place of others, and a segment whose offsets are too far apart in parts
"""
