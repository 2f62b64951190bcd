"""The archive for executors: its contents, its settings, and that a Python without kstore runs from it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import kstore
from kstore.errors import ConfigError, MissingExtraError
from kstore.spark.pack import Packed, pack, settings_for
from tests.support.harness.unpacking import unpack


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return pack(tmp_path_factory.mktemp("pack") / "kstore.tar.gz")


@pytest.fixture(scope="module")
def unpacked(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("unpacked")
    unpack(packed.path, directory)
    return directory


def run_alone(directory: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in this Python with the packages of ``directory`` and no installed ones."""
    start = f"import sys; sys.path.insert(0, {str(directory)!r})\n"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", start + script], capture_output=True, text=True, cwd=directory
    )


@pytest.mark.long
def test_a_python_without_kstore_reads_a_log_from_the_archive(unpacked: Path, tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "log", compression_type="zstd") as log:
        log.append_many([b"a" * 100, b"b"])
    done = run_alone(
        unpacked,
        "import kstore, kstore.spark\n"
        f"print(kstore.__file__, [len(r.value) for r in kstore.Log({str(tmp_path / 'log')!r}, read_only=True).read()])",
    )
    assert done.stdout == f"{unpacked / 'kstore' / '__init__.py'} [100, 1]\n", done.stderr


def test_the_archive_holds_what_is_required_and_no_sources_of_compiled_modules(packed: Packed, unpacked: Path) -> None:
    assert {"kstore", "crc32c", "lz4", "zstandard", "cramjam"} <= set(packed.packages)
    assert "pyspark" not in packed.packages
    with tarfile.open(packed.path) as archive:
        names = [Path(name).name for name in archive.getnames()]
    assert (unpacked / "pyspark_kstore" / "__init__.py").exists()
    assert not [name for name in names if name.endswith((".pyx", ".c", ".pyc", ".pxi"))]
    assert [name for name in names if name.startswith("_codec.") and name.endswith(".so")]
    assert packed.size == packed.path.stat().st_size


def test_the_settings_unpack_it_where_the_path_points(packed: Packed) -> None:
    assert packed.settings == settings_for(str(packed.path))
    archive, _, directory = packed.settings["spark.archives"].partition("#")
    assert archive == str(packed.path)
    assert packed.settings["spark.executorEnv.PYTHONPATH"] == directory
    assert settings_for("hdfs://name-node/k.tgz")["spark.archives"] == f"hdfs://name-node/k.tgz#{directory}"
    assert packed.runs_on.startswith(f"Python {sys.version_info.major}.{sys.version_info.minor}, {sys.platform}")


@pytest.mark.long
def test_more_packages_come_with_what_they_require(tmp_path: Path) -> None:
    more = pack(tmp_path / "more.tgz", packages=["Prometheus_Client", "pytest"])
    assert {"prometheus-client", "pytest", "pluggy", "iniconfig"} <= set(more.packages)
    with tarfile.open(more.path) as archive:
        names = archive.getnames()
    assert "pluggy/__init__.py" in names
    assert not [name for name in names if ".." in name or name.startswith("/")]


@pytest.mark.long
def test_the_same_packages_make_the_same_bytes(packed: Packed, tmp_path: Path) -> None:
    assert pack(tmp_path / "again.tar.gz").path.read_bytes() == packed.path.read_bytes()


def test_what_cannot_be_packed_is_refused_and_leaves_what_was_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.tar\.gz"):
        pack(tmp_path / "kstore.zip")
    there = tmp_path / "kstore.tgz"
    there.write_bytes(b"before")
    with pytest.raises(MissingExtraError, match="no-such-package cannot be packed"):
        pack(there, packages=["no-such-package"])
    assert there.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [there]


def test_a_python_without_the_compiled_modules_says_what_to_do(unpacked: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for path in unpacked.rglob("*"):
        if path.is_file() and not path.name.startswith("_codec."):
            target = copy / path.relative_to(unpacked)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    done = run_alone(copy, "import kstore.spark")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: kstore's compiled modules for Python ")
    assert f"are not in {copy / 'kstore'}: " in last
    assert "kstore spark pack" in last
