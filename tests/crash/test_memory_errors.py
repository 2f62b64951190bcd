"""Every allocation of a call is refused once: an append is whole or absent, a queue loses no item, and both go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.types import Durability
from tests.crash.log_life import DURABILITIES
from tests.crash.programs import count_of
from tests.support.harness.selection import tries

pytest.importorskip("_testcapi", reason="this interpreter was built without its test module: no allocation is refused")

QUICK = ("append", "append_many", "roll", "open")
CALLS = (*QUICK, "append_batches", "transaction", "flush", "read")
QUEUE_CALLS = ("put", "put many", "get", "get one", "get expired", "nack", "extend", "ack", "ack one", "ack noted")
PRODUCER_CALLS = ("write", "write-many", "result", "round")


@pytest.mark.promise("whole or absent")
@pytest.mark.parametrize(("call", "durability"), [*((call, "sync") for call in QUICK), ("append", "os")])
@pytest.mark.sampled(1, keep=("append-os",))
def test_no_refused_allocation_leaves_half_an_append(
    call: str, durability: Durability, directory: Path, tried: Callable[[str, int], None]
) -> None:
    count = count_of("memory_error_life", directory / "log", call, durability)
    assert count > 50
    tried("faults", count)


@pytest.mark.parametrize("call", QUEUE_CALLS)
@pytest.mark.parametrize("whose", ["alone", "shared"])
@pytest.mark.sampled(1)
def test_no_refused_allocation_loses_an_item_of_a_queue(
    whose: str, call: str, directory: Path, tried: Callable[[str, int], None]
) -> None:
    count = count_of("queue_memory_life", directory / "store", call, whose)
    assert count > 3  # a put is one compiled append
    tried("faults", count)


@pytest.mark.promise("whole or absent")
@pytest.mark.parametrize("call", PRODUCER_CALLS)
@pytest.mark.sampled(1)
def test_no_refused_allocation_loses_or_repeats_a_record_of_a_producer(
    call: str, directory: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    step = tries(1, quick=3)
    count = count_of("producer_memory_life", directory / "stores", call, seed % step, step)
    assert count > 30 // step
    tried("faults", count)


def test_no_refused_allocation_changes_what_a_compiled_call_was_given(tried: Callable[[str, int], None]) -> None:
    count = count_of("compiled_memory_life")
    assert count > 1000
    tried("faults", count)


@pytest.mark.soak
@pytest.mark.promise("whole or absent")
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("call", CALLS)
def test_every_call_survives_every_refused_allocation(
    call: str, durability: Durability, directory: Path, tried: Callable[[str, int], None]
) -> None:
    count = count_of("memory_error_life", directory / "log", call, durability)
    assert count > 50
    tried("faults", count)
