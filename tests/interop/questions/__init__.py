"""Questions for a server, a row each: requests of each kind that a door serves, and of those that it refuses.

``side`` has what a row uses; ``QUESTIONS`` are all rows, by their names.
"""

from __future__ import annotations

from tests.interop.questions import fetching, frames, groups, offsets, producing, topics
from tests.interop.questions.side import QUESTIONS as QUESTIONS

__all__ = ["QUESTIONS", "fetching", "frames", "groups", "offsets", "producing", "topics"]
