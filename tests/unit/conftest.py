"""Shared by several files of unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kstore.cli.main import main
from tests.support.lives.dump_helpers import Dump


@pytest.fixture
def dump(capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dump:
    """``kstore dump-log`` in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["dump-log", *arguments])
        out, err = capfdbinary.readouterr()
        return status, out.decode(), err.decode()

    return run


@pytest.fixture
def memory() -> Iterator[str]:
    """The URL of an empty directory in memory, which fsspec reaches."""
    store = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem
    store.store.clear()
    store.pseudo_dirs[:] = [""]
    yield "memory://bucket/dir"
    store.store.clear()
