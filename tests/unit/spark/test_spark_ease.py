"""What a Spark user meets first: errors that start with their own sentence, missing packages, tables, registration."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from kstore.cli import spark as cli
from kstore.errors import ConfigError, DataLossError, FileMissingError, LogNotFoundError, MissingExtraError
from kstore.log import Log
from kstore.spark import daemon
from kstore.spark.options import ReadOptions
from kstore.spark.sentences import sentence, without_causes
from kstore.spark.session import missing_extra, register
from kstore.spark.source import KStoreDataSource
from tests.spark.reading import make_reader, splits_of, table_of


def test_an_error_leaves_without_its_causes() -> None:
    @without_causes()
    def fail() -> None:
        try:
            raise OSError("the disk's words")
        except OSError as error:
            raise DataLossError("kstore's sentence") from error

    with pytest.raises(DataLossError) as caught:
        fail()
    text = "".join(traceback.format_exception(caught.value))
    assert "kstore's sentence" in text
    assert "the disk's words" not in text


def test_an_error_leaves_without_inner_frames_and_ends_with_its_sentence(tmp_path: Path) -> None:
    with pytest.raises(LogNotFoundError) as caught:
        make_reader(tmp_path / "nowhere").partitions()
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    assert [line for line in lines if "kstore/spark/" in line] == []
    assert lines[-1] == f"kstore.errors.LogNotFoundError: {caught.value}"


@pytest.mark.parametrize(
    "text",
    [
        "[PYTHON] failed\nTraceback:\nkstore.errors.DataLossError: it is gone\n SQLSTATE: 38000",
        "org.apache.PythonException: Traceback\nkstore.errors.DataLossError: it is gone\n\n\tat x.y(z.scala)",
        "[STREAM_FAILED] Job aborted: kstore.errors.DataLossError: it is gone\nTraceback",
    ],
)
def test_the_sentence_is_taken_out_of_what_spark_writes(text: str) -> None:
    assert sentence(RuntimeError(text)) == "it is gone"


def test_an_error_of_another_program_has_no_sentence() -> None:
    assert sentence(RuntimeError("java.io.IOException: no space\n  at kstore.spark.reader")) is None
    assert sentence(DataLossError("it is\ngone")) == "it is gone"


def test_other_errors_keep_their_causes() -> None:
    @without_causes()
    def fail() -> None:
        raise ValueError("a defect") from OSError("why")

    with pytest.raises(ValueError, match="a defect") as caught:
        fail()
    assert isinstance(caught.value.__cause__, OSError)


def test_a_task_whose_log_is_gone_shows_one_traceback(tmp_path: Path) -> None:
    with Log(tmp_path / "t-0") as log:
        log.append(b"value")
    reader = make_reader(tmp_path)
    splits = splits_of(reader)
    (tmp_path / "t-0").rename(tmp_path / "elsewhere")
    with pytest.raises(DataLossError, match="the log is gone") as caught:
        table_of(reader, splits)
    assert "".join(traceback.format_exception(caught.value)).count("Traceback (most recent call last)") == 1


def test_what_spark_calls_on_the_driver_shows_one_traceback(tmp_path: Path) -> None:
    with pytest.raises(LogNotFoundError) as caught:
        make_reader(tmp_path / "nowhere").partitions()
    assert "".join(traceback.format_exception(caught.value)).count("Traceback (most recent call last)") == 1


def test_a_missing_package_names_the_extra() -> None:
    for error, package in (
        (ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow.compute"), "pyarrow"),
        (ImportError("something else"), "pyspark"),
    ):
        assert str(missing_extra(error)) == f"Spark needs {package}: pip install 'kstore[spark]'"


@pytest.mark.parametrize("job", ["verify", "rebuild-indexes"])
def test_a_job_without_pyspark_names_the_extra(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")

    monkeypatch.setattr(cli, "import_module", refuse)
    done = CliRunner().invoke(cli.command, [job, "data"])
    assert done.exit_code != 0
    said = done.output + str(done.exception)
    assert "Spark needs pyspark: pip install 'kstore[spark]'" in said


def test_a_module_of_kstores_own_that_is_missing_is_no_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(cli, "import_module", refuse)
    done = CliRunner().invoke(cli.command, ["verify", "data"])
    assert isinstance(done.exception, ModuleNotFoundError)
    assert not isinstance(done.exception, MissingExtraError | FileMissingError)


@pytest.mark.parametrize("options", [{"location": "file:/data"}, {"location": "file:/data", "subscribe": "orders"}])
def test_a_table_is_refused_and_a_view_named_instead(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"cannot be a table: .* CREATE TEMPORARY VIEW name USING kstore OPTIONS"):
        KStoreDataSource(options).schema()


def test_a_table_that_is_read_has_no_options() -> None:
    with pytest.raises(ConfigError, match=r"there is no path: .* CREATE TEMPORARY VIEW name USING kstore OPTIONS"):
        ReadOptions.parse({}, streaming=False)


class Session:
    """The part of a session that ``register`` uses: the known formats, and the registered ones."""

    def __init__(self, *known: str, can_be_asked: bool = True) -> None:
        self.registered: list[type] = []
        self.dataSource = SimpleNamespace(register=self.registered.append)
        if can_be_asked:
            manager = SimpleNamespace(dataSourceExists=lambda name: name in known)
            state = SimpleNamespace(dataSourceManager=lambda: manager)
            self._jsparkSession = SimpleNamespace(sessionState=lambda: state)


@pytest.mark.parametrize(
    ("session", "is_registered"),
    [(Session(), True), (Session("kstore"), False), (Session(can_be_asked=False), True)],
    ids=["new", "known", "cannot be asked"],
)
def test_a_known_format_is_not_replaced(session: Session, is_registered: bool) -> None:
    register(cast(Any, session))
    assert session.registered == ([KStoreDataSource] if is_registered else [])


# --- a worker whose reader has gone -----------------------------------------------------------------------------------


def ended(process_id: int) -> None:
    """Waits until a process that others wait for has ended."""
    while True:
        try:
            os.kill(process_id, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)


@pytest.mark.parametrize("has_begun", [False, True], ids=["as it starts", "as it answers"])
def test_a_worker_whose_reader_has_gone_ends_without_a_traceback(has_begun: bool) -> None:
    command = [sys.executable, "-m", "kstore.spark.daemon", "pyspark.worker"]
    env = os.environ | {"PYTHON_WORKER_FACTORY_SECRET": "secret"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe) as spark_daemon:
        assert spark_daemon.stdout is not None
        (port,) = struct.unpack("!i", spark_daemon.stdout.read(4))
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port)) as reader:
                # Closing resets the connection, as Spark's end does while data are under way.
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if has_begun:
                    reader.sendall(struct.pack("!i6s", 6, b"secret"))
                    process_id, _, answer = struct.unpack("!ii2s", reader.makefile("rb").read(10))
                    assert answer == b"ok"
            if has_begun:
                ended(process_id)
        _, said = spark_daemon.communicate()
    assert said == b""


@pytest.mark.parametrize(
    ("error", "is_printed"), [(BrokenPipeError(), False), (ConnectionResetError(), False), (OSError("another"), True)]
)
def test_only_a_reader_that_has_gone_is_not_printed(
    error: OSError, is_printed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise error
    except OSError:
        daemon.print_exc()
    assert ("Traceback" in capsys.readouterr().err) == is_printed


def test_the_daemon_has_no_thread_when_it_forks() -> None:
    code = "import kstore.spark.daemon, os, sys; print(len(os.listdir('/proc/self/task')), 'pyarrow' in sys.modules)"
    if not Path("/proc/self/task").exists():
        code = code.replace("len(os.listdir('/proc/self/task'))", "1")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False"]
