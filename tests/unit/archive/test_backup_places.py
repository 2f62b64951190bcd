"""Where backups and restores may be: never among the files of a store or a log."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kstore.archive.target import BackupTarget
from kstore.backup.restore import restore
from kstore.cli.main import main
from kstore.errors import (
    CorruptFileError,
    DivergedError,
    FileInTheWayError,
    FileMissingError,
    NotALogError,
    StorageError,
    UnsupportedFormatError,
)
from kstore.files.fs import FileStat
from kstore.files.local import OsFileSystem
from kstore.files.paths import META_PROPERTIES, TopicPartition
from kstore.log import Log
from kstore.store import Store

SETTINGS: dict[str, Any] = {"background": False, "recovery_threads": 1, "durability": "os"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store", **SETTINGS) as store:
        store.create_topic("orders", 2)
        store.log("orders").append(b"first")
        yield store


def another_store(path: Path) -> Path:
    with Store(path, **SETTINGS) as store:
        store.create_topic("orders")
    return path


def a_brokers_directory(path: Path) -> Path:
    path.mkdir()
    (path / META_PROPERTIES).write_text("version=1\n")
    return path


def a_log(path: Path) -> Path:
    Log(path, durability="os").close()
    return path


def in_a_log(path: Path) -> Path:
    return a_log(path) / "backups"


def in_the_store(path: Path) -> Path:
    return path.parent / "store" / "deep" / "backups"


def a_copy_of_a_log(path: Path) -> Path:
    a_log(path / "orders-0")
    return path


def tree(path: Path) -> list[Path]:
    return sorted(path.rglob("*"))


@pytest.mark.parametrize(
    "make",
    [another_store, a_brokers_directory, a_log, in_a_log, in_the_store, a_copy_of_a_log],
    ids=lambda one: one.__name__,
)
def test_a_backup_among_the_files_of_a_store_or_a_log_is_refused(
    make: Callable[[Path], Path], store: Store, tmp_path: Path
) -> None:
    target = make(tmp_path / "place")
    before = tree(target.parent / "place")
    with pytest.raises(FileInTheWayError, match=r"store|log"):
        store.backup(target)
    assert not set(tree(target)) - set(before) - {target / ".lock"}


def test_a_backup_of_a_store_into_itself_says_that_it_is_a_store(store: Store) -> None:
    with pytest.raises(FileInTheWayError, match="a store, expected a place for backups alone"):
        store.backup(store.path)


@pytest.mark.parametrize("read_only", [True, False], ids=["to read", "to write"])
def test_backups_are_not_opened_as_a_store(read_only: bool, store: Store, tmp_path: Path) -> None:
    store.backup(tmp_path / "backups")
    before = tree(tmp_path / "backups")
    with pytest.raises(NotALogError, match="backups, expected a directory of logs"):
        Store(tmp_path / "backups", read_only=read_only, **SETTINGS)
    assert tree(tmp_path / "backups") == before


def test_backups_that_were_once_opened_as_a_store_are_used_again(store: Store, tmp_path: Path) -> None:
    store.backup(tmp_path / "backups")
    (tmp_path / "backups" / META_PROPERTIES).write_text("version=1\n")
    assert store.backup(tmp_path / "backups").copied_count == 0


def test_a_store_with_a_manifest_among_its_files_still_opens(tmp_path: Path) -> None:
    path = another_store(tmp_path / "place")
    (path / "backup-000000000000001.manifest").touch()
    Store(path, **SETTINGS).close()


@pytest.mark.parametrize("name", ["orders-7", "other"])
def test_a_restore_into_a_store_is_refused(name: str, store: Store, tmp_path: Path) -> None:
    store.backup(tmp_path / "backups")
    with pytest.raises(FileInTheWayError, match="inside the store"):
        restore(tmp_path / "backups", store.path / name)
    assert not (store.path / name).exists()


def test_a_place_that_leads_out_of_a_store_again_is_outside(store: Store, tmp_path: Path) -> None:
    store.backup(store.path / ".." / "backups")
    restore(tmp_path / "backups", store.path / ".." / "new")
    assert (tmp_path / "new" / "orders-0").is_dir()


def test_a_place_inside_a_store_is_found_through_a_link(store: Store, tmp_path: Path) -> None:
    (store.path / "orders-0" / "deep").mkdir()
    (tmp_path / "link").symlink_to(store.path / "orders-0" / "deep")
    with pytest.raises(FileInTheWayError, match="inside the log"):
        store.backup(tmp_path / "link" / "backups")
    assert not (tmp_path / "link" / "backups").exists()


def test_a_restore_below_a_missing_directory_names_it(store: Store, tmp_path: Path) -> None:
    store.backup(tmp_path / "backups")
    with pytest.raises(FileMissingError, match=r"there is no such directory to restore into: '.*/missing'"):
        restore(tmp_path / "backups", tmp_path / "missing" / "new")


class MountedFs(OsFileSystem):
    """A file system in which ``path`` is a mount point."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stat(self, path: Any, *, follow_symlinks: bool = False) -> FileStat:
        found = super().stat(path, follow_symlinks=follow_symlinks)
        return found._replace(device=-1) if Path(path) == self.path else found


def test_a_restore_to_a_mount_point_is_refused_before_anything_is_written(store: Store, tmp_path: Path) -> None:
    store.backup(tmp_path / "backups")
    new = tmp_path / "new"
    new.mkdir()
    written: list[int] = []
    with pytest.raises(FileInTheWayError, match="a mount point"):
        restore(tmp_path / "backups", new, fs=MountedFs(new), progress=written.append)
    assert not written
    restore(tmp_path / "backups", new / "inside", fs=MountedFs(new))


def test_a_tilde_stands_for_the_home_directory(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store.backup("~/backups")
    restore("~/backups", "~/new")
    assert (tmp_path / "backups").is_dir()
    assert (tmp_path / "new").is_dir()


def test_a_directory_without_a_store_is_not_backed_up_as_an_empty_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For example, the mount point of a disk that is not mounted."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes.txt").touch()
    assert main(["backup", str(tmp_path / "data"), str(tmp_path / "backups")]) == 1
    assert "data: there is no store" in capsys.readouterr().err
    assert tree(tmp_path) == [tmp_path / "data", tmp_path / "data" / "notes.txt"]


def test_a_log_among_the_files_of_backups_is_refused_each_time_it_is_met(tmp_path: Path) -> None:
    """A replicator repeats its rounds with one target."""
    target = BackupTarget(a_copy_of_a_log(tmp_path / "place"))
    for _ in range(2):
        with pytest.raises(FileInTheWayError, match="a log, expected the files of backups"):
            target.copies(TopicPartition("orders", 0), 0, ".log", 1)


def test_backups_of_another_store_are_not_continued(store: Store, tmp_path: Path) -> None:
    """A restore takes the last backup in a place, whatever its store."""
    store.backup(tmp_path / "backups")
    before = tree(tmp_path / "backups")
    with (
        Store(another_store(tmp_path / "another"), **SETTINGS) as another,
        pytest.raises(DivergedError, match="choose another place"),
    ):
        another.backup(tmp_path / "backups")
    assert tree(tmp_path / "backups") == before


def test_a_store_is_the_same_after_a_restore_and_with_other_topics(store: Store, tmp_path: Path) -> None:
    store.backup(tmp_path / "backups")
    restore(tmp_path / "backups", tmp_path / "new")
    with Store(tmp_path / "new", **SETTINGS) as new:
        new.backup(tmp_path / "backups")
        new.delete_topic("orders")
        new.create_topic("orders")
        new.backup(tmp_path / "backups")


@pytest.mark.parametrize("kind", ["backup", "replica"])
def test_a_target_whose_last_name_leaves_no_later_one_is_refused(kind: str, store: Store, tmp_path: Path) -> None:
    store.backup(tmp_path / "backups")
    (tmp_path / "backups" / f"{kind}-999999999999999.manifest").touch()
    before = tree(tmp_path / "backups")
    with pytest.raises(CorruptFileError, match="leaves no later time"):
        store.backup(tmp_path / "backups")
    assert tree(tmp_path / "backups") == before


def test_a_damaged_last_backup_does_not_hide_whose_they_are(store: Store, tmp_path: Path) -> None:
    store.backup(tmp_path / "backups")
    last = store.backup(tmp_path / "backups")
    (tmp_path / "backups" / f"backup-{last.time_ms:015d}.manifest").write_bytes(b"damaged")
    with (
        Store(another_store(tmp_path / "another"), **SETTINGS) as another,
        pytest.raises(DivergedError, match="choose another place"),
    ):
        another.backup(tmp_path / "backups")
    assert store.backup(tmp_path / "backups").time_ms > last.time_ms


def test_backups_that_cannot_be_read_now_are_not_continued(store: Store, tmp_path: Path) -> None:
    """They may be another store's: a request to an object store fails now and then."""
    store.backup(tmp_path / "backups")
    before = tree(tmp_path / "backups")
    with (
        mock.patch.object(BackupTarget, "manifest", side_effect=StorageError(errno.EIO, "unreachable")),
        pytest.raises(StorageError, match="unreachable"),
    ):
        store.backup(tmp_path / "backups")
    assert tree(tmp_path / "backups") == before


def test_backups_of_a_later_version_are_not_continued(store: Store, tmp_path: Path) -> None:
    store.backup(tmp_path / "backups")
    (path,) = (tmp_path / "backups").glob("*.manifest")
    path.write_bytes(path.read_bytes().replace(b"kstore-backup 1 ", b"kstore-backup 3 "))
    with pytest.raises(UnsupportedFormatError, match="version 3, expected 1 to 2"):
        store.backup(tmp_path / "backups")
