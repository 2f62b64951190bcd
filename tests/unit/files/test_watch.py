"""Watches of directories, and followers that sleep until one wakes them."""

from __future__ import annotations

import errno
import gc
import logging
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from kstore.engine.view import LogView
from kstore.files import threads
from kstore.files import watch as watches
from kstore.files.watch import DirectoryWatch
from kstore.log import Log
from tests.crash.interrupted_life import InterruptWithin

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")

# Far more than anything here takes, except on a busy machine.
LONG = 300.0
PLACES_MAX = 200


def inotify_count() -> int:
    links = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(path.readlink()))
        except FileNotFoundError:
            pass  # the listing's own
    return sum("inotify" in link for link in links)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: (path / "new").write_bytes(b""),
        lambda path: (path / "there").write_bytes(b"abcd"),
        lambda path: (path / "there").rename(path / "renamed"),
        lambda path: (path / "there").unlink(),
        lambda path: os.truncate(path / "there", 1),
    ],
    ids=["create", "append", "rename", "unlink", "truncate"],
)
def test_each_kind_of_change_is_reported(change: object, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"abc")
    watch = DirectoryWatch(tmp_path)
    assert watch.arm()
    change(tmp_path)  # type: ignore[operator]
    assert watch.wait(LONG)


def test_a_watch_tells_once_until_it_is_armed_again(tmp_path: Path) -> None:
    watch = DirectoryWatch(tmp_path)
    assert watch.arm()
    (tmp_path / "one").touch()
    assert watch.wait(LONG)
    assert watch.arm()
    assert not watch.wait(0)
    (tmp_path / "two").touch()
    assert watch.wait(LONG)


def test_a_change_between_arming_and_waiting_is_reported(tmp_path: Path) -> None:
    watch = DirectoryWatch(tmp_path)
    assert watch.arm()
    assert watch.arm()
    (tmp_path / "one").touch()
    assert watch.wait(LONG)


def test_all_watches_share_two_descriptors_and_one_thread(tmp_path: Path) -> None:
    many = []
    for number in range(200):
        path = tmp_path / str(number // 2)
        path.mkdir(exist_ok=True)
        many.append(DirectoryWatch(path))
        assert many[-1].arm()
    assert inotify_count() == 2
    assert sum(thread.name == "kstore-watch" for thread in threading.enumerate()) == 1
    # Two watch each directory, and both are notified.
    (tmp_path / "7" / "new").touch()
    assert many[14].wait(LONG)
    assert many[15].wait(LONG)
    assert not many[16].wait(0)


def test_a_watch_that_goes_leaves_the_other_of_its_directory(tmp_path: Path) -> None:
    closed, forgotten, kept = (DirectoryWatch(tmp_path) for _ in range(3))
    assert closed.arm() and forgotten.arm() and kept.arm()  # noqa: PT018
    closed.close()
    del forgotten
    gc.collect()
    assert not closed.arm()
    (tmp_path / "new").touch()
    assert kept.wait(LONG)


def test_watches_that_went_leave_nothing_with_the_system(tmp_path: Path) -> None:
    for _ in range(3):
        assert all(DirectoryWatch(tmp_path).arm() for _ in range(5))
    gc.collect()
    hub = watches._hub()
    assert hub is not None
    inode = f"ino:{tmp_path.stat().st_ino:x} "
    assert inode not in Path(f"/proc/self/fdinfo/{hub.fd}").read_text()
    assert inode not in Path(f"/proc/self/fdinfo/{hub.holding_fd}").read_text()


def test_a_directory_is_held_as_long_as_one_of_its_watches_exists(tmp_path: Path) -> None:
    one, other = DirectoryWatch(tmp_path), DirectoryWatch(tmp_path)
    assert one.arm()
    assert other.arm()
    hub = watches._hub()
    assert hub is not None
    held, inode = Path(f"/proc/self/fdinfo/{hub.holding_fd}"), f"ino:{tmp_path.stat().st_ino:x} "
    for watch in (one, other):
        (tmp_path / "name").touch()
        (tmp_path / "name").unlink()
        assert watch.wait(LONG)
        assert watch.arm()
        assert inode in held.read_text()
        watch.close()
    assert inode not in held.read_text()


def test_a_close_ends_a_wait(tmp_path: Path) -> None:
    watch = DirectoryWatch(tmp_path)
    assert watch.arm()
    waiting = threading.Thread(target=watch.wait, args=(None,))
    waiting.start()
    watch.close()
    waiting.join(LONG)
    assert not waiting.is_alive()


def test_a_watch_says_so_if_changes_cannot_be_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert not DirectoryWatch(tmp_path / "missing").arm()
    hub = watches._hub()
    assert hub is not None
    exhausted = hub._calls._replace(add=lambda fd, path, mask: -1, last_errno=lambda: errno.ENOSPC)
    monkeypatch.setattr(hub, "_calls", exhausted)
    monkeypatch.setattr(hub, "_warned", False)
    with caplog.at_level(logging.WARNING, logger="kstore"):
        assert not DirectoryWatch(tmp_path).arm()
        assert not DirectoryWatch(tmp_path).arm()
    assert len(caplog.records) == 1
    monkeypatch.setattr(watches, "_the_hub", None)
    monkeypatch.setattr(watches, "_is_unavailable", True)
    assert not DirectoryWatch(tmp_path).arm()


def test_a_file_system_that_others_write_to_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "foreign_type", lambda path: "nfs4")
    assert not DirectoryWatch(tmp_path).arm()


def test_a_forked_child_watches_for_itself(tmp_path: Path) -> None:
    program = (
        "import os, sys, pathlib\n"
        "from kstore.files.watch import DirectoryWatch\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "watch = DirectoryWatch(path)\n"
        "assert watch.arm()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    own = DirectoryWatch(path)\n"
        "    told = watch.arm() and own.arm()\n"
        "    (path / 'child').touch()\n"
        "    os._exit(0 if told and own.wait(300) and watch.wait(300) else 1)\n"
        "_, status = os.waitpid(child, 0)\n"
        "assert status == 0, status\n"
        "assert watch.wait(300)\n"
    )
    subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, str(tmp_path)], check=True, timeout=60
    )


# --- followers ------------------------------------------------------------------------------------------------------


class CountingView:
    """Counts how often a view looks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        refresh = LogView.refresh

        def counted(view: LogView) -> None:
            self.count += 1
            refresh(view)

        monkeypatch.setattr(LogView, "refresh", counted)


def test_an_idle_follower_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Log(tmp_path / "log").close()
    with Log(tmp_path / "log", read_only=True) as view:
        looks = CountingView(monkeypatch)
        assert list(view.read(follow=True, timeout=0.4)) == []
        # When it reaches the end, before it sleeps, and when its time is over.
        assert looks.count <= 5


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
def test_a_follower_is_woken_by_each_append_and_not_by_time(
    durability: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it only looked at intervals, of a second here, twenty records would take twenty seconds."""
    path = tmp_path / "log"
    with (
        Log(path, durability=durability, segment_bytes=1024) as writer,  # type: ignore[arg-type]
        Log(path, read_only=True) as view,
    ):
        monkeypatch.setattr("kstore.engine.change.growth.NOTIFIED_POLL_SECONDS", LONG)
        began = time.monotonic()
        reader = view.read(follow=True, timeout=LONG)
        for number in range(20):
            value = b"%d" % number * 80
            appending = threading.Timer(0.01, writer.append, args=(value,))
            appending.start()
            assert next(reader).value == value
            appending.join()
        assert time.monotonic() - began < LONG


def test_a_follower_polls_where_the_system_reports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectoryWatch, "arm", lambda self: False)
    path = tmp_path / "log"
    with Log(path) as writer, Log(path, read_only=True) as view:
        appending = threading.Timer(0.05, writer.append, args=(b"late",))
        appending.start()
        assert next(view.read(follow=True, timeout=LONG)).value == b"late"
        appending.join()


def test_a_follower_notices_a_log_that_is_cut_and_restarted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Log(path) as writer, Log(path, read_only=True) as view:
        writer.append_many([b"a", b"b", b"c"])
        reader = view.read(follow=True, timeout=LONG)
        assert [next(reader).value for _ in range(3)] == [b"a", b"b", b"c"]

        def change() -> None:
            writer.truncate_to(1)
            writer.append_many([b"B", b"C", b"D"])

        changing = threading.Timer(0.05, change)
        changing.start()
        assert next(reader).value == b"D"
        changing.join()


def test_a_view_that_is_closed_ends_its_follower(tmp_path: Path) -> None:
    Log(tmp_path / "log").close()
    view = Log(tmp_path / "log", read_only=True)
    found: list[object] = []
    follower = threading.Thread(target=lambda: found.extend(view.read(follow=True)))
    follower.start()
    closing = threading.Timer(0.1, view.close)
    closing.start()
    follower.join(LONG)
    closing.join()
    assert not follower.is_alive()
    assert found == []


def test_a_writer_in_another_process_wakes_many_followers(tmp_path: Path) -> None:
    path = tmp_path / "log"
    Log(path).close()
    program = "import sys, kstore\nwith kstore.Log(sys.argv[1]) as log:\n    log.append(b'from afar')\n"
    with Log(path, read_only=True) as view:
        readers = [view.read(follow=True, timeout=LONG) for _ in range(4)]
        found: list[bytes | None] = []
        threads = [threading.Thread(target=lambda one=one: found.append(next(one).value)) for one in readers]
        for thread in threads:
            thread.start()
        subprocess.run([sys.executable, "-c", program, str(path)], check=True, timeout=300)
        for thread in threads:
            thread.join(LONG)
        assert found == [b"from afar"] * 4
        assert inotify_count() == 2


def test_an_interrupt_while_it_starts_closes_no_descriptor_that_its_thread_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If it were closed while the thread reads, its number might become another file's, which the thread would read."""
    read_from: list[int] = []

    class Started:
        def __init__(self, work: object, *_: object) -> None:
            read_from.append(work.__self__.fd)  # type: ignore[attr-defined]

        def start(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(watches, "_the_hub", None)
    with monkeypatch.context() as patched:
        patched.setattr(threads, "_Thread", Started)
        with pytest.raises(KeyboardInterrupt):
            DirectoryWatch(tmp_path).arm()
    os.fstat(read_from[0])
    os.close(read_from[0])


def test_a_watch_whose_arming_is_interrupted_reports_changes_when_it_is_armed_again(tmp_path: Path) -> None:
    DirectoryWatch(tmp_path).arm()  # the start of the thread has a test of its own
    for number in range(1, PLACES_MAX):
        watch = DirectoryWatch(tmp_path)
        with InterruptWithin(number, "files/watch.py") as interrupted, suppress(KeyboardInterrupt):
            watch.arm()
        assert watch.arm()
        (tmp_path / str(number)).touch()
        assert watch.wait(LONG), interrupted.place
        watch.close()
        if not interrupted.struck:
            break
    assert 5 < number < PLACES_MAX - 1
