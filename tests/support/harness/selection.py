"""What ``make test`` omits or tries less often; ``make test-all`` runs every test with its full counts.

Three tools, the first that fits::

    STATES = tries(2000, quick=150)        fewer states, faults, examples of one test
    @pytest.mark.sampled(12)               12 of a test's cases, drawn by the seed
    @pytest.mark.long                      not at all: another test is quick evidence for the same

A quick run is one whose ``-m`` says "not long". ``unit/test_quick_selection.py`` holds what it must not lose.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Programs that tests start ask for counts too, and need no pytest.
    import pytest

LONG = "long"
SAMPLED = "sampled"
_chosen = {"quick": False}


def choose(markexpr: str) -> None:
    """Makes this a quick run if the expression leaves out the long tests; before test files are imported."""
    _chosen["quick"] = f"not {LONG}" in markexpr


def is_quick() -> bool:
    return _chosen["quick"]


def tries(full: int, *, quick: int) -> int:
    """How many times to try: ``quick`` in a quick run, else ``full``."""
    return quick if _chosen["quick"] else full


def leave_out(items: Iterable[pytest.Item], seed: int) -> None:
    """Marks as long what each ``sampled`` omits: all cases of its test but N and those of ``keep``."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker(SAMPLED) is not None and item.get_closest_marker("soak") is None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, found in cases.items():
        marker = found[0].get_closest_marker(SAMPLED)
        assert marker is not None
        kept = set(marker.kwargs.get("keep", ()))
        others = [item for item in found if _case(item) not in kept]
        generator = random.Random(f"{seed} {name}")
        for item in generator.sample(others, max(len(others) - int(marker.args[0]), 0)):
            item.add_marker(LONG)


def _case(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[2].removesuffix("]")
