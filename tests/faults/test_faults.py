"""Each life meets each fault: what had returned before it holds, and what was under way is whole or absent."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.crash.power_cuts import SOAK_STATES
from tests.crash.programs import last_line
from tests.faults.harness import AT_OPERATIONS, Harness
from tests.faults.lives import LIVES, machine_in_memory
from tests.faults.places import PLACES
from tests.faults.table import BY_HAND, COUNTS, FAULTS, LIFE_NAMES, PROMISES, grid
from tests.support.fakes.memory_fs import Machine
from tests.support.harness.catalogue import ROOT
from tests.support.harness.selection import is_quick, tries
from tools.crash.fault_bugs import FAULT_BUGS
from tools.crash.mutant import Mutant

pytestmark = [
    # A log whose open or close failed is just dropped.
    pytest.mark.usefixtures("abandons_logs"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
Tried = Callable[[str, int], None]
# How often a cell is tried that has no counts of its own, and in how many variants of its life; in ``make soak`` all
# file operations fail.
COUNT, STATES, VARIANTS = tries(30, quick=1), tries(60, quick=1), tries(2, quick=1)
BETWEEN = tries(12, quick=2)
ALL = 10**9
# What is counted, if not faults.
KINDS = {"power cut": "states", "kill": "kills"}


def cells(faults: Iterator[str] | tuple[str, ...]) -> pytest.MarkDecorator:
    """Every life with each of ``faults``, as ``store-failed_sync``."""
    return pytest.mark.parametrize(
        ("life", "fault"),
        [
            pytest.param(life, fault, id=id_of(life, fault), marks=pytest.mark.promise(*promises_of(life, fault)))
            for fault in faults
            for life in LIFE_NAMES
        ],
    )


def id_of(life: str, fault: str) -> str:
    return f"{life}-{fault.replace(' ', '_')}"


def promises_of(life: str, fault: str) -> tuple[str, ...]:
    counts = COUNTS.get((life, fault))
    return (PROMISES[fault], *(counts.also if counts else ()))


def cells_of(bug: Mutant) -> list[str]:
    """The cells that must catch a planted bug."""
    return [name.partition("[")[2].removesuffix("]") for name in bug.tests.split()]


AT_AN_OPERATION = cells(("power cut", "kill", *AT_OPERATIONS))
BETWEEN_OPERATIONS = cells(tuple(PLACES))


@pytest.fixture
def machine() -> Iterator[Machine]:
    with machine_in_memory() as machine:
        yield machine


def counts_of(life: str, fault: str) -> tuple[int, int, int]:
    """How many states, how many kills or faults, and in how many variants of the life."""
    counts = COUNTS.get((life, fault))
    if counts is None:
        return STATES, COUNT, VARIANTS
    count = tries(counts.full, quick=counts.quick)
    return count, count, counts.variants


def strike(harness: Harness, fault: str, count: int, states: int) -> int:
    """Returns how often the fault struck."""
    if fault == "power cut":
        return harness.cut_power(states)
    return harness.kill(count) if fault == "kill" else harness.fail(fault, count)


@AT_AN_OPERATION
@pytest.mark.sampled(4, keep=[id_of(*cell) for cell in COUNTS])
def test_a_fault_at_an_operation_costs_a_life_nothing_that_returned(
    life: str, fault: str, machine: Machine, seed: int, tried: Tried
) -> None:
    states, count, variants = counts_of(life, fault)
    struck = 0
    for variant in range(variants):
        struck += strike(Harness(LIVES[life], machine, seed + variant), fault, count, states)
    assert struck
    tried(KINDS.get(fault, "faults"), struck)


@pytest.mark.soak
@AT_AN_OPERATION
@pytest.mark.parametrize("variant", range(4))
def test_a_fault_at_any_operation_costs_a_life_nothing_that_returned(
    life: str, fault: str, variant: int, machine: Machine, seed: int, tried: Tried
) -> None:
    counts = COUNTS.get((life, fault))
    states = SOAK_STATES // (counts.soak if counts else 500)
    struck = strike(Harness(LIVES[life], machine, seed + variant), fault, ALL, states)
    assert struck
    tried(KINDS.get(fault, "faults"), struck)


def strike_between(life: str, fault: str, count: int, seed: int) -> int:
    return int(last_line("-m", "tests.faults.places", fault, life, str(count), str(seed)))


@BETWEEN_OPERATIONS
@pytest.mark.sampled(1, keep=("store-refused_allocation",))
def test_a_fault_between_operations_costs_a_life_nothing_that_returned(
    life: str, fault: str, seed: int, tried: Tried
) -> None:
    if fault == "refused allocation":
        pytest.importorskip("_testcapi", reason="this interpreter was built without its test module")
    struck = strike_between(life, fault, BETWEEN, seed)
    # A life may swallow a few refusals.
    assert struck or is_quick()
    tried("faults", struck)


@pytest.mark.soak
@BETWEEN_OPERATIONS
def test_many_faults_between_operations_cost_a_life_nothing_that_returned(
    life: str, fault: str, seed: int, tried: Tried
) -> None:
    if fault == "refused allocation":
        pytest.importorskip("_testcapi", reason="this interpreter was built without its test module")
    tried("faults", strike_between(life, fault, 1000, seed + 1))


def test_the_table_has_each_life_with_each_fault() -> None:
    assert tuple(LIVES) == LIFE_NAMES
    assert {"power cut", "kill", *AT_OPERATIONS, *PLACES} == set(FAULTS)


def test_the_files_that_the_table_names_exist() -> None:
    named = {name for names in BY_HAND.values() for name in names.split()}
    assert [name for name in named if not (ROOT / "tests" / f"{name}.py").is_file()] == []
    assert [cell for cell in (*BY_HAND, *COUNTS) if cell[0] not in LIFE_NAMES or cell[1] not in FAULTS] == []


def test_a_quick_run_keeps_each_cell_that_must_catch_a_planted_bug() -> None:
    assert {cell for bug in FAULT_BUGS for cell in cells_of(bug)} <= {id_of(*cell) for cell in COUNTS}


def test_the_page_of_the_tests_shows_the_table() -> None:
    assert grid() in (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
