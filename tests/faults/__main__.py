"""Prints the table of faults, with the number of places of each life that a fault can strike.

python -m tests.faults [LIFE...]
"""

from __future__ import annotations

import sys

from tests.crash.power_cuts import MOMENTS, moment_count
from tests.faults.harness import AT_OPERATIONS, Harness, places
from tests.faults.lives import LIVES, machine_in_memory
from tests.faults.table import BY_HAND, FAULTS

SEED = 1


def main() -> None:
    print("places that each fault can strike; +: files made by hand try the cell too")
    print(f"{'':12}" + "".join(f"{fault:>20}" for fault in FAULTS))
    with machine_in_memory() as machine:
        for name in sys.argv[1:] or LIVES:
            life = Harness(LIVES[name], machine, SEED).whole()
            counts = {fault: len(places(fault, life.operations)) for fault in AT_OPERATIONS}
            counts["power cut"] = moment_count(life.operations)
            counts["kill"] = len(life.fs.kinds(of=MOMENTS))
            counts["refused allocation"] = len(life.operations)
            cells = [f"{counts[fault]}{' +' if (name, fault) in BY_HAND else '  '}" for fault in FAULTS]
            print(f"{name:12}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
