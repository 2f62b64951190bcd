"""Unpacks what a Kafka broker wrote, once for all the processes and runs of the tests.

``golden_root()`` is a directory with the trees that tests/golden/README.md describes. It is shared, so no test may
write in it: a test that changes files copies them first (``copy_partition``).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path

from tests.support.harness.unpacking import unpack

DATA = Path(__file__).parents[2] / "golden" / "data"
TREES = ("clean", "crashed", "recovered", "old", "damaged")
# The time of every file in the archives: another time means that it was written to.
PACKED_MTIME = 0


@cache
def golden_root() -> Path:
    """The directory of the unpacked trees: clean/ clean.dumped/ clean.consumed/ crashed/ ... damaged/ damaged.dumped/.

    It stays in the temporary directory for the next run, which unpacks again if a file of it was changed or is missing.
    """
    archives = sorted(DATA.glob("*.tar.xz"))
    digest = hashlib.sha256()
    for archive in archives:
        digest.update(archive.read_bytes())
    root = Path(tempfile.gettempdir()) / f"kstore-golden-{os.getuid()}-{digest.hexdigest()[:16]}"
    if not _is_intact(root):
        _unpack(archives, root)
    return root


def golden_partitions(tree: str) -> list[str]:
    """The names of the partition directories of ``tree``, sorted."""
    return sorted(path.name for path in (golden_root() / tree).iterdir() if path.is_dir())


def copy_partition(tree: str, partition: str, target: Path) -> Path:
    """A private, writable copy of a partition below ``target``; returns the partition's directory."""
    copy = target / partition
    shutil.copytree(golden_root() / tree / partition, copy, copy_function=shutil.copyfile)
    return copy


def _unpack(archives: list[Path], root: Path) -> None:
    # Other processes of the same run come here too: the first one unpacks, the rest wait and find it done.
    with root.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_intact(root):
            return
        shutil.rmtree(root, ignore_errors=True)
        aside = Path(tempfile.mkdtemp(prefix=f"{root.name}-", dir=root.parent))
        for archive in archives:
            unpack(archive, aside)
        count = sum(path.is_file() for path in aside.rglob("*"))
        (aside / "count").write_text(str(count))
        aside.rename(root)


def _is_intact(root: Path) -> bool:
    """Whether ``root`` is ours, complete, and as it was unpacked."""
    try:
        found = root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            return False
        count = int((root / "count").read_text())
    except (OSError, ValueError):
        return False
    seen = 0
    for tree in root.iterdir():
        for directory, _, names in os.walk(tree):
            for name in names:
                if Path(directory, name).lstat().st_mtime != PACKED_MTIME:
                    return False
                seen += 1
    return seen == count
