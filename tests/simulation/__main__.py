"""Long lives of a store, each from one seed; a failing life is shortened, and printed.

usage: python -m tests.simulation --seed 17                       one life
       python -m tests.simulation --seed 17 --keep 3,17,20-25     with these steps only
       python -m tests.simulation --seed 1 --lives 200            many
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial

from tests.simulation.life import Life, Outcome
from tests.simulation.shrink import shrunk

DURABILITIES = ("sync", "interval", "os")


def numbers_of(text: str) -> list[int]:
    """``3,17,20-25`` as numbers."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def text_of(numbers: Sequence[int]) -> str:
    """Numbers as ``3,17,20-25``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Simulated lives of a store.")
    parser.add_argument("--seed", type=int, default=1, help="of the first life")
    parser.add_argument("--lives", type=int, default=1, help="how many lives, each with the next seed")
    parser.add_argument("--keep", type=numbers_of, help="the steps to do, as 3,17,20-25; default: all")
    parser.add_argument("--durability", choices=DURABILITIES, help="default: the seed says")
    parser.add_argument("--judged", choices=DURABILITIES, help="check it against the promises of this durability")
    parser.add_argument(
        "--harsh", action="store_true", help="interrupts and lacks of memory, and bit rot in all files of a log"
    )
    parser.add_argument("--first", action="store_true", help="end with the first life that fails")
    parser.add_argument("--no-shrink", action="store_true", help="print a failing life without shortening it")
    given = parser.parse_args()
    crash_count = failed_count = 0
    for seed in range(given.seed, given.seed + given.lives):

        def life(kept: Sequence[int] | None, seed: int = seed) -> Life:
            return Life(
                seed,
                kept=kept,
                durability=given.durability,
                judged=given.judged,
                harsh=given.harsh,
            )

        outcome = run(life(given.keep))
        if isinstance(outcome, Outcome):
            crash_count += outcome.crash_count
            if given.lives == 1:
                print(outcome)
            continue
        failed_count += 1
        tell(outcome[1])
        if not given.no_shrink:
            steps = [number for number, _ in outcome[0].plan]
            kept = shrunk(steps, partial(_fails, life, kind_of(outcome[1])))
            short = life(kept)
            again = run(short)
            assert not isinstance(again, Outcome)
            print(f"with {len(kept)} of {len(steps)} steps:")
            print("\n".join(f"  {line}" for line in short.log))
            tell(again[1])
            harsh = " HARSH=1" if given.harsh else ""
            print(f"again: make simulate SEED={seed} KEEP={text_of(kept)}{harsh}")
        if given.first:
            print(f"failed: life {seed - given.seed + 1}")
            return 1
    print(f"{given.lives} lives, {crash_count} crashes survived, {failed_count} lives failed")
    return 1 if failed_count else 0


def run(life: Life) -> Outcome | tuple[Life, AssertionError]:
    try:
        return life.run()
    except AssertionError as error:
        return life, error


def kind_of(error: AssertionError) -> str:
    """What failures of the same kind share: the verdict, and its message without numbers."""
    return f"{type(error).__name__}: {re.sub('[0-9]+', '', str(error))[:60]}"


def _fails(life: Callable[[Sequence[int]], Life], kind: str, steps: Sequence[int]) -> bool:
    outcome = run(life(steps))
    return not isinstance(outcome, Outcome) and kind_of(outcome[1]) == kind


def tell(error: AssertionError) -> None:
    notes = "; ".join(getattr(error, "__notes__", ()))
    print(f"{type(error).__name__}: {error} ({notes})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
