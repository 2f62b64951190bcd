"""Reading on from a noted end of a log: what is new, or nothing, which leaves it to the general path."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.engine.read.onward import READ_BYTES_MAX, Onward
from kstore.log import Log, reads_of
from tests.support.fakes.fake_fs import RecordingFs

END = 3


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path / "log", durability="os")
    for number in range(END):
        log.append(b"old %d" % number)
    return log


def noted(log: Log) -> Onward:
    onward = Onward(reads_of(log))
    onward.note(log.end_offset)
    return onward


def expected(log: Log, start: int, stop: int) -> list[bytes | None]:
    return list(log.read_values(start, stop))


def test_what_is_new_is_read_in_one_read_of_the_file(tmp_path: Path) -> None:
    fs = RecordingFs()
    with Log(tmp_path / "log", durability="os", fs=fs) as log:
        log.append_many([b"x" * 100] * 500)
        onward = noted(log)
        for number in range(500, 503):
            log.append(b"%d" % number)
            fs.operations.clear()
            assert onward.values(number, number + 1) == [b"%d" % number]
            assert fs.kinds(of=frozenset({"pread"})) == ["pread"]


def test_another_process_is_read(tmp_path: Path) -> None:
    with (
        Log(tmp_path / "log", durability="os", shared=True) as log,
        Log(log.path, durability="os", shared=True) as other,
    ):
        log.append(b"old")
        onward = noted(log)
        other.append_many([b"a", None, b"c"])
        assert onward.values(1, log.high_watermark) == [b"a", None, b"c"]
        other.append(b"d")
        assert onward.values(4, log.high_watermark) == [b"d"]
        assert onward.values(4, log.high_watermark) is None  # it does not go back


def test_an_end_inside_a_batch_or_below_the_newest_record_is_a_stop(log: Log) -> None:
    onward = noted(log)
    log.append_many([b"a", b"b", b"c"])
    log.append(b"d")
    assert onward.values(END, END + 2) == [b"a", b"b"]
    assert onward.values(END + 2, END + 4) == [b"c", b"d"]
    assert onward.values(END + 4, END + 4) is None
    assert onward.values(END + 4, END + 5) is None
    log.close()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda log: log.roll(), id="a roll"),
        pytest.param(lambda log: log.append(b"x" * READ_BYTES_MAX), id="more than is read at once"),
        pytest.param(lambda log: log.append_many([b"x" * 999] * 9), id="a compressed batch"),
        pytest.param(lambda log: [log.append(b"cut"), log.truncate_to(END), log.append(b"in its place")], id="a cut"),
        pytest.param(lambda log: log.truncate_to(END - 1), id="a cut below the noted end"),
    ],
)
def test_anything_that_needs_a_decision_is_left_to_the_general_path(
    tmp_path: Path, change: Callable[[Log], object]
) -> None:
    with Log(tmp_path / "log", durability="os", compression_type="gzip") as log:
        log.append_many([b"old"] * END)
        onward = noted(log)
        change(log)
        log.append(b"new")
        stop = log.end_offset
        assert onward.values(stop - 1, stop) is None
        assert onward.values(END, max(stop, END + 1)) is None
        onward.note(stop)
        log.append(b"newer")
        assert onward.values(stop, stop + 1) in (None, [b"newer"])


def test_damage_is_left_to_the_general_path(log: Log) -> None:
    onward = noted(log)
    log.append(b"first")
    log.append(b"second")
    (path,) = log.path.glob("*.log")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"second", b"sEcond"))
    assert onward.values(END, END + 2) is None
    assert onward.values(END + 1, END + 2) is None
    assert onward.values(END, END + 1) == [b"first"]
    log.close()


def test_an_end_that_is_not_that_of_the_log_is_not_noted(log: Log) -> None:
    onward = Onward(reads_of(log))
    onward.note(END - 1)
    log.append(b"new")
    assert onward.values(END, END + 1) is None
    log.close()


def test_it_reads_what_the_log_reads_or_nothing(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    read = 0
    with (
        Log(tmp_path / "log", durability="os", shared=True, segment_bytes=20_000) as log,
        Log(log.path, durability="os", shared=True) as other,
    ):
        onward, known = noted(log), 0
        for _ in range(600):
            what = generator.random()
            if what < 0.5:
                generator.choice([log, other]).append_many(
                    [b"x" * generator.randrange(90)] * generator.choice([1, 1, 7])
                )
            elif what < 0.55:
                generator.choice([log, other]).append_many([b"y" * 2000] * 9)
            elif what < 0.57:
                other.delete_records(generator.randint(other.start_offset, other.end_offset))
            elif what < 0.58:
                other.truncate_to(generator.randint(other.start_offset, other.end_offset))
            end = log.high_watermark
            known = min(known, end)
            if what > 0.6 and known < end and known >= log.start_offset:
                found = onward.values(known, end)
                if found is not None:
                    read += 1
                    assert found == expected(log, known, end)
                known = end
            elif known < log.start_offset:
                known = log.start_offset
            if generator.random() < 0.8 and known == end:
                onward.note(end)
    assert read > 50
