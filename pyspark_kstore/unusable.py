"""The substitute for the data source if kstore is installed but does not load."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource


def unusable(error: Exception) -> type[DataSource]:
    """A data source ``kstore`` that raises the error at every use."""
    problem = f"kstore does not load in this Python: {type(error).__name__}: {error}"

    class DefaultSource(DataSource):
        """Reports why ``kstore`` is unusable; it has no schema, no reader and no writer."""

        @classmethod
        def name(cls) -> str:
            return "kstore"

        def __init__(self, options: dict[str, str]) -> None:
            raise ImportError(problem)

    return DefaultSource
