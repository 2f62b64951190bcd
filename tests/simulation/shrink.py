"""Shortens a failing life: steps are removed as long as it keeps failing."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def shrunk(steps: Sequence[int], fails: Callable[[Sequence[int]], bool], *, tries: int = 400) -> list[int]:
    """A part of ``steps`` for which ``fails`` still returns true, after at most ``tries`` attempts.

    Removes halves, then quarters, and so on, down to single steps (ddmin).
    """
    kept = list(steps)
    size = max(len(kept) // 2, 1)
    while tries and kept:
        at, before = 0, len(kept)
        while at < len(kept) and tries:
            fewer = kept[:at] + kept[at + size :]
            tries -= 1
            if fails(fewer):
                kept = fewer
            else:
                at += size
        if size == 1 and len(kept) == before:
            break
        size = max(size // 2, 1)
    return kept
