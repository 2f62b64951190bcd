"""``kstore.testing`` in a project of its own: pytest there knows nothing else of kstore."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kstore import testing

CONFTEST = 'pytest_plugins = ["kstore.testing"]\n'
TESTS = """
import socket

import kstore


def test_a_store_is_empty_and_its_door_listens(kafka_store, kafka_door, kafka_bootstrap):
    assert kafka_store.topics() == []
    host, port = kafka_bootstrap.split(":")
    socket.create_connection((host, int(port)), timeout=10).close()
    kafka_store.create_topic("seen-by-one-test")


def test_another_test_has_another_store(kafka_store):
    assert kafka_store.topics() == []


def test_the_shared_one_is_the_same_in_all_tests(kafka_session_bootstrap, kafka_prefix, request):
    request.config.stash[KEY] = kafka_session_bootstrap, kafka_prefix


def test_and_prefixes_differ(kafka_session_bootstrap, kafka_prefix, request):
    before, prefix = request.config.stash[KEY]
    assert before == kafka_session_bootstrap
    assert prefix != kafka_prefix


def test_faults_belong_to_the_door(kafka_faults, kafka_door):
    assert kafka_faults is kafka_door.faults
    kafka_faults.stop_answering("Metadata")


import pytest

KEY = pytest.StashKey()
"""


def test_stores_are_in_memory_if_there_is_enough(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testing, "MEMORY", tmp_path)
    monkeypatch.setattr(testing, "MEMORY_BYTES_MIN", 1)
    with testing._directory(tmp_path_factory) as path:
        assert path.parent == tmp_path
        (path / "file").touch()
    assert not path.exists()


@pytest.mark.parametrize(("name", "bytes_min"), [("", 1 << 60), ("absent", 1)], ids=["too little", "none"])
def test_stores_are_on_disk_otherwise(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    bytes_min: int,
) -> None:
    monkeypatch.setattr(testing, "MEMORY", tmp_path / name)
    monkeypatch.setattr(testing, "MEMORY_BYTES_MIN", bytes_min)
    with testing._directory(tmp_path_factory) as path:
        assert path.parent == tmp_path_factory.getbasetemp()


def test_an_error_of_a_test_is_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(OSError, match="a test's"), testing._directory(tmp_path_factory):
        raise OSError("a test's")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_kafka.py").write_text(TESTS, encoding="utf-8")
    return tmp_path


def run(project: Path, *arguments: str) -> str:
    words = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_fixtures_work_in_a_project_of_its_own(project: Path) -> None:
    assert "5 passed" in run(project)


def test_the_fixtures_are_listed_with_what_they_are_for(project: Path) -> None:
    listed = run(project, "--fixtures")
    for name in ("kafka_store", "kafka_door", "kafka_bootstrap", "kafka_faults", "kafka_session_bootstrap"):
        assert name in listed


def test_without_the_line_in_conftest_nothing_of_kstore_is_loaded(project: Path) -> None:
    (project / "conftest.py").unlink()
    (project / "test_kafka.py").write_text(
        "import sys\ndef test_nothing():\n    assert not any(name.startswith('kstore') for name in sys.modules)\n",
        encoding="utf-8",
    )
    assert "1 passed" in run(project)
