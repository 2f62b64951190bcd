"""The programs in examples/ do what they say, even a second time in the same directory."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kstore
from tests.golden_data import golden_root
from tests.selection import tries

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SPARK = "spark_job.py"  # tests/spark/test_docs.py runs it

ALL_JOBS = "done: " + str([f"job {number}" for number in range(10)])
CLICKS = ["[('cart', 10000), ('home', 10000), ('pay', 10000)]", "[(b'user-0', 4286), (b'user-1', 4286)]"]


def run(name: str, directory: Path, *arguments: str) -> list[str]:
    """The lines that an example prints; it must not warn."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", EXAMPLES / name, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("name", "needs", "expected"),
    [
        ("event_log.py", (), ["seen login", "seen order", "seen logout", "events of the last minute: 3"]),
        ("work_queue.py", (), ["killed: 1", ALL_JOBS]),
        ("outbox.py", (), ["moved 2", "moved again 0", "the topic holds the table's events: True"]),
        ("duckdb_polars.py", ("duckdb", "polars"), CLICKS),
    ],
)
@pytest.mark.sampled(2)
def test_an_example_prints_the_same_each_time(
    tmp_path: Path, name: str, needs: tuple[str, ...], expected: list[str]
) -> None:
    for module in needs:
        pytest.importorskip(module)
    for _ in range(tries(2, quick=1)):
        assert run(name, tmp_path) == expected


def test_a_broker_s_directory_is_followed(tmp_path: Path) -> None:
    first, last = run("follow_broker.py", tmp_path, str(golden_root() / "clean"), "plain", "0")
    assert first.startswith("topics here: ")
    with kstore.open(golden_root() / "clean", read_only=True) as store:
        count = sum(1 for _ in store.log("plain").read(isolation_level="read_committed"))
    assert last == f"{count} records, positions ['plain-0']"


def test_the_asgi_application_appends_and_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    from asgi_app import App  # type: ignore[import-not-found, unused-ignore]  # examples are no package

    async def talk() -> list[bytes]:
        app = App(str(tmp_path / "data"))
        life: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        started = asyncio.Event()

        async def lived(message: dict[str, Any]) -> None:
            started.set()

        server = asyncio.create_task(app({"type": "lifespan"}, life.get, lived))
        life.put_nowait({"type": "lifespan.startup"})
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait({server, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert not server.done(), server.exception()

        async def post(body: bytes) -> bytes:
            answer: list[dict[str, Any]] = []

            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": body}

            async def send(message: dict[str, Any]) -> None:
                answer.append(message)

            await app({"type": "http", "method": "POST"}, receive, send)
            return bytes(answer[-1]["body"])

        lines = [await post(b"one")]
        streamed: asyncio.Queue[bytes] = asyncio.Queue()
        gone: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        async def stream(message: dict[str, Any]) -> None:
            if "body" in message:
                streamed.put_nowait(message["body"])

        reader = asyncio.create_task(
            app({"type": "http", "method": "GET", "query_string": b"from=0"}, gone.get, stream)
        )
        lines.append(await streamed.get())
        lines.append(await post(b"two"))  # arrives while the reader waits
        lines.append(await streamed.get())
        gone.put_nowait({"type": "http.disconnect"})
        await reader
        life.put_nowait({"type": "lifespan.shutdown"})
        await server
        return lines

    assert asyncio.run(talk()) == [b"0\n", b"one\n", b"1\n", b"two\n"]


def test_each_example_is_listed_and_tested() -> None:
    programs = sorted(path.name for path in EXAMPLES.glob("*.py"))
    tested = Path(__file__).read_text(encoding="utf-8")
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert len(programs) == 7
    for name in programs:
        assert name in listed
        assert name in tested or name.removesuffix(".py") in tested
