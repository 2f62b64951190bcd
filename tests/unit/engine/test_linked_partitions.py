"""Partitions behind symbolic links: found, served and copied once; never written through where files are for others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.cli.main import main
from kstore.clock import SYSTEM_CLOCK
from kstore.errors import FileInTheWayError, LockedError, StorageError
from kstore.files.linked import directories_in, is_directory
from kstore.files.local import SYSTEM_FS
from kstore.logs.directory import LogDirectory
from kstore.upkeep.mirror import mirror
from kstore.upkeep.verify import find_logs, verify

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with topics ``here`` and ``moved``; a link leads to the partition of ``moved`` on another disk."""
    with kstore.open(tmp_path / "data") as store:
        for topic in ("here", "moved"):
            store.create_topic(topic)
            store.log(topic).append(topic.encode())
    (tmp_path / "disk").mkdir()
    (tmp_path / "data" / "moved-0").rename(tmp_path / "disk" / "moved-0")
    (tmp_path / "data" / "moved-0").symlink_to("../disk/moved-0")
    return tmp_path / "data"


def values(root: Path, topic: str) -> list[bytes | None]:
    with kstore.open(root, read_only=True) as store:
        return [record.value for record in store.log(topic).read(0)]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> tuple[int, str]:
        status = main([str(argument) for argument in arguments])
        return status, capsys.readouterr().out

    return run


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_linked_partition_is_a_topic_of_the_store_and_is_read_and_written(root: Path) -> None:
    with kstore.open(root) as store:
        assert sorted(store.topics()) == ["here", "moved"]
        assert store.log("moved").append(b"more") == 1
    assert values(root, "moved") == [b"moved", b"more"]
    assert (root / "moved-0").is_symlink()


def test_a_linked_partition_of_a_broker_is_a_topic_too(root: Path) -> None:
    (root / "kstore.topics").unlink()
    with kstore.open(root, read_only=True) as store:
        assert sorted(store.topics()) == ["here", "moved"]


@pytest.mark.parametrize("command", ["verify", "stats", "recover"])
def test_a_command_over_a_store_names_its_linked_partitions(root: Path, command: str, run: Run) -> None:
    status, output = run(command, root)
    assert status == 0
    assert "moved-0" in output


def test_a_dump_of_a_directory_follows_a_link_to_a_partition_and_no_link_within_it(
    root: Path, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "disk" / "moved-0" / "again").symlink_to("..")
    status, output = run("dump-log", "--files", root)
    assert status == 0
    assert output.count(f"{root}/moved-0/{0:020d}.log") == 1
    assert "again" not in output


def test_damage_behind_a_link_is_found(root: Path) -> None:
    with (root / "moved-0" / f"{0:020d}.log").open("r+b") as file:
        file.seek(30)
        file.write(b"\xff\xff")
    assert [Path(each.path).name for each in verify(root) if not each.is_sound] == ["moved-0"]


# --- two names, circles, nowhere --------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["moved-0", "../disk/moved-0", "here-0"])
@pytest.mark.parametrize(
    "use",
    [
        lambda root: kstore.open(root).close(),
        lambda root: kstore.open(root, read_only=True).close(),
        find_logs,
        lambda root: list(mirror(str(root), str(root.parent / "copy"))),
    ],
    ids=["store", "read-only store", "commands", "mirror"],
)
def test_two_names_of_one_directory_are_refused_with_both_names(
    root: Path, target: str, use: Callable[[Path], object]
) -> None:
    (root / "other-0").symlink_to(target)
    with pytest.raises(StorageError, match=r"same directory as .*(moved|other|here)-0") as raised:
        use(root)
    assert "other-0" in str(raised.value)


def test_a_link_to_the_directory_that_holds_it_is_refused(root: Path) -> None:
    (root / "loop-0").symlink_to(".")
    with pytest.raises(StorageError, match="same directory as"):
        kstore.open(root, read_only=True)


@pytest.mark.parametrize("target", ["nowhere", "gone-0"], ids=["dangling", "a circle"])
def test_a_link_that_leads_to_no_directory_is_damage_to_verify_and_a_note_of_the_store(
    root: Path, target: str, run: Run
) -> None:
    (root / "gone-0").symlink_to(target)
    (finding,) = next(iter(verify(root))).damages
    assert (finding.kind, finding.path) == ("name", f"{root}/gone-0")
    assert run("verify", root)[0] == 1
    with kstore.open(root, read_only=True) as store:
        assert sorted(store.topics()) == ["here", "moved"]


def test_a_topic_whose_link_leads_nowhere_is_told(root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "disk" / "moved-0").rename(tmp_path / "disk" / "away")
    with caplog.at_level(logging.WARNING):
        kstore.open(root).close()
    assert "moved-0 is a symbolic link that leads to no directory" in caplog.text
    (tmp_path / "disk" / "away").rename(tmp_path / "disk" / "moved-0")
    assert values(root, "moved") == [b"moved"]


def test_links_to_files_and_other_directories_are_no_partitions(root: Path, tmp_path: Path) -> None:
    (root / "file-0").symlink_to("kstore.topics")
    (root / "notes").symlink_to(tmp_path)
    assert directories_in(SYSTEM_FS, root, ["file-0", "here-0", "moved-0", "missing-0"]) == (["here-0", "moved-0"], [])
    assert not is_directory(SYSTEM_FS, root / "file-0")
    assert [log.name for log in find_logs(root)] == ["here-0", "moved-0"]


# --- writing ----------------------------------------------------------------------------------------------------------


def test_a_store_whose_own_partition_is_linked_from_another_store_keeps_that_one_out(
    root: Path, tmp_path: Path
) -> None:
    with kstore.open(tmp_path / "disk") as owner:
        assert owner.log("moved").append(b"mine") == 1
        with kstore.open(root) as other, pytest.raises(LockedError):
            other.log("moved").append(b"too")
    with kstore.open(root) as other:
        assert other.log("moved").append(b"later") == 2
        with kstore.open(tmp_path / "disk") as owner, pytest.raises(LockedError):
            owner.log("moved").append(b"too")


def test_deleting_a_linked_topic_removes_the_link_and_says_where_the_data_stays(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    moved = tmp_path / "disk" / "moved-0"
    with caplog.at_level(logging.WARNING), kstore.open(root) as store:
        store.delete_topic("moved")
        assert f"the data stays in {moved}" in caplog.text
        assert store.topics() == ["here"]
    before = sorted(moved.iterdir())
    directory = LogDirectory(SYSTEM_FS, root, SYSTEM_CLOCK, file_mode=0o600)
    assert directory.remove_deleted(at_once=True) == 1
    directory.close()
    assert [path.name for path in root.iterdir() if "moved" in path.name] == []
    assert sorted(moved.iterdir()) == before
    with kstore.Log(moved, read_only=True) as log:
        assert [record.value for record in log.read(0)] == [b"moved"]


def test_a_backup_stores_the_data_behind_a_link_and_a_restore_makes_a_directory(root: Path, tmp_path: Path) -> None:
    with kstore.open(root) as store:
        store.backup(tmp_path / "backups")
    assert not (tmp_path / "backups" / "moved-0").is_symlink()
    kstore.restore(tmp_path / "backups", tmp_path / "restored")
    assert values(tmp_path / "restored", "moved") == [b"moved"]
    assert not (tmp_path / "restored" / "moved-0").is_symlink()


def test_a_backup_is_not_written_through_a_link_in_its_place(root: Path, tmp_path: Path) -> None:
    for name in ("backups", "precious"):
        (tmp_path / name).mkdir()
    (tmp_path / "backups" / "here-0").symlink_to("../precious")
    with kstore.open(root) as store, pytest.raises(FileInTheWayError, match="a symbolic link"):
        store.backup(tmp_path / "backups")
    assert not list((tmp_path / "precious").iterdir())


def test_a_restore_is_not_written_through_a_link(root: Path, tmp_path: Path) -> None:
    with kstore.open(root) as store:
        store.backup(tmp_path / "backups")
    (tmp_path / "precious").mkdir()
    (tmp_path / "restored").symlink_to("precious")
    with pytest.raises(FileInTheWayError):
        kstore.restore(tmp_path / "backups", tmp_path / "restored")
    assert not list((tmp_path / "precious").iterdir())


def test_a_mirror_copies_the_data_behind_a_link_and_writes_through_none(root: Path, tmp_path: Path) -> None:
    list(mirror(str(root), str(tmp_path / "copy")))
    assert not (tmp_path / "copy" / "moved-0").is_symlink()
    with kstore.Log(tmp_path / "copy" / "moved-0", read_only=True) as log:
        assert log.end_offset == 1
    (tmp_path / "other").mkdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / "other" / "here-0").symlink_to("../precious")
    (result,) = mirror(str(root / "here-0"), str(tmp_path / "other" / "here-0"))
    assert isinstance(result.error, FileInTheWayError)
    assert not list((tmp_path / "precious").iterdir())
