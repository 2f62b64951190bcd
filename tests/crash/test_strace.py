"""Nothing bypasses ``kstore/files/fs.py``: ``strace`` sees a log do exactly what the recording file system saw.

The crash tests cut the power at, and fail, every operation that a recording ``FileSystem`` sees. They prove nothing
about one that it does not see. So this test runs a log's life under strace, and compares every system call that opens,
creates, changes, syncs, maps, renames or removes a file below its directory, or that directory's own name, with the
recorded operations.

Two things are left out. ``.lock`` is not opened through the file system: its text is for people, and is never read
back. A store into a mapping is not a system call; the map itself is one, and is compared.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kstore.files.paths import LOCK

ROOT = Path(__file__).resolve().parents[2]

# One operation: its kind, the file's path, and details that identify it.
Call = tuple[object, ...]

# A question mark marks calls that some machines lack.
TRACED = (
    "?open,openat,?openat2,?creat,write,pwrite64,writev,pwritev,pwritev2,fsync,fdatasync,?sync_file_range,msync,"
    "?truncate,ftruncate,fallocate,?rename,renameat,renameat2,?link,linkat,?symlink,symlinkat,?unlink,unlinkat,?rmdir,"
    "?mkdir,mkdirat,?mknod,mknodat,mmap,?sendfile,?copy_file_range,?splice,?utime,?utimes,?futimesat,utimensat,"
    "?chmod,fchmod,fchmodat,?chown,fchown,fchownat,?setxattr,?fsetxattr,?ioctl,?io_uring_setup"
)
LINE = re.compile(r"(\w+)\((.*)\) += (-?\d+|0x[0-9a-f]+|\?)")
DESCRIPTOR = re.compile(r"(?:-?\d+|AT_FDCWD)<([^>]*)>")
PATH = re.compile(r'"([^"]*)"')
NUMBER = re.compile(r"(?<![\w<])(\d+)(?![\w>])")


def traced(directory: Path, work: Path) -> tuple[list[str], list[list[object]]]:
    """One run of ``strace_life``: strace's lines for all threads, and the recorded operations."""
    command = ["strace", "-ff", "-y", "-x", "-s", "0", "-e", f"trace={TRACED}", "-o", str(work / "trace")]
    command += [sys.executable, "-m", "tests.crash.strace_life", str(directory)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    if "ptrace" in run.stderr and not list(work.glob("trace.*")):
        pytest.skip(f"strace may not trace here: {run.stderr.strip().splitlines()[0]}")
    assert run.returncode == 0, run.stderr
    lines = [line for path in sorted(work.glob("trace.*")) for line in path.read_text().splitlines()]
    return lines, [json.loads(line) for line in run.stdout.splitlines()]


# --- what was recorded ------------------------------------------------------------------------------------------------


def recorded_calls(kind: str, path: str, position: int, size: int, written: int, target: str) -> Iterator[Call]:
    """The system calls of a recorded operation."""
    if kind in ("pwrite", "write_all"):
        yield "write", path, position, written
    elif kind == "write_and_sync":
        yield "write and sync", path, position, written
    elif kind in ("fdatasync", "sync_mapping"):
        yield "fdatasync", path
    elif kind in ("fsync", "sync_dir"):
        yield "fsync", path
    elif kind == "truncate":
        yield "truncate", path, size
    elif kind == "allocate":
        yield "reserve", path, position, size
    elif kind == "map":
        yield "fill", path, size
        yield "map", path, size
    elif kind == "rename":
        yield "rename", path, target
    else:
        assert kind in ("open", "create", "unlink", "mkdir", "rmdir", "set_mtime"), kind
        yield kind, path


# --- what was seen ----------------------------------------------------------------------------------------------------


def seen_calls(line: str) -> Iterator[tuple[str, Call]]:
    """The operation and path in a line of strace; nothing for a failure or a read."""
    match = LINE.match(line)
    if match is None:
        return
    name, text, result = match.groups()
    # Best effort: having no space to reserve is an answer, not a failure.
    if result.startswith("-") and name != "fallocate":
        return
    # Written bytes are shown as an empty string.
    paths = [path for path in PATH.findall(text) if path]
    held = DESCRIPTOR.search(text)
    path = paths[0] if paths else held[1] if held else ""
    path = path.removesuffix(" (deleted)")
    rest = text[held.end() :] if held and name != "mmap" else text
    yield from ((path, (*call[:1], path, *call[1:])) for call in SEEN.get(name, _unknown(name))(rest, paths, result))


def _unknown(name: str) -> Callable[[str, list[str], str], list[Call]]:
    return lambda text, paths, result: [(name,)]


def _opened(text: str, paths: list[str], result: str) -> list[Call]:
    if "O_DIRECTORY" in text:
        return []
    if "O_TRUNC" in text:
        return [("open and truncate",)]
    return [("create" if "O_CREAT" in text else "open",)]


def _written(text: str, paths: list[str], result: str) -> list[Call]:
    return [("write", int(NUMBER.findall(text)[-1]), int(result))]


def _written_with_flags(text: str, paths: list[str], result: str) -> list[Call]:
    kind = "write and sync" if text.endswith("RWF_DSYNC") else "write"
    return [(kind, int(NUMBER.findall(text)[-1 if kind != "write" else -2]), int(result))]


def _allocated(text: str, paths: list[str], result: str) -> list[Call]:
    position, size = map(int, NUMBER.findall(text)[-2:])
    if "FALLOC_FL_KEEP_SIZE" in text:
        return [("reserve", position, size)]
    assert position == 0
    return [("fill", size)]


def _mapped(text: str, paths: list[str], result: str) -> list[Call]:
    # Address, size and the kind of mapping come before the descriptor.
    size, access = re.findall(r"\w+", text)[1:3]
    return [("map", int(size))] if "PROT_WRITE" in text and "MAP_SHARED" in text else [("map to read", access)]


SEEN: dict[str, Callable[[str, list[str], str], list[Call]]] = {
    "open": _opened,
    "openat": _opened,
    "pwrite64": _written,
    "pwritev": _written,
    "pwritev2": _written_with_flags,
    "fdatasync": lambda text, paths, result: [("fdatasync",)],
    "fsync": lambda text, paths, result: [("fsync",)],
    "ftruncate": lambda text, paths, result: [("truncate", int(NUMBER.findall(text)[-1]))],
    "fallocate": _allocated,
    "rename": lambda text, paths, result: [("rename", paths[1])],
    "renameat": lambda text, paths, result: [("rename", paths[1])],
    "renameat2": lambda text, paths, result: [("rename", paths[1])],
    "unlink": lambda text, paths, result: [("unlink",)],
    "unlinkat": lambda text, paths, result: [("rmdir" if "AT_REMOVEDIR" in text else "unlink",)],
    "rmdir": lambda text, paths, result: [("rmdir",)],
    "mkdir": lambda text, paths, result: [("mkdir",)],
    "mkdirat": lambda text, paths, result: [("mkdir",)],
    "utimensat": lambda text, paths, result: [("set_mtime",)],
    "mmap": _mapped,
    "ioctl": lambda text, paths, result: [],  # Python does this for every file that it opens itself
}


def test_no_file_operation_bypasses_the_file_system(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    directory, work = tmp_path / "data", tmp_path / "work"
    directory.mkdir()
    work.mkdir()
    lines, operations = traced(directory, work)
    seen: Counter[Call] = Counter()
    for line in lines:
        for path, call in seen_calls(line):
            # A log syncs its own name, and its directory's name, which is in the parent.
            is_watched = Path(path).is_relative_to(directory) or Path(path) == directory.parent
            if is_watched and not path.endswith(f"/{LOCK}"):
                seen[call] += 1
    recorded = Counter(
        call
        for operation in operations
        for call in recorded_calls(*operation)  # type: ignore[arg-type]
    )
    assert seen - recorded == Counter(), "done, but not through the file system"
    assert recorded - seen == Counter(), "requested of the file system, but not seen"
    kinds = {call[0] for call in seen}
    assert kinds >= {"open", "create", "write", "write and sync", "fdatasync", "fsync", "truncate", "reserve"}
    assert kinds >= {"fill", "map", "rename", "unlink", "mkdir"}
    print(f"{seen.total()} system calls, {recorded.total()} recorded: 0 differ")
