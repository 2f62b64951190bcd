"""docs/queue.md is true: its examples run and print what it says, its settings are the code's."""

from __future__ import annotations

import gc
import os
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.queue import events, items
from kstore.queue.config import queue_settings
from tests.unit.project.test_docs import FORMAT, code_blocks, int_sizes, rows, section, sizes

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "queue.md").read_text(encoding="utf-8")


# A later Python warns of a fork beside threads.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(sys.platform != "linux", reason="stores are shared on Linux")
def test_the_queue_guide_s_examples_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for other in ("persistqueue", "diskcache", "queuelib"):
        pytest.importorskip(other)  # make test-all installs the queues that the guide migrates from
    code = "\n\n".join(code_blocks(GUIDE, "python"))
    (tmp_path / "example.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    names = runpy.run_path("example.py")
    said = re.findall(r"# -> (.*)", code)
    assert capsys.readouterr().out.splitlines() == said
    names["base"].close()
    names["deque"].cache.close()
    # The application continues in the child of a fork, and beside it.
    pid = os.fork()
    if not pid:
        status = 1
        try:
            names["application"]({"PATH_INFO": "/child"}, lambda *_: None)
            names["outbox_of"](os.getpid())
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    names["application"]({"PATH_INFO": "/parent"}, lambda *_: None)
    mails = names["outbox_of"](os.getpid())
    assert [mail.value for mail in mails.get_many(10)] == [b"/mail/7", b"/child", b"/parent"]
    for close in at_exit:
        close()
    assert mails.closed
    # The same programs run again, over what they left.
    at_exit.clear()
    again = runpy.run_path("example.py")
    assert capsys.readouterr().out
    again["base"].close()
    again["deque"].cache.close()
    for close in at_exit:
        close()
    again.clear()
    # The collector closes what the other libraries leave: here, in the thread that made it.
    names.clear()
    gc.collect()


def test_the_queue_guide_s_settings_are_those_that_there_are() -> None:
    table = [cells for cells in rows(section(GUIDE, "Settings")) if cells[0].startswith("`")]
    assert table == [[f"`{row.name}`", f"`{row.default!r}`", row.doc] for row in queue_settings()]


def test_names_in_the_queue_guide_are_parts_of_the_library() -> None:
    parts = {name for kind in (kstore.Queue, kstore.Job, kstore.Store) for name in dir(kind)}
    known = parts | {row.name for row in queue_settings()} | set(dir(kstore.Job))
    text = re.sub(r"```.*?```", "", GUIDE, flags=re.DOTALL).partition("## Moving here")[0]
    named = {name for span in re.findall(r"`([^`\n]+)`", text) for name in re.findall(r"\b(?:jobs|job)\.(\w+)", span)}
    assert {"dead_letters", "retry_dead"} <= named
    assert named - known - {"dead"} == set()


def test_the_tables_of_queues_are_those_of_the_code() -> None:
    cells = {row[0].strip("`"): row[1] for row in rows(section(FORMAT, "Queues"))}
    for kind, row in events.ROWS.items():
        assert int_sizes(cells[kind.decode()]) == sizes(row)
    assert {items.DUE, items.DELIVERIES, items.MOVED_FROM, items.DEAD_FROM} <= cells.keys()
    assert items.OWN == "kstore."
