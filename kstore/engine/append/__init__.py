"""Appends: batches get their offsets, are written and published, completely or not at all.

Records come in as values and are encoded into a ``pending`` append, before any lock is taken. With the log's turn it
gets its offsets, is written with one call, noted for the indexes, and published as new ``ends``; an error before that
cuts the files back, and one after it leaves the append in the log. Then followers are woken.

    appends      the general path, which decides: a roll, offsets that are kept, producers, several appends at once
    pending      one append in progress, and the buffers that are used again
    (compiled)   _single: one plain record, not synced; _group, _synced: synced ones, of several threads at once;
                 _placed: batches that certainly go into the active segment

The compiled paths do what the general one does where nothing needs a decision, and otherwise nothing at all.
"""
