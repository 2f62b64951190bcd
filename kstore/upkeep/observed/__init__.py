"""What statistics learn of a log besides counts, in the same pass and in fixed memory: times, transactions, keys.

observations    the visitor that `upkeep.stats` shows what it counts
timeline        bytes and records by time
transactions    those that ended, and those that are open
keys            how many there are, the most frequent ones, and what compaction would free
"""
