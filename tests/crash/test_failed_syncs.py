"""Whatever comes while the failed sync of an append is handled, its outcome stays unknown: the log is poisoned."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.programs import count_of

CALLS = ("append", "append_many")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.sampled(0, keep=("append",))
def test_an_interrupt_after_a_failed_sync_leaves_the_log_poisoned(
    call: str, directory: Path, tried: Callable[[str, int], None]
) -> None:
    count = count_of("failed_sync_life", directory, call, "interrupt")
    assert count > 10
    tried("faults", count)


@pytest.mark.skipif(importlib.util.find_spec("_testcapi") is None, reason="no allocation is refused")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.sampled(0, keep=("append",))
def test_a_lack_of_memory_after_a_failed_sync_leaves_the_log_poisoned(
    call: str, directory: Path, tried: Callable[[str, int], None]
) -> None:
    count = count_of("failed_sync_life", directory, call, "memory")
    assert count > 10
    tried("faults", count)
