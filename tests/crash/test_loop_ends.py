"""How the loop of an asyncio program may end, and what becomes of what its tasks sent: docs/asyncio.md, "The end"."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import kstore

SECONDS_MAX = 300
HEAD = """
import asyncio, kstore, os, sys
WHERE = sys.argv[1]

async def main():
    store = await kstore.aio.open(WHERE, durability="sync")
    await store.topic("t")
    await begin(store)

async def accept(store):
    global producer
    producer = store.producer(linger_ms=600_000)
    for number in range(100):
        await producer.send("t", b"%d" % number)
"""
PROGRAMS = {
    "records were sent and main returns": ("begin = accept\nasyncio.run(main())", 100),
    "records were sent and main raises": (
        """
        async def begin(store):
            await accept(store)
            raise ValueError
        try:
            asyncio.run(main())
        except ValueError:
            pass
        """,
        100,
    ),
    "an append has returned and os._exit": (
        """
        async def begin(store):
            log = await store.log("t")
            await log.append_many([b"one"] * 100)
            os._exit(0)
        asyncio.run(main())
        """,
        100,
    ),
    "records were sent and os._exit": (
        """
        async def begin(store):
            await accept(store)
            os._exit(0)
        asyncio.run(main())
        """,
        0,
    ),
}


@pytest.mark.parametrize("options", [(), ("-X", "dev")])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.promise("program ends")
@pytest.mark.sampled(4)
def test_what_a_task_has_sent_is_there_after_its_loop_has_ended_unless_the_process_was_stopped(
    tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    program, count = PROGRAMS[name]
    where = str(tmp_path / "store")
    command = [sys.executable, *options, "-c", HEAD + textwrap.dedent(program), where]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    with kstore.open(where) as store:
        assert store.log("t").end_offset == count
