"""Everything under ``Log``: opens, appends to, reads and maintains one log.

Five rooms, each with a map of its files, and what they share::

    over/       what is built on reads and appends: find and accept damage, foreign batches, ends of transactions
    append/     records in: offsets, one write, publication, or nothing
    read/       records out: by offset, by time, as slices, as columns
    change/     what else changes the files: roll, flush, truncation, retention; who waits for that
    open/       what the files say when a log is opened, and what a crash has left of them

    what a log is          ends, segments, source (what readers need of it)
    producers              producers (their state), head_search (what the headers of batches say of them)
    open for writing       files (its state, shown to readers in one place), writer (puts what changes it together)
    open for reading       view, known_names (what spares it a listing)
    whose turn             turn, others (processes that share the log)
    further files          directory (what may be a log), index_repairs

``log.py`` puts the writer, or the view, together with what reads. An append goes from ``append`` through ``files`` to
the segment's tail, and out as new ``ends``; a read takes the ``ends`` once, and then needs no lock.

Why
===

Rejected: `SortedDict` for the segment map. The map is one immutable value, replaced by one store
(`engine/segments.py`). A floor in it takes 0.7 us, in a `SortedDict` of 10,000 segments 3.4 us; readers need no lock,
where a `SortedDict` builds its index while it is read; and a refused allocation cannot leave it half changed. A
MemoryError inside `SortedDict.__setitem__` once left a key without its value: the roll could not be undone, and the
log was poisoned. Adding a segment copies the map (0.2 ms at 10,000 segments), but a roll is rare and a lookup is not.
"""
