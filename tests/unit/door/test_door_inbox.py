"""``Inbox``: frames come whole, however their bytes come."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Sequence
from contextlib import closing

import pytest

from kstore.door.frames import SIZE
from kstore.door.inbox import BUFFER_BYTES, Inbox
from kstore.door.memory import Memory
from tests.support.harness.selection import tries

IDLE_SECONDS = 20.0
ROUNDS = tries(2_000, quick=60)


def read(inbox: Inbox) -> list[bytes]:
    """All frames, in the ways of a connection."""
    frames: list[bytes] = []
    while (size := inbox.next_size(IDLE_SECONDS)) is not None:
        start = bytes(inbox.start(min(size, 8)))
        if size <= BUFFER_BYTES:
            frame = bytes(inbox.whole(size))
        else:
            large = bytearray(size)
            inbox.fill(memoryview(large))
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
