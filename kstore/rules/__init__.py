"""Decisions as pure functions over values: what to accept, when to roll, where recovery cuts.

The engine looks, asks a rule, and acts. A rule has no files, clocks or locks, so a test can try every case of it, and a
reader finds each promise in one place.

    append      arguments  validate  sequence       what a log accepts
    time        roll  retain  compact               when a segment ends, what goes, what compaction keeps
    damage      recover  losses  evidence           where recovery cuts, and what counts as lost
    stores      topics  internal_topics  handover  mirror
    shown       visible  notebook                   text and pictures that disturb nothing
    deprecated                                      names of the last release
"""
