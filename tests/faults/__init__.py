"""Lives x faults: one preparation, one body and one check for each life, and one harness that strikes it.

``lives.py`` lists the lives, ``harness.py`` strikes at their file operations, ``places.py`` between them, and
``table.py`` says which cells exist. A life is over with the first error that its body does not catch; then its check
opens the disk as it is, and as a power cut leaves it. The disk is in memory: the system's locks, descriptors and
compiled writes have tests of their own in ``crash/``. ``python -m tests.faults`` prints the table.
"""
