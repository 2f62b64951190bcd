"""A program that refuses allocations of a producer's write, one by one; run by ``test_memory_errors``.

    python -m tests.crash.producer_memory_life DIRECTORY CALL FIRST STEP

For n = FIRST, FIRST + STEP...: the n-th allocation of a call of ``interrupted_producer`` is refused, and the producer
continues. At the end every record that was sent has its result, what arrived is in the log, once and in order, what
failed is not, and no memory is lost. Prints a line for each refusal; the last line is how many caused an error.
"""

from __future__ import annotations

import gc
import logging
import shutil
import sys
import warnings
from pathlib import Path

from kstore.errors import KstoreError
from kstore.store import Store
from tests.crash.interrupted_producer import BATCH_SIZE, BUFFER_MEMORY, PARTITIONS, Life, full_batches
from tests.crash.interrupted_producer import CALLS as INTERRUPTED_CALLS
from tests.crash.memory_error_life import DISGUISES, REFUSALS_MAX
from tests.crash.refusals import refused
from tests.support.harness.evidence import Hung, Untyped, Wrong
from tests.support.lives.producer_helpers import Unthreaded

# Ctrl-C does not reach the thread of the sender, which makes the rounds.
CALLS = INTERRUPTED_CALLS | {"round": (full_batches, lambda life: life.one.round())}
# A call has no allocation left if none of so many in a row caused an error.
QUIET_MAX = 40


def refuse(path: Path, name: str, number: int) -> bool:
    """A life in which allocation ``number`` of the call is refused; returns whether that caused an error."""
    before, act = CALLS[name]
    one = Unthreaded(
        path, partitions=PARTITIONS, linger_ms=0, batch_size=BATCH_SIZE, buffer_memory=BUFFER_MEMORY, retries=0
    )
    life = Life(one)
    life.send()
    life.settle()
    before(life)
    error = refused(lambda: act(life), number)
    if error is not None and not isinstance(error, (MemoryError, KstoreError, *DISGUISES)):
        raise Untyped(repr(error)) from error
    one.producer._outbox.is_threaded = False
    for partition in range(PARTITIONS):
        life.send(partition)
    life.settle()
    outcomes = {value: delivery.exception() for value, delivery in life.sent.items() if delivery.done()}
    failed = {value for value, outcome in outcomes.items() if outcome is not None}
    one.producer._outbox.failures.take()
    one.producer.close()
    try:
        one.store.close()
    except KstoreError:
        pass  # the log is poisoned: the refusal came while its records were published
    life.hold()
    with Store(path, background=False) as store:
        for partition in range(PARTITIONS):
            if there := failed.intersection(store.log("orders", partition).read_values()):
                raise Wrong(f"{[value[:6] for value in there]} failed, and are in the log")
    return error is not None or any(isinstance(outcome, (MemoryError, *DISGUISES)) for outcome in outcomes.values())


def main() -> None:
    directory, name = Path(sys.argv[1]), sys.argv[2]
    first, step = map(int, sys.argv[3:5])
    logging.disable()
    warnings.simplefilter("ignore")
    errors = quiet = 0
    for number in range(first, REFUSALS_MAX, step):
        path = directory / str(number)
        try:
            is_met = refuse(path, name, number)
        except Exception as failed:
            failed.add_note(f"allocation {number} of {name} was refused")
            raise
        shutil.rmtree(path)
        errors, quiet = errors + is_met, 0 if is_met else quiet + step
        print(number, flush=True)
        if quiet >= QUIET_MAX:
            print(errors)
            return
    raise Hung(f"{name} has more than {REFUSALS_MAX} allocations")


if __name__ == "__main__":
    gc.disable()
    main()
