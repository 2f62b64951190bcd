"""Errors of kstore in Spark: their one sentence at the end of what Spark shows, and out of it again."""

from __future__ import annotations

import re
from contextlib import ContextDecorator
from types import TracebackType

from kstore.errors import KstoreError

# The last line of a traceback that Spark shows as text, for its message.
RAISED = re.compile(r"(?:^|(?<=\s))kstore(?:\.\w+)*\.[A-Z]\w*: ([^\n]*)")


class without_causes(ContextDecorator):
    """Around what Spark calls, also as a decorator: an error of kstore leaves it without causes and inner frames.

    Spark passes errors on as text, causes first. An error's own message says everything that a user needs.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, KstoreError):
            error.__cause__ = None
            error.__suppress_context__ = True
            error.__traceback__ = None


def sentence(error: BaseException) -> str | None:
    """The sentence of kstore in an error that Spark raised, without what Spark wrote around it.

    Args:
        error: any error of a Spark job: of a batch, of a streaming query, through py4j or through Spark Connect.

    Returns: The message of kstore's error; None if the error is not one of kstore.
    """
    if isinstance(error, KstoreError):
        return " ".join(str(error).split("\n"))
    found = RAISED.findall(str(error))
    return found[-1].strip() if found else None
