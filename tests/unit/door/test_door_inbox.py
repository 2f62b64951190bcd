"""``Inbox``: frames come whole, however their bytes come."""

from __future__ import annotations

import random
import socket
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import cast

import pytest

from kstore.door import inbox
from kstore.door.call import ConnectionEnded
from kstore.door.frames import SIZE
from kstore.door.inbox import BUFFER_BYTES, RATE_BYTES, Inbox
from kstore.door.memory import Memory
from tests.support.harness.selection import tries

IDLE_SECONDS = 20.0
ROUNDS = tries(2_000, quick=60)


def read(peer: Inbox) -> list[bytes]:
    """All frames, in the ways of a connection."""
    frames: list[bytes] = []
    while (size := peer.next_size(IDLE_SECONDS)) is not None:
        start = bytes(peer.start(min(size, 8)))
        if size <= BUFFER_BYTES:
            frame = bytes(peer.whole(size))
        else:
            large = bytearray(size)
            peer.fill(memoryview(large))
            frame = bytes(large)
        assert frame.startswith(start)
        frames.append(frame)
    return frames


def received(pieces: Sequence[bytes]) -> list[bytes]:
    """The frames of a peer that sends these pieces and leaves."""
    ours, peers = socket.socketpair()

    def send() -> None:
        with closing(peers):
            for piece in pieces:
                peers.sendall(piece)

    with closing(ours):
        sender = threading.Thread(target=send)
        sender.start()
        frames = read(Inbox(ours, Memory(1 << 20)))
        sender.join()
        return frames


def cut(data: bytes, rng: random.Random, size_max: int) -> list[bytes]:
    pieces = []
    while data:
        size = rng.randint(1, size_max)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def test_frames_come_whole_in_any_pieces() -> None:
    rng = random.Random(7)
    edges = (BUFFER_BYTES - 4, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1)
    for _ in range(ROUNDS):
        sizes = [rng.choice([0, 1, 8, 50, rng.randrange(20_000), *edges, 150_000]) for _ in range(rng.randint(1, 8))]
        frames = [rng.randbytes(size) for size in sizes]
        data = b"".join(SIZE.pack(len(frame)) + frame for frame in frames)
        assert received(cut(data, rng, rng.choice([700, 5_000, 70_000, len(data)]))) == frames


@pytest.mark.parametrize("sent", [b"\0", b"\0\0\0\5", b"\0\0\0\5abcd", SIZE.pack(100_000) + bytes(80_000)])
def test_a_peer_that_leaves_within_a_frame_is_an_error(sent: bytes) -> None:
    with pytest.raises(ConnectionResetError):
        received([SIZE.pack(3) + b"abc" + sent])


def test_a_peer_that_sends_nothing_is_idle() -> None:
    ours, peer = socket.socketpair()
    with closing(ours), closing(peer):
        assert Inbox(ours, Memory(1 << 20)).next_size(0.01) is None


# --- how fast, by a clock of the test ---------------------------------------------------------------------------------


class SlowPeer:
    """A socket whose peer sends each piece after a pause of so many seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *pieces: tuple[float, bytes]) -> None:
        self.now = 1000.0
        self.timeout = 0.0
        self.pieces = deque(pieces)
        monkeypatch.setattr(inbox, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.inbox = Inbox(cast("socket.socket", self), Memory(1 << 20))

    def gettimeout(self) -> float:
        return self.timeout

    def settimeout(self, seconds: float) -> None:
        self.timeout = seconds

    def recv_into(self, target: memoryview) -> int:
        seconds, piece = self.pieces.popleft()
        self.now += min(seconds, self.timeout)
        if seconds > self.timeout:
            self.pieces.appendleft((seconds - self.timeout, piece))
            raise TimeoutError
        count = min(len(target), len(piece))
        target[:count] = piece[:count]
        if count < len(piece):
            self.pieces.appendleft((0, piece[count:]))
        return count

    def small(self) -> bytes:
        return bytes(self.inbox.whole(self.inbox.next_size(IDLE_SECONDS) or 0))

    def large(self, *, memory_after: float = 0) -> None:
        """Receives a large frame, whose memory is there after so many seconds."""
        frame = bytearray(self.inbox.next_size(IDLE_SECONDS) or 0)
        self.now += memory_after
        self.inbox.fill(memoryview(frame))


def head(size: int) -> tuple[float, bytes]:
    return 0, SIZE.pack(size) + b"a"


def test_a_frame_that_comes_too_slowly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectionEnded, match="1 bytes of a frame in 10 s: too slow"):
        SlowPeer(monkeypatch, head(2), (10.5, b"b")).small()


def test_the_time_of_a_frame_begins_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = SlowPeer(monkeypatch, head(1), (15, SIZE.pack(2) + b"b"), (9.5, b"c"))
    assert [peer.small(), peer.small()] == [b"a", b"bc"]


def test_a_large_frame_has_time_for_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    SlowPeer(monkeypatch, head(4 * RATE_BYTES), *[(9.5, bytes(RATE_BYTES))] * 4).large()


def test_a_small_frame_may_be_slow_while_others_wait_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "is_wanted", True)
    assert SlowPeer(monkeypatch, head(2), (9.5, b"b")).small() == b"ab"


def test_a_large_frame_may_not_be_slow_while_others_wait_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "is_wanted", True)
    with pytest.raises(ConnectionEnded, match="while others wait for memory"):
        SlowPeer(monkeypatch, head(2 * BUFFER_BYTES), (1.5, b"b"), (1.5, b"b")).large()


def test_the_time_of_a_large_frame_begins_when_it_has_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "is_wanted", True)
    size = 2 * BUFFER_BYTES
    SlowPeer(monkeypatch, head(size), (0, bytes(size - 1))).large(memory_after=25)
