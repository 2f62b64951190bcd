"""Which file system a directory is on, and to which ones others write past this machine's kernel."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import kstore
from kstore.errors import StorageError
from kstore.files import platform
from kstore.files.lock import DirectoryLock
from kstore.files.platform import foreign_type, type_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

FOREIGN = ("nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "fuse", "fuse.sshfs", "ceph", "lustre")


def mounted_as(kind: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the system report that ``path`` is on a file system of this type."""
    device = path.stat().st_dev
    told = path / "mountinfo"
    told.write_text(
        "22 27 0:99999 / /elsewhere rw - proc proc rw\n"
        f"36 35 {os.major(device)}:{os.minor(device)} / /a\\040name rw master:1 shared:2 - {kind} server:/dir rw\n"
    )
    monkeypatch.setattr(platform, "MOUNTS", str(told))


def test_the_system_tells_the_type(tmp_path: Path) -> None:
    assert (type_of("/proc"), type_of("/sys")) == ("proc", "sysfs")
    assert type_of(tmp_path / "missing") == ""


def test_without_a_list_of_mounts_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "MOUNTS", str(tmp_path / "missing"))
    assert (type_of(tmp_path), foreign_type(tmp_path)) == ("", "")


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_shared_must_be_this_machines(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted_as(kind, tmp_path, monkeypatch)
    with pytest.raises(StorageError, match=f"type {kind}, .* must be one of this machine's own"):
        kstore.Log(tmp_path / "log", shared=True)
    with pytest.raises(StorageError, match=f"type {kind}, "):
        kstore.open(tmp_path / "store", shared=True)
    with DirectoryLock(tmp_path) as lock:
        assert lock.held
    assert not (tmp_path / "log" / "kstore.state").exists()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk", "nilfs2"])
def test_what_is_this_machines_can_be_shared(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted_as(kind, tmp_path, monkeypatch)
    assert (type_of(tmp_path), foreign_type(tmp_path)) == (kind, "")
    kstore.Log(tmp_path / "log", shared=True).close()
