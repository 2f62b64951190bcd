"""The programs in examples/ do what they say, even a second time in the same directory."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import runpy
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

import kstore
from tests.support.harness.golden_data import golden_root
from tests.support.harness.selection import tries

ROOT = Path(__file__).resolve().parents[3]
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
@pytest.mark.sampled(1)
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


def test_the_asgi_application_appends_and_streams_under_a_real_server(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    options = ("--port", "0", "--timeout-graceful-shutdown", "1", "--no-use-colors")
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "--app-dir", EXAMPLES, "asgi_app:app", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert server.stderr is not None
    with server, server.stderr as said, contextlib.ExitStack() as connections:
        try:
            log: list[str] = []
            while not (running := re.search(r"running on http://127\.0\.0\.1:(\d+)", log[-1] if log else "")):
                log.append(said.readline())
                assert log[-1], log

            def ask(method: str, path: str, body: bytes | None = None) -> http.client.HTTPResponse:
                connection = http.client.HTTPConnection("127.0.0.1", int(running[1]), timeout=60)
                connections.callback(connection.close)
                connection.request(method, path, body)
                return connection.getresponse()

            assert ask("POST", "/", b"one").read() == b"0\n"
            stream = ask("GET", "/?from=0")
            assert stream.readline() == b"one\n"
            assert ask("POST", "/", b"two" * 100_000).read() == b"1\n"  # in several parts, while the reader waits
            assert stream.readline() == b"two" * 100_000 + b"\n"
            stream.close()
            connections.close()  # the server sees that the reader is gone
            server.send_signal(signal.SIGINT)
            log += said.readlines()
        finally:
            server.kill()
    assert not any("Traceback" in line for line in log), log
    with kstore.open(tmp_path / "data", read_only=True) as store:
        assert store.log("events").end_offset == 2


@pytest.mark.parametrize("given", [(), ("nowhere", "t"), ("there", "t")], ids=["nothing", "no directory", "no topic"])
def test_following_a_broker_says_in_a_line_what_it_lacks(tmp_path: Path, given: tuple[str, ...]) -> None:
    kstore.open(tmp_path / "there").close()
    done = subprocess.run(
        [sys.executable, EXAMPLES / "follow_broker.py", *given],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert ("usage: " if not given else "there is no ") in done.stderr


@pytest.mark.parametrize("missing", ["duckdb", "polars", "pyarrow"])
def test_an_example_without_its_packages_names_them(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("duckdb", "polars", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None if name == missing else types.ModuleType(name))
    with pytest.raises(SystemExit, match=f"{missing}.*needs pip install 'kstore\\[arrow\\]' duckdb polars"):
        runpy.run_path(str(EXAMPLES / "duckdb_polars.py"))


def test_each_example_is_listed_and_tested() -> None:
    programs = sorted(path.name for path in EXAMPLES.glob("*.py"))
    tested = Path(__file__).read_text(encoding="utf-8")
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert len(programs) == 7
    for name in programs:
        assert name in listed
        assert name in tested or name.removesuffix(".py") in tested
