"""Makes a failing life shorter: steps are left out as long as it keeps failing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["shrunk"]


def shrunk(steps: Sequence[int], fails: Callable[[Sequence[int]], bool], *, tries: int = 400) -> list[int]:
    """A part of ``steps`` with which ``fails`` still says yes, after at most so many ``tries``.

    Leaves out halves, then quarters, and so on, down to single steps (ddmin).
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
