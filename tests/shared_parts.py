"""The parts of a log that several processes write to, for tests that look at them."""

from __future__ import annotations

from kstore import Log
from kstore.engine.others import Others
from kstore.shared.turn import SharedTurn

__all__ = ["drop_tail", "others_of", "turn_of"]


def others_of(log: Log) -> Others:
    others = log.writer.files.others
    assert others is not None
    return others


def turn_of(log: Log) -> SharedTurn:
    turn = log.writer.turn
    assert isinstance(turn, SharedTurn)
    return turn


def drop_tail(log: Log) -> None:
    """As a process does that has too many files open; the next append opens them again."""
    with turn_of(log).lock:
        log.writer.files.drop_tail()
