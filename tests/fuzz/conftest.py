"""Undoes, after each test, what a fuzz target changes for its whole process."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _logging_goes_on() -> Iterator[None]:
    """A target that opens hostile directories disables logging: each would log a warning."""
    yield
    logging.disable(logging.NOTSET)
