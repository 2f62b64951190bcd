"""Each difference between a door and a broker is documented, and there are few."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lives.door_differences import COUNT_MAX, DIFFERENCES

DOCUMENT = Path(__file__).parents[3] / "docs" / "door.md"


@pytest.mark.parametrize("reason", [difference.reason for difference in DIFFERENCES])
def test_the_document_has_each_difference_in_the_same_words(reason: str) -> None:
    assert f"- {reason} " in f"{' '.join(DOCUMENT.read_text(encoding='utf-8').split())} "


def test_there_are_few_differences() -> None:
    assert len(DIFFERENCES) <= COUNT_MAX
