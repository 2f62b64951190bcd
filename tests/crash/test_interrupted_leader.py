"""The thread that commits for others is interrupted anywhere: the others get a result or a typed error."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from kstore.errors import KstoreError, PoisonedError
from kstore.log import Log, writer_of
from tests.crash.interrupted_life import INTERRUPTS, LINES_MAX
from tests.support.fakes.fake_fs import Operation, WatchedFs
from tests.support.harness.evidence import Hung, Lost, Wrong

Result = TypeVar("Result")

# Only a hang takes longer, even on a busy machine.
WAIT_SECONDS = 300
FOLLOWERS = 2
LEADER = b"leader"


class MeetingFs(WatchedFs):
    """The other threads arrive at the leader's write, and wait in the queue before it continues."""

    def __init__(self) -> None:
        super().__init__()
        self.meet: Callable[[], None] = lambda: None

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        if operation.kind == "write_and_sync":
            meet, self.meet = self.meet, lambda: None
            meet()
        return action()


def interrupt_leader(path: Path, number: int, between: str) -> bool:
    """Interrupts the leader at line ``number`` of its append; returns whether that line exists."""
    fs = MeetingFs()
    log = Log(path, fs=fs)
    log.append(b"first")
    ended: dict[bytes, int | KstoreError] = {}

    def follow(value: bytes) -> None:
        try:
            ended[value] = log.append(value)
        except KstoreError as error:
            ended[value] = error

    values = [b"follower %d" % each for each in range(FOLLOWERS)]
    threads = [threading.Thread(target=follow, args=(value,), daemon=True) for value in values]
    writer = writer_of(log)
    assert writer.appends._group is not None
    group = writer.appends._group

    def meet() -> None:
        for thread in threads:
            thread.start()
        while group.waiting_count < FOLLOWERS:
            threads[0].join(0.0001)

    fs.meet = meet
    with INTERRUPTS[between](number) as interrupted:
        try:
            ended[LEADER] = log.append(LEADER)
        except KeyboardInterrupt:
            pass
        except KstoreError as error:
            ended[LEADER] = error
    fs.meet = lambda: None
    for thread in threads:
        if thread.ident is None:
            thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
        if thread.is_alive():
            raise Hung("a follower still waits for a leader that is gone")
    try:
        log.append(b"last")
    except PoisonedError:
        pass
    else:
        log.check()
    log.close()
    with Log(path) as log:
        found = {record.offset: record.value for record in log.read()}
    for value, result in ended.items():
        if isinstance(result, int) and found.get(result) != value:
            raise Lost(f"{value!r} was acknowledged at offset {result}, which holds {found.get(result)!r}")
    known = {b"first", b"last", LEADER, *values}
    if sorted(found) != list(range(len(found))) or not known.issuperset(found.values()):
        raise Wrong(f"the log holds {found}")
    if len(set(found.values())) != len(found):
        raise Wrong(f"an append is there twice: {found}")
    return interrupted.struck


@pytest.mark.promise("whole or absent", "returns: sync")
@pytest.mark.usefixtures("abandons_logs")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("between", INTERRUPTS)
@pytest.mark.sampled(1)
def test_no_append_waits_for_an_interrupted_leader(
    between: str, directory: Path, tried: Callable[[str, int], None]
) -> None:
    for number in range(1, LINES_MAX):
        try:
            if not interrupt_leader(directory / str(number), number, between):
                break
        except AssertionError as error:
            error.add_note(f"interrupted at number {number} of the {between}")
            raise
        shutil.rmtree(directory / str(number))
    assert 30 < number < LINES_MAX - 1
    tried("faults", number - 1)
