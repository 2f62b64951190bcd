"""The planted bugs of ``make crash-mutants`` fit the code: they must change with it."""

from __future__ import annotations

import pytest

from tools.crash.mutant import Mutant
from tools.crash.mutants import ROOT
from tools.crash.planted_bugs import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_planted_bug_fits_the_code_in_one_place(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    if mutant.file.endswith(".py"):
        compile((ROOT / mutant.file).read_text(encoding="utf-8").replace(mutant.old, mutant.new), mutant.file, "exec")
    assert all((ROOT / test.split("::")[0]).exists() for test in mutant.tests.split())
