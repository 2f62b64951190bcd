"""Whole jobs on logs, for Spark: ``kstore spark <job>``, or a job's file for ``spark-submit``.

A job's module has a function for programs, which takes a session, and ``main(arguments)``, which returns the exit
status. Options are checked before a session starts. What a job does to one piece of a log is a function over plain
values, which runs and is tested without Spark; ``spread`` brings it to the executors.
"""

from __future__ import annotations

__all__ = ["JOBS"]

# By name: what it does, in a few words.
JOBS = {
    "compact": "Keep the last record of each key, in a new store or as Parquet.",
    "export": "Write records to Parquet by date or hour, each once; goes on where it ended.",
    "rebuild-indexes": "Make indexes that are missing or damaged anew.",
    "repartition": "Rewrite a topic with another number of partitions.",
    "stats": "Count what logs are made of, over time.",
    "verify": "Check every batch, index entry and snapshot.",
}
