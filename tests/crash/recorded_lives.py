"""Lives of a log whose operations are recorded below the C library, to be ended by power cuts.

Compiled code writes and syncs through descriptors that no ``FileSystem`` sees; ``recorder.c``, preloaded, sees the
calls themselves. It needs Linux with glibc, and a C compiler.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from kstore.types import Durability
from tests.conftest import MEMORY
from tests.crash.power_cuts import ROOT
from tests.crash.recorded_processes import LIVES
from tests.crash.shared_power_lives import SharedLife
from tests.crash.shared_processes import Lived
from tests.support.fakes.fake_fs import Operation
from tests.support.harness.evidence import Crashed

REPOSITORY = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("recorder.c")
RECORDED_LIVES = tuple(LIVES)


def reason_not_to_record() -> str:
    """Why this machine cannot record calls; empty if it can."""
    if sys.platform != "linux" or os.confstr("CS_GNU_LIBC_VERSION") is None:
        return "calls are recorded below glibc, on Linux"
    if shutil.which("cc") is None:
        return "the recorder of calls needs a C compiler, cc"
    return ""


def compiled_recorder(directory: Path) -> Path:
    """Compiles the library to preload into ``directory``; returns its path."""
    made = directory / "recorder.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", made, SOURCE, "-ldl", "-lpthread"], check=True)
    return made


def recorded_lived(name: str, durability: Durability, recorder: Path, variant: int = 0) -> SharedLife:
    """The life of this name, to its end; one process alone opens what it leaves, shared or not."""
    with TemporaryDirectory(prefix="kstore-recorded-", dir=MEMORY if MEMORY.is_dir() else None) as directory:
        disk, recording = Path(directory, "disk"), Path(directory, "recording")
        disk.mkdir()
        recording.touch()
        command = [sys.executable, "-W", "ignore", "-m", "tests.crash.recorded_processes"]
        ended = subprocess.run(
            [*command, disk, recording, name, durability, str(variant)],
            cwd=REPOSITORY,
            capture_output=True,
            timeout=120,
            env={
                **os.environ,
                "LD_PRELOAD": str(recorder),
                "KSTORE_RECORDED": str(disk),
                "KSTORE_RECORDING": str(recording),
            },
        )
        if ended.returncode:
            raise Crashed(ended.stderr.decode())
        operations = list(_operations(recording.read_text(), str(disk)))
    lived: Lived = pickle.loads(ended.stdout)
    return SharedLife(durability, lived._replace(operations=operations))


def _operations(recording: str, disk: str) -> Iterator[Operation]:
    for line in recording.splitlines():
        kind, inode, position, size, mtime_ns, path, target, data = line.split("\t")
        path, target = (f"{ROOT}{each.removeprefix(disk)}" if each else "" for each in (path, target))
        path = path.removesuffix(" (deleted)")
        yield Operation(kind, path, int(inode), int(position), int(size), bytes.fromhex(data), target, int(mtime_ns))
