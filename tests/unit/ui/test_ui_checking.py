"""``kstore ui`` says what it has checked, and checks every byte when it is asked to."""

from __future__ import annotations

import os
import shutil
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.files.local import SYSTEM_FS
from kstore.record.crc import crc32c
from kstore.ui import checking
from kstore.upkeep.verify import LogVerification, verify_log
from tests.support.lives.ui_parts import Site, site

SECONDS = 60
HEADERS = "Headers checked, payloads not."
SOUND = "no damage found"
URL = "/logs/0/orders/0"
VALUE = b"v" * 900
CRC_AT = 17
FIRST_RECORD_AT = 61


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed log of several segments, whose batches have one record each."""
    path = tmp_path / "data"
    with kstore.Log(path / "orders-0", segment_bytes=4000, index_interval_bytes=0) as log:
        for number in range(20):
            log.append(VALUE, timestamp=1_700_000_000_000 + number)
    return path


@pytest.fixture(autouse=True)
def always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "LOOK_SECONDS", 0)


def segments(root: Path) -> list[Path]:
    return sorted((root / "orders-0").glob("*.log"))


def spoil(path: Path, position: int, *, crc: bool = False) -> None:
    """Changes the byte at ``position`` of the first batch; ``crc``: and makes its CRC that of the changed bytes."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0x55
    if crc:
        size = 12 + struct.unpack_from(">i", data, 8)[0]
        struct.pack_into(">I", data, CRC_AT, crc32c(bytes(data[CRC_AT + 4 : size])))
    path.write_bytes(data)


def check(pages: Site, url: str = URL) -> Any:
    answer = pages.post(f"{url}/check")
    assert (answer.status, answer.headers["location"]) == (303, url or "/")
    assert pages.checks.wait(SECONDS)
    return pages.json(f"{URL}.json")


def test_headers_alone_are_never_called_sound_on_any_page(root: Path) -> None:
    spoil(segments(root)[0], 500)
    with site([root]) as pages:
        for url in ("/", "/logs/0/orders", URL, f"{URL}/live", f"{URL}/explain?to=9", f"{URL}/{20 - 4}"):
            text = pages.page(url)
            assert 'id="checked"' in text, url
            assert SOUND not in text, url
            assert "payloads not" in text, url
        assert pages.json("/overview.json")["checked"] == {"level": "headers", "text": HEADERS}


def test_a_check_finds_a_wrong_byte_and_every_page_about_it_says_so(root: Path) -> None:
    spoil(segments(root)[1], 500)
    base = int(segments(root)[1].stem)
    with site([root]) as pages:
        assert pages.json(f"{URL}.json")["counted"]["damage"] == 0
        found = check(pages)
        assert found["checked"]["level"] == "bytes"
        assert found["counted"]["damage"] == 1
        (finding,) = found["counted"]["findings"]
        assert (finding["severity"], finding["position"], Path(finding["path"])) == ("damage", 0, segments(root)[1])
        assert [row["base"] for row in found["segments"] if row["damage"]] == [base]
        assert pages.json("/overview.json")["total"]["damage"] == 1
        assert pages.json("/logs/0/orders.json")["partitions"][0]["damage"] == 1
        assert "✕ damage: 1" in pages.page("/")
        for url in ("/", URL):
            assert SOUND not in pages.page(url), url
        segment = pages.json(f"{URL}/{base}.json")
        assert [each["position"] for each in segment["findings"]] == [0]


def test_a_record_that_cannot_be_read_is_marked_on_the_map_in_the_list_and_at_its_byte(root: Path) -> None:
    spoil(segments(root)[1], FIRST_RECORD_AT, crc=True)
    base = int(segments(root)[1].stem)
    with site([root]) as pages:
        assert '<tr class="marked">' not in pages.page(f"{URL}/{base}")
        unmarked = pages.page(URL).count('class="damage"')
        check(pages)
        assert pages.page(URL).count('class="damage"') > unmarked
        text = pages.page(f"{URL}/{base}")
        assert text.count('<tr class="marked">') == 1
        assert text.count("✕ damage") == 1
        batch = pages.json(f"{URL}/{base}/0.json")
        assert [each["position"] for each in batch["findings"]] == [0]
        assert batch["findings"][0]["reason"] in pages.page(f"{URL}/{base}/0")
        following = pages.json(f"{URL}/{base}.json")["batches"][1]["url"]
        assert pages.json(f"{following}.json")["findings"] == []


def test_a_wrong_index_is_on_the_page_of_its_segment_until_it_is_rebuilt(root: Path) -> None:
    index = segments(root)[0].with_suffix(".index")
    sound = index.read_bytes()
    index.write_bytes(b"\x00\x00\x00\x01\x00\x00\x00\x07" + sound[8:])
    with site([root]) as pages:
        check(pages)
        found = pages.json(f"{URL}/0.json")["file_findings"]
        assert {Path(each["path"]) for each in found} == {index}
        index.write_bytes(sound)
        assert pages.json(f"{URL}/0.json")["file_findings"] == []


def test_a_sound_log_is_called_sound_once_every_byte_was_checked(root: Path) -> None:
    with site([root]) as pages:
        found = check(pages)
        assert (found["checked"]["level"], found["counted"]["damage"]) == ("bytes", 0)
        assert SOUND in pages.page(URL)
        assert SOUND in pages.page("/")


@pytest.mark.parametrize("url", ["", "/logs/0/orders", URL])
def test_one_log_a_topic_or_all_are_checked(root: Path, url: str) -> None:
    with kstore.Log(root / "orders-1") as log:
        log.append(b"one")
    with site([root]) as pages:
        check(pages, url)
        level = pages.json("/overview.json")["checked"]["level"]
        assert level == ("part" if url == URL else "bytes")
        assert (SOUND in pages.page("/")) == (url != URL)


# --- what happens to a log meanwhile, or later ------------------------------------------------------------------------


def test_findings_go_when_their_segment_is_replaced(root: Path) -> None:
    path = segments(root)[0]
    sound = path.read_bytes()
    spoil(path, 500)
    with site([root]) as pages:
        assert check(pages)["counted"]["damage"] == 1
        path.write_bytes(sound)
        found = pages.json(f"{URL}.json")
        assert (found["checked"]["level"], found["counted"]["damage"]) == ("part", 0)
        assert SOUND not in pages.page(URL)


def test_what_is_appended_later_was_not_checked_and_findings_stay(root: Path) -> None:
    spoil(segments(root)[-1], 500)
    with site([root]) as pages:
        found = check(pages)
        assert (found["checked"]["level"], found["counted"]["damage"]) == ("bytes", 1)
        with segments(root)[-1].open("ab") as file:
            file.write(segments(root)[-1].read_bytes()[-100:])
        coverage = pages.checks.coverage(next(iter(pages.survey.places.by_key.values())))
        assert (coverage.is_complete, coverage.damage) == (False, 1)
        assert coverage.size - coverage.checked_size == 100


def test_a_segment_that_was_cut_and_has_grown_again_was_not_checked(root: Path) -> None:
    path = segments(root)[-1]
    with site([root]) as pages:
        check(pages)
        (place,) = pages.survey.places.by_key.values()
        assert pages.checks.coverage(place).is_complete
        size = path.stat().st_size
        os.truncate(path, size // 2)
        with path.open("ab") as file:
            file.write(b"x" * size)
        coverage = pages.checks.coverage(place)
        assert coverage.segments - coverage.checked_segments == 1


def test_a_log_that_rolls_while_it_is_checked_is_checked_as_far_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data"
    with kstore.Log(root / "orders-0", segment_bytes=4000) as log, site([root]) as pages:
        log.append(VALUE)

        def rolled(*arguments: Any, **named: Any) -> LogVerification:
            for _ in range(8):
                log.append(VALUE)
            return verify_log(*arguments, **named)

        monkeypatch.setattr(checking, "verify_log", rolled)
        found = check(pages)
        assert pages.checks.progress(next(iter(pages.survey.places.by_key.values()))).state == "done"
        assert found["checked"]["level"] == "part"
        assert SOUND not in pages.page(URL)


@pytest.mark.parametrize("what", ["a segment", "the log"])
def test_a_log_that_is_deleted_while_it_is_checked_ends_the_check_and_nothing_else(
    root: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def deleted(directory: Path, *, advance: Any, **named: Any) -> LogVerification:
        def cut(size: int) -> None:
            if what == "the log":
                shutil.rmtree(directory, ignore_errors=True)
            else:
                segments(root)[0].unlink()
            advance(size)

        return verify_log(directory, advance=cut, **named)

    with site([root]) as pages:
        monkeypatch.setattr(checking, "verify_log", deleted)
        pages.post(f"{URL}/check")
        assert pages.checks.wait(SECONDS)
        (place,) = pages.survey.places.by_key.values()
        progress = pages.checks.progress(place)
        if what == "the log":
            assert progress.state == "failed"
            assert "orders-0" in progress.problem
        assert not pages.checks.coverage(place).findings
        pages.page("/")
        monkeypatch.undo()
        pages.checks.ask([place])
        assert pages.checks.wait(SECONDS)


# --- one at a time, slowly, and not longer than it is wanted ----------------------------------------------------------


class Held:
    """A check that does not end until it is let go or cancelled."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.let_go = threading.Event()
        self.running = self.most = self.count = 0

    def __call__(self, directory: Path, *, advance: Any, **named: Any) -> LogVerification:
        self.running += 1
        self.count += 1
        self.most = max(self.most, self.running)
        self.began.set()
        try:
            while not self.let_go.wait(0.001):
                advance(0)
            return LogVerification(str(directory))
        finally:
            self.running -= 1


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held()
    monkeypatch.setattr(checking, "verify_log", made)
    yield made
    made.let_go.set()


def test_checks_run_one_after_another_and_none_twice(root: Path, held: Held) -> None:
    for number in range(1, 4):
        kstore.Log(root / f"orders-{number}").close()
    with site([root]) as pages:
        for _ in range(3):
            pages.post("/check")
        assert held.began.wait(SECONDS)
        pages.post(f"{URL}/check")
        document = pages.json("/logs/0/orders.json")
        assert document["check"]["going"] is True
        assert "3 wait for their turn" in document["check"]["text"]
        assert "data-pending" in pages.page(URL)
        held.let_go.set()
        assert pages.checks.wait(SECONDS)
        assert (held.most, held.count) == (1, 4)
        assert "data-pending" not in pages.page(URL)


def test_a_cancelled_check_ends_and_what_an_earlier_one_found_stays(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(segments(root)[0], 500)
    with site([root]) as pages:
        check(pages)
        held = Held()
        monkeypatch.setattr(checking, "verify_log", held)
        pages.post(f"{URL}/check")
        assert held.began.wait(SECONDS)
        assert pages.post(f"{URL}/check/cancel").status == 303
        assert pages.checks.wait(SECONDS)
        found = pages.json(f"{URL}.json")
        assert found["check"]["going"] is False
        assert "was cancelled" in found["check"]["text"]
        assert found["counted"]["damage"] == 1


def test_a_slow_check_is_cancelled_at_once_and_the_server_ends(root: Path) -> None:
    # At one byte a second it would take hours.
    with site([root], bytes_per_second=1) as pages:
        pages.post(f"{URL}/check")
        pages.post(f"{URL}/check/cancel")
        assert pages.checks.wait(SECONDS)
        pages.post(f"{URL}/check")
    assert pages.checks.wait(0)


def test_a_check_that_fails_says_why_and_the_next_one_runs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: object, **named: object) -> None:
        raise RuntimeError("out of luck")

    with site([root]) as pages:
        monkeypatch.setattr(checking, "verify_log", failing)
        assert "out of luck" in check(pages)["check"]["text"]
        monkeypatch.undo()
        assert check(pages)["checked"]["level"] == "bytes"


class Told:
    """The system's files; remembers what it was told of the page cache."""

    def __init__(self) -> None:
        self.dropped: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(SYSTEM_FS, name)

    def open(self, path: Any, *arguments: Any, **named: Any) -> Any:
        return ToldFile(SYSTEM_FS.open(path, *arguments, **named), self.dropped)


class ToldFile:
    def __init__(self, file: Any, dropped: dict[str, int]) -> None:
        self._file = file
        self._dropped = dropped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def advise(self, position: int, size: int, advice: Any) -> None:
        path = str(self._file.path)
        if advice == "dontneed":
            assert position == self._dropped.get(path, 0)
            self._dropped[path] = position + size
        self._file.advise(position, size, advice)


def test_a_check_keeps_nothing_in_memory_and_writes_nothing(root: Path) -> None:
    told: Any = Told()
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}
    with site([root], fs=told) as pages:
        told.dropped.clear()
        check(pages)
    assert told.dropped == {str(path): path.stat().st_size for path in segments(root)}
    assert before == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}
