"""Reading far ahead: the right bytes, several requests at a time, and a store that fails now and then."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable

import pytest

from kstore.errors import FileMissingError, StorageError
from kstore.files import ahead, remote
from kstore.files.remote import RemoteFiles, RemoteReading, open_remote
from kstore.files.remote_stores import RETRY_SECONDS_MAX, retried
from tests.support.harness.selection import tries

PIECE = 1_000
Count = Callable[[str, int], None]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ahead, remote):
        monkeypatch.setattr(module, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(remote, "READ_AHEAD_MIN", 64)


def files(url: str, **reading: float) -> RemoteFiles:
    fs = open_remote(url, reading=RemoteReading(None, **reading)).fs  # type: ignore[arg-type]
    assert isinstance(fs, RemoteFiles)
    return fs


def test_reads_of_any_size_and_order_give_the_bytes_of_the_file(memory: str, seed: int, tried: Count) -> None:
    rng = random.Random(seed)
    for _ in range(tries(300, quick=60)):
        data = rng.randbytes(rng.choice((0, 1, 600, 999, 1000, 1001, 5_000, 20_000)))
        at = open_remote(memory) / "file"
        at.fs.put(at.path, [data])
        file = files(memory, expected_bytes=rng.choice((1, 500, 3_000, 1 << 20))).open(at.path)
        position = 0
        for _ in range(30):
            if rng.random() < 0.2:
                position = rng.randrange(len(data) + 100)
            size = rng.choice((1, 10, 300, 1_000, 4_000))
            assert file.pread(size, position) == data[position : position + size]
            position = max(position + size - rng.choice((0, 0, 0, 7)), 0)
        tried("reads", 30)


def test_four_pieces_are_on_their_way_while_one_is_used(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at = open_remote(memory) / "file"
    data = random.Random(1).randbytes(10 * PIECE)
    at.fs.put(at.path, [data])
    fs = files(memory, expected_bytes=len(data))
    read_range = fs.read_range
    # The first piece is read by the reader, beside the four that follow.
    together = threading.Barrier(5)
    starts: list[int] = []

    def waiting(path: str, start: int, stop: int) -> bytes:
        starts.append(start)
        if start < 5 * PIECE:
            together.wait(30)  # the others come too, or this breaks
        return read_range(path, start, stop)

    monkeypatch.setattr(fs, "read_range", waiting)
    file = fs.open(at.path)
    assert b"".join(file.pread(100, position) for position in range(0, len(data), 100)) == data
    assert sorted(starts) == [number * PIECE for number in range(10)], "each piece once"


def test_no_more_is_fetched_than_is_expected_to_be_read(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at = open_remote(memory) / "file"
    at.fs.put(at.path, [bytes(50 * PIECE)])
    fs = files(memory, expected_bytes=3 * PIECE)
    read_range = fs.read_range
    fetched: list[tuple[int, int]] = []

    def noted(path: str, start: int, stop: int) -> bytes:
        fetched.append((start, stop))
        return read_range(path, start, stop)

    monkeypatch.setattr(fs, "read_range", noted)
    file = fs.open(at.path)
    for position in range(500, 500 + 3 * PIECE, 100):
        file.pread(100, position)
    assert sorted(fetched) == [(500 + number * PIECE, 500 + (number + 1) * PIECE) for number in range(3)]


def test_a_piece_that_fails_raises_when_it_is_read_and_the_next_read_asks_again(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = open_remote(memory) / "file"
    data = random.Random(1).randbytes(5 * PIECE)
    at.fs.put(at.path, [data])
    fs = files(memory, expected_bytes=len(data))
    read_range = fs.read_range
    failing = [2 * PIECE]

    def broken(path: str, start: int, stop: int) -> bytes:
        if start in failing:
            failing.remove(start)
            raise StorageError(errno.EIO, "the store is unwell", path)
        return read_range(path, start, stop)

    monkeypatch.setattr(fs, "read_range", broken)
    file = fs.open(at.path)
    assert file.pread(PIECE, 0) + file.pread(PIECE, PIECE) == data[: 2 * PIECE]
    with pytest.raises(StorageError, match="unwell"):
        file.pread(PIECE, 2 * PIECE)
    assert b"".join(file.pread(PIECE, position) for position in range(0, 5 * PIECE, PIECE)) == data


def test_a_file_that_became_shorter_ends_there(memory: str) -> None:
    at = open_remote(memory) / "file"
    at.fs.put(at.path, [bytes(5 * PIECE)])
    fs = files(memory, expected_bytes=5 * PIECE)
    file = fs.open(at.path)
    at.fs.put(at.path, [bytes(PIECE + 10)])
    assert len(file.pread(3 * PIECE, 0)) == PIECE + 10


# --- requests that are made again -------------------------------------------------------------------------------------


class Failing:
    """A request that fails with each of ``errors`` and then succeeds."""

    def __init__(self, *errors: int) -> None:
        self._errors = list(errors)
        self.pauses: list[float] = []

    def __call__(self) -> str:
        if self._errors:
            raise StorageError(self._errors.pop(0), "no", "s3://bucket/file")
        return "served"

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


def test_a_request_that_a_store_fails_to_serve_is_made_again_after_longer_and_longer_pauses() -> None:
    request = Failing(*[errno.EIO, errno.ETIMEDOUT, errno.ECONNRESET] * 4)
    assert retried(request, 100.0, sleep=request.sleep) == "served"
    assert len(request.pauses) == 12
    assert all(pause <= RETRY_SECONDS_MAX for pause in request.pauses)
    assert request.pauses[0] < 0.06
    assert min(request.pauses[-3:]) >= RETRY_SECONDS_MAX / 2


def test_half_of_the_requests_failing_ends_well(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(1_000):
        failures = 0
        while rng.random() < 0.5:
            failures += 1
        request = Failing(*[errno.EIO] * failures)
        assert retried(request, 100.0, sleep=request.sleep) == "served"
        assert sum(request.pauses) < 20


@pytest.mark.parametrize("failing", ["every second one", "half of them"])
def test_a_read_ahead_ends_well_where_half_of_the_requests_fail(
    failing: str, memory: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    store = type(pytest.importorskip("fsspec").filesystem("memory"))
    cat_file = store.cat_file
    rng = random.Random(seed)
    made: list[bool] = []

    def unwell(self: object, path: str, **options: object) -> object:
        made.append(len(made) % 2 == 0 if failing == "every second one" else rng.random() < 0.5)
        if made[-1]:
            # As s3fs says it.
            raise OSError(getattr(errno, "EREMOTEIO", errno.EIO), "500 Internal Server Error")
        return cat_file(self, path, **options)

    at = open_remote(memory) / "file"
    data = random.Random(1).randbytes(40 * PIECE)
    at.fs.put(at.path, [data])
    monkeypatch.setattr(store, "cat_file", unwell)
    monkeypatch.setattr("kstore.files.remote_stores.RETRY_SECONDS_MIN", 0.0001)
    monkeypatch.setattr("kstore.files.remote_stores.RETRY_SECONDS_MAX", 0.001)
    file = files(memory, expected_bytes=len(data), retry_seconds=60.0).open(at.path)
    assert b"".join(file.pread(700, position) for position in range(0, len(data), 700)) == data
    # Each piece is served once: what failed was not fetched twice.
    assert made.count(False) == 40
    assert 15 <= made.count(True) <= 400


def test_a_store_that_serves_nothing_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    request = Failing(*[errno.EIO] * 10_000)
    monkeypatch.setattr("kstore.files.remote_stores.time.monotonic", lambda: now[0])

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(StorageError):
        retried(request, 20.0, sleep=sleep)
    assert 15 < now[0] <= 20


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EISDIR])
def test_a_request_that_is_refused_is_not_made_again(number: int) -> None:
    request = Failing(number)
    with pytest.raises(StorageError):
        retried(request, 100.0, sleep=request.sleep)
    assert request.pauses == []


def test_a_request_without_credentials_is_not_made_again() -> None:
    class NoCredentialsError(Exception):
        pass

    calls: list[None] = []

    def request() -> None:
        calls.append(None)
        raise StorageError(errno.EIO, "who are you", "s3://bucket/file") from NoCredentialsError()

    with pytest.raises(StorageError):
        retried(request, 100.0, sleep=Failing().sleep)
    assert len(calls) == 1


def test_only_reads_that_ask_for_it_are_made_again(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = type(pytest.importorskip("fsspec").filesystem("memory"))
    calls: list[str] = []

    def failing(self: object, path: str, **options: object) -> bytes:
        calls.append(path)
        raise OSError(errno.EIO, "no")

    at = open_remote(memory) / "file"
    at.fs.put(at.path, [b"data"])
    monkeypatch.setattr(store, "cat_file", failing)
    monkeypatch.setattr("kstore.files.remote_stores.RETRY_SECONDS_MIN", 0.0001)
    with pytest.raises(StorageError):
        files(memory).open(at.path).pread(4, 0)
    assert len(calls) == 1
    with pytest.raises(StorageError):
        files(memory, retry_seconds=0.2).open(at.path).pread(4, 0)
    assert len(calls) > 3
    monkeypatch.undo()
    with pytest.raises(FileMissingError):
        files(memory, retry_seconds=100.0).open(at.path.parent / "none")
