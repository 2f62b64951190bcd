"""Power cuts that take ``kstore.state`` too: what other files show of the log is no reason to report a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from kstore.errors import KstoreError
from kstore.files.fs import FileSystem
from kstore.log import Log
from kstore.types import Durability
from tests.crash.power_cut_lives import DURABILITIES, PATH, SETTINGS, LogLife, lived
from tests.crash.power_cuts import cut_power
from tests.support.fakes.crash_states import Image
from tests.support.fakes.fake_fs import Operation
from tests.support.fakes.memory_fs import Machine, in_memory
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.selection import tries

STATE = PATH / "kstore.state"


class WithoutState:
    """A life after whose crash the state is gone (``RecordedLife``)."""

    def __init__(self, life: LogLife) -> None:
        self.life = life

    @property
    def before(self) -> Image:
        return self.life.before

    @property
    def operations(self) -> Sequence[Operation]:
        return self.life.operations

    def promise(self, done: int) -> object:
        return self.life.promise(done)

    def opened(self, fs: FileSystem) -> Log:
        if fs.exists(STATE):
            fs.unlink(STATE)
        return Log(PATH, fs=fs, clock=self.life.clock, durability=self.life.durability, **SETTINGS)

    def reopen(self, fs: FileSystem) -> None:
        self.opened(fs).close()

    def survive(self, fs: FileSystem, begun: int, done: int) -> None:
        promised = self.life.promise(done)
        try:
            with self.opened(fs) as log:
                for damage in log.recovery.corrupt:
                    # Without the state a hole in the middle of what was never durable may not be cut.
                    is_in_the_middle = any(record.offset > damage.last for record in log.read(on_corrupt="skip"))
                    if damage.first < promised.durable or not is_in_the_middle:
                        raise Wrong(f"nothing durable was lost, {promised}: {log.recovery}")
                found = {record.offset: record.value for record in log.read(on_corrupt="skip")}
                known = found.keys() | {offset for offset, at in self.life.holes.items() if at < begun}
                missing = set(range(max(promised.deleted, log.start_offset), promised.durable)) - known
                if missing or log.start_offset > promised.deleted:
                    raise Lost(f"offsets {sorted(missing)} of {promised}; the log starts at {log.start_offset}")
                end = log.end_offset
                if log.append(b"goes on") != end or end < max(found, default=-1) + 1:
                    raise Wrong(f"the next offset is {end}, after {max(found, default=-1)}")
        except KstoreError as error:
            raise Lost(f"cannot be opened or read: {error!r}") from error


@pytest.fixture
def machine() -> Iterator[Machine]:
    with in_memory() as machine:
        yield machine


@pytest.mark.promise("lost state")
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("name", ["appends", "deletions", "retention", "parks"])
@pytest.mark.sampled(2, keep=("appends-os", "retention-sync"))
def test_a_log_that_loses_its_state_in_a_power_cut_reports_no_other_loss(
    name: str, durability: Durability, machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    counts = cut_power(WithoutState(lived(name, durability)), machine, count=tries(600, quick=60), seed=seed)
    assert counts.states > 30
    tried("states", counts.states)
