"""What stands on reads and appends, and needs both or the whole writer.

    check           reads the log from end to end, and accepts the loss of what is damaged
    foreign         batches that were built elsewhere: parsed, checked and given offsets, or kept as they are
    transactions    producers, and the markers that end their transactions

``log.py`` hands its calls to them; nothing else in the engine needs them.
"""
