"""What a Spark user meets first: errors that start with their own sentence, missing packages, tables, registration."""

from __future__ import annotations

import subprocess
import sys
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
from kstore.spark.sentences import without_causes
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


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_a_worker_whose_reader_has_gone_ends_without_a_traceback(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(sock: object, authenticated: bool) -> int:
        raise error

    monkeypatch.setattr(daemon, "spark_worker", broken)
    assert daemon.worker(None, True) == daemon.STOPPED


def test_a_worker_that_fails_or_ends_is_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "spark_worker", lambda sock, authenticated: 7)
    assert daemon.worker(None, True) == 7

    def fail(sock: object, authenticated: bool) -> int:
        raise OSError("another one")

    monkeypatch.setattr(daemon, "spark_worker", fail)
    with pytest.raises(OSError, match="another one"):
        daemon.worker(None, True)


def test_the_daemon_has_no_thread_when_it_forks() -> None:
    code = "import kstore.spark.daemon, os, sys; print(len(os.listdir('/proc/self/task')), 'pyarrow' in sys.modules)"
    if not Path("/proc/self/task").exists():
        code = code.replace("len(os.listdir('/proc/self/task'))", "1")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False"]
