"""The fuzz targets with as many inputs as fit into every test run, the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from tempfile import NamedTemporaryFile

import pytest

from tests.support.harness.evidence import VERDICTS
from tests.support.harness.selection import tries
from tools.fuzz.seeded import run_seeded
from tools.fuzz.targets import TARGETS

pytestmark = pytest.mark.promise("hostile file")

Count = Callable[[str, int], None]

# Inputs for each target; a whole directory costs a hundred times as much as a batch.
INPUTS = dict.fromkeys(TARGETS, tries(5000, quick=100)) | {
    "directory": tries(250, quick=20),
    # Its seeds alone are hundreds: one for each API and version.
    "door": tries(20_000, quick=2_000),
}
SOAK_FACTOR = 100
SHOWN_BYTES_MAX = 200


def shown(data: bytes) -> str:
    """Leaves a long input in a file."""
    if len(data) <= SHOWN_BYTES_MAX:
        return data.hex()
    with NamedTemporaryFile(prefix="kstore-fuzz-", delete=False) as file:
        file.write(data)
    return file.name


def fuzz(name: str, count: int, seed: int, tried: Count) -> None:
    outcome = run_seeded(name, seed=seed, count=count)
    tried("fuzz inputs", outcome.inputs)
    for finding in outcome.findings:
        raise VERDICTS[finding.verdict](f"{name}: {finding.message}; input {shown(finding.data)}")
    assert outcome.inputs == count


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes_give_typed_errors_and_nothing_wrong(name: str, seed: int, tried: Count) -> None:
    fuzz(name, INPUTS[name], seed, tried)


@pytest.mark.soak
@pytest.mark.parametrize("name", TARGETS)
def test_many_hostile_bytes_give_typed_errors_and_nothing_wrong(name: str, seed: int, tried: Count) -> None:
    fuzz(name, INPUTS[name] * SOAK_FACTOR, seed + 1, tried)
