"""Reads: records out of what is published. They take no lock, and the same code serves a writer's log and a view.

A read takes the ``ends`` of its ``source`` once. It finds the segment, then the index entry at or before its offset,
and reads ahead from there; the batches are checked and decoded by compiled code. If something is wrong it looks again:
only what is still wrong after the same ``truncation_count`` is damage.

    reads         what readers ask of a log, and the second look
    reader        a range of offsets, as an iterator; onward: the same for what was just appended
    lookup        one record
    fetch         one slice of a segment, named and not read; checking: that a slice is sound before it is sent
    times         records by time; segment_times: the greatest time of each segment, kept in memory
    columns       Arrow tables, out and in
    describe      what ``repr`` says; metrics: what ``metrics()`` measures
"""
