"""The parts of a segment, one file each; ``kstore.segment`` puts them together.

A segment is its files, its place in the log, and, while it is active, its end. An append goes to `tail`, which writes
the `.log` and notes index entries; `_numbers` counts compiled what each note needs. A lookup asks `places` for offsets
and positions, and `pin` for the file that a name stood for when its reader began.

    files       the files of one segment: created, renamed and removed together
    tail        the writer's end of the active segment
    resume      what the last writer knew, found again without a scan
"""
