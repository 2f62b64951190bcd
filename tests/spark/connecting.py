"""Runs a streaming query again if Spark did not wait for its Python process.

Spark gives the process of a streaming source ten seconds to start and has no setting for it; on a busy machine that is
too short. Nothing has been read then, and the query is started again, as an operator would do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tests.support.harness.evidence import Hung

STARTS_MAX = 10
NO_WORKER = "Python worker failed to connect back"

Result = TypeVar("Result")


def connected(run: Callable[[], Result]) -> Result:
    """What ``run`` returns once its process was in time. Raises: any other error of ``run``; Hung after many starts."""
    from pyspark.errors import StreamingQueryException

    for _ in range(STARTS_MAX):
        try:
            return run()
        except StreamingQueryException as error:
            if NO_WORKER not in str(error):
                raise
    raise Hung(f"none of {STARTS_MAX} Python processes connected back to Spark")
