"""Whole jobs on logs, for Spark: ``kstore spark <job>``, or a job's file for ``spark-submit``.

A job's module has a function for programs, which takes a session, and ``main(arguments)``, which returns the exit
status. Options are checked before a session starts. A job's work on one piece of a log is a function of plain values,
which runs and is tested without Spark; ``spread`` runs it on the executors.
"""

from __future__ import annotations

# By name: a short description.
JOBS = {
    "compact": "Keep the last record of each key, in a new store.",
    "export": "Write records to Parquet by date or hour, each once; continues where it ended.",
    "rebuild-indexes": "Deprecated: rebuild missing or damaged indexes.",
    "repartition": "Deprecated: rewrite a topic with another number of partitions.",
    "stats": "Count what logs contain, over time.",
    "verify": "Check every batch, index entry and snapshot.",
}
