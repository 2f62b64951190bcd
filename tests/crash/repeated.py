"""A call that a program repeats after a failure, within the life of a log or store."""

from __future__ import annotations

from collections.abc import Callable

from kstore.errors import KstoreError
from tests.support.fakes.fake_fs import FailingFs, WatchedFs
from tests.support.harness.evidence import Wrong


def repeated(fs: WatchedFs, call: Callable[[], object], *, may_fail: tuple[type[KstoreError], ...] = ()) -> None:
    """Calls ``call``, and once more if it fails with an error of kstore.

    Raises: Wrong if the second call fails though no operation of the disk fails in it, unless with ``may_fail``; else
    what the second call raises.
    """
    try:
        call()
    except KstoreError:
        before = failure_count(fs)
        try:
            call()
        except may_fail:
            raise
        except KstoreError as error:
            if failure_count(fs) == before:
                raise Wrong(f"the second call fails with {error!r}, but the disk works") from error
            raise


def failure_count(fs: WatchedFs) -> int:
    """How many operations have failed."""
    return len(fs.inner.failures) if isinstance(fs.inner, FailingFs) else 0
