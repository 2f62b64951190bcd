"""Output files: whole or as they were; pipes, devices and what this process has open are written to, never replaced."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

import kstore
from kstore.files.output import output_file

SECONDS = 60


def test_a_pipe_that_no_program_reads_is_an_error_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe that no program reads") as raised, output_file(tmp_path / "pipe"):
        pytest.fail("it was opened")
    assert raised.value.errno == errno.ENXIO
    assert (tmp_path / "pipe").is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_pipe_takes_more_than_it_holds_while_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    fd = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(fd, True)
    found: list[bytes] = []

    def read() -> None:
        with os.fdopen(fd, "rb") as pipe:
            found.append(pipe.read())

    reader = Thread(target=read)
    with output_file(tmp_path / "pipe") as out:
        reader.start()
        out.write(b"x" * (1 << 20))
    reader.join(SECONDS)
    assert found == [b"x" * (1 << 20)]


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    with output_file(os.devnull) as out:
        out.write(b"gone")
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
def test_what_the_process_has_open_is_written_to_and_not_replaced(tmp_path: Path, name: str) -> None:
    program = f"from kstore.files.output import output_file\nwith output_file({name!r}) as out: out.write(b'whole')"
    link = Path(name).readlink() if Path(name).is_symlink() else None
    with (tmp_path / "file").open("wb") as file:
        subprocess.run([sys.executable, "-c", program], stdout=file, check=True, timeout=SECONDS)
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert (Path(name).readlink() if Path(name).is_symlink() else None) == link
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_report_into_a_pipe_without_a_reader_ends_with_an_error(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "t-0") as log:
        log.append(b"value")
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / "pipe")
    command = [sys.executable, "-m", "kstore", "report", str(tmp_path / "t-0"), "-o", str(tmp_path / "out" / "pipe")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert run.returncode == 1
    assert "a pipe that no program reads" in run.stderr
