"""Which names in a directory are directories, where some may be symbolic links: the one place that decides about links.

A broker serves a partition that was moved to another disk with a link left in its place. So a link to a directory is
followed once where logs are looked for: two names for one directory are refused, because two logs there would overwrite
one another. Where files are written for others (backups, mirrors), no link is followed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from kstore.errors import FileInTheWayError, FileMissingError, PathLike, StorageError
from kstore.files.fs import FileStat, FileSystem


class Directories(NamedTuple):
    """``names`` are directories, or links to some, as they were listed; ``broken`` are links that lead nowhere, or in a
    circle."""

    names: list[str]
    broken: list[str]


def directories_in(fs: FileSystem, path: Path, names: Iterable[str]) -> Directories:
    """Those of ``names``, in the directory ``path``, that are directories; names that have disappeared are left out.

    Raises: StorageError, also for two names of one directory, and for a link to ``path`` itself.
    """
    stats: dict[str, FileStat] = {}
    for name in names:
        try:
            stats[name] = fs.stat(path / name)
        except FileMissingError:
            continue
    return directories_of(fs, path, stats)


def directories_of(fs: FileSystem, path: Path, stats: Mapping[str, FileStat]) -> Directories:
    """As ``directories_in``, for names whose own stats, not those behind links, are known."""
    found: dict[str, FileStat] = {}
    broken: list[str] = []
    has_links = False
    for name, own in stats.items():
        stat = own
        if not own.is_dir and not own.is_file:
            try:
                stat = fs.stat(path / name, follow_symlinks=True)
            except StorageError:
                broken.append(name)
                continue
            has_links |= stat.is_dir
        if stat.is_dir:
            found[name] = stat
    if has_links:
        _refuse_twins(fs, path, found)
    return Directories(list(found), broken)


def _refuse_twins(fs: FileSystem, path: Path, found: Mapping[str, FileStat]) -> None:
    above = fs.stat(path, follow_symlinks=True)
    names = {(above.device, above.inode): str(path)}
    for name, stat in found.items():
        other = names.setdefault((stat.device, stat.inode), name)
        if other != name:
            what = f"it leads to the same directory as {other}, expected one name for each directory"
            raise StorageError(errno.ELOOP, what, str(path / name))


def is_directory(fs: FileSystem, path: Path) -> bool:
    """Whether ``path`` is a directory, or a link to one. Raises: FileMissingError if the name does not exist."""
    stat = fs.stat(path)
    if stat.is_dir or stat.is_file:
        return stat.is_dir
    try:
        return fs.stat(path, follow_symlinks=True).is_dir
    except StorageError:
        return False  # it leads nowhere


def is_link(fs: FileSystem, path: PathLike) -> bool:
    """Whether the name exists, and is a link to a directory. Raises: StorageError."""
    try:
        return not fs.stat(path).is_dir and fs.stat(path, follow_symlinks=True).is_dir
    except FileMissingError:
        return False


def link_target(path: PathLike) -> str:
    """Where a link leads, for people."""
    return os.path.realpath(path)


def refuse_link(fs: FileSystem, path: PathLike) -> None:
    """Raises: FileInTheWayError if ``path`` is a link, in a place whose files are written for others; StorageError."""
    try:
        stat = fs.stat(path)
    except FileMissingError:
        return
    if not stat.is_dir and not stat.is_file:
        what = "a symbolic link, expected a directory: nothing is written through links"
        raise FileInTheWayError(errno.ELOOP, what, os.fspath(path))
