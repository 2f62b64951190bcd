"""The kind of file that ``kstore export`` writes and ``kstore import`` reads, by its name."""

from __future__ import annotations

from pathlib import Path

FORMS = ("parquet", "csv", "jsonl")
SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def form_of(file: str) -> str | None:
    """The form that the name of ``file`` indicates, or None."""
    return SUFFIXES.get(Path(file).suffix.lower())
