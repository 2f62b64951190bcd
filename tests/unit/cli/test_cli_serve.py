"""``kstore serve``: what it prints, and how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

import kstore
from kstore.cli.main import main
from tests.support.lives.door_parts import WireClient

SECONDS_MAX = 60


def test_a_served_store_is_reached_at_the_first_line_and_ends_with_status_0_at_a_signal(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        command = [sys.executable, "-m", "kstore", "serve", "--port", "0", "--durability", "os", str(tmp_path / "data")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                host, port = process.stdout.readline().strip().rsplit(":", 1)
                with WireClient(int(port), host) as client:
                    body = {"topics": [{"name": f"made-at-{number}"}]}
                    assert client.ask("Metadata", 1, body)["topics"][0]["errorCode"] == 0
                    process.send_signal(number)
                    assert client.is_closed_by_peer()
                assert process.wait(SECONDS_MAX) == 0
            finally:
                process.kill()
    with kstore.open(tmp_path / "data") as store:
        assert set(store.topics()) == {f"made-at-{number}" for number in (signal.SIGTERM, signal.SIGINT)}
        assert store.recovery == {}


def test_sigterm_ends_a_background_job_of_a_script(tmp_path: Path) -> None:
    """A shell makes such a job ignore SIGINT."""
    command = [sys.executable, "-m", "kstore", "serve", "--port", "0", "--durability", "os", str(tmp_path / "data")]
    in_background = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *command]
    with subprocess.Popen(in_background, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            process.terminate()
            assert process.wait(SECONDS_MAX) == 0
        finally:
            process.kill()
    with kstore.open(tmp_path / "data") as store:
        assert store.recovery == {}


def test_a_read_only_door_needs_no_lock_and_leaves_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kstore.open(tmp_path / "data") as store:
        store.create_topic("orders")
        before = sorted(tmp_path.rglob("*"))
        with mock.patch("kstore.cli.serve._wait") as wait:
            assert main(["serve", "--read-only", "--port", "0", str(store.path)]) == 0
        wait.assert_called_once()
        assert sorted(tmp_path.rglob("*")) == before
    address, refused = capsys.readouterr().out.splitlines()
    assert address.startswith("127.0.0.1:")
    assert refused.startswith("Refused: writes")


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["--host", "0.0.0.0"], 1, "insecure"),
        (["--host", "0.0.0.0", "--insecure"], 1, "advertised"),
        (["--advertise", "nowhere"], 1, "host:port"),
        (["--partitions", "-1"], 2, "partitions"),
        (["--config", "idl_ms=3"], 2, "did you mean 'idle_ms'"),
        (["--config", "connections_max=0"], 2, "connections_max"),
    ],
    ids=["address", "advertised", "form", "partitions", "unknown setting", "setting"],
)
def test_what_cannot_be_served_is_said(
    arguments: list[str], status: int, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port", "0", *arguments, str(tmp_path / "data")]) == status
    assert reason in capsys.readouterr().err


def test_a_door_has_the_settings_that_are_given_in_either_spelling(tmp_path: Path) -> None:
    settings = [
        "--config=group.initial.rebalance.delay.ms=3000",
        "--config=offsets_retention_minutes=10080",
        "--config=memory_max=8MiB",
    ]
    with mock.patch("kstore.cli.serve.Door", wraps=kstore.Door) as door, mock.patch("kstore.cli.serve._wait"):
        assert main(["serve", "--port", "0", *settings, str(tmp_path / "data")]) == 0
    given = door.call_args.kwargs
    assert (given["rebalance_delay_ms"], given["offsets_retention_minutes"], given["memory_max"]) == (
        3000,
        10080,
        "8MiB",
    )
