"""Checks every byte of a log when a user asks for it: one log at a time, slowly, in a thread of its own.

It is ``kstore verify``, so it survives a writer, a roll, a compaction and a truncation; it writes nothing. What it
finds belongs to the segments as they were: once a segment is another one, it counts as not checked, and its findings
go.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.compaction.throttle import Throttle
from kstore.errors import FileMissingError, KstoreError, StorageError
from kstore.files._locks import Condition
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import LOG_SUFFIX, SNAPSHOT_SUFFIX, parse_segment_name, segment_name
from kstore.reports.document import Document, finding_fields
from kstore.reports.gathering import with_bytes
from kstore.types import OFFSET_MAX
from kstore.ui.places import Place
from kstore.upkeep.verify import LogVerification, verify_log
from kstore.upkeep.verify.changing import Sight, look, settled_bases

logger = logging.getLogger(__name__)

BYTES_PER_SECOND = 20_000_000.0
# The most listed for one log. All are counted; ``kstore verify`` lists the others.
FINDINGS_MAX = 1000
# The end of a last segment, whose hash tells it from one that was cut and has grown again.
END_BYTES = 64 << 10
# How long a page believes that a log is still what it was.
LOOK_SECONDS = 2.0

Finding = dict[str, Any]


class Progress(NamedTuple):
    """``state``: "" before a user asks, "waiting", "running", "cancelled", "failed" or "done". Sizes are bytes."""

    state: str = ""
    read: int = 0
    total: int = 0
    ended_ms: int = 0
    problem: str = ""

    @property
    def is_going_on(self) -> bool:
        return self.state in ("waiting", "running")


class Coverage(NamedTuple):
    """How much of a log, as it is now, was checked byte for byte, and what was found in it.

    ``damage`` counts all findings that are damage, also those that are not listed.
    """

    segments: int = 0
    checked_segments: int = 0
    size: int = 0
    checked_size: int = 0
    ended_ms: int = 0
    findings: tuple[Finding, ...] = ()
    damage: int = 0

    @property
    def is_complete(self) -> bool:
        return bool(self.segments) and (self.checked_segments, self.checked_size) == (self.segments, self.size)


class _Seen(NamedTuple):
    """A segment at one moment. ``end``: of the last one, a hash of its last bytes."""

    sight: Sight
    size: int
    end: bytes

    @property
    def is_last(self) -> bool:
        return self.sight.following == OFFSET_MAX


@dataclass(slots=True)
class _Result:
    """What a check has found: the findings of each segment, by its base offset, and how many more are damage."""

    ended_ms: int
    seen: dict[int, _Seen]
    findings: dict[int, list[Finding]] = field(default_factory=dict)
    damage: dict[int, int] = field(default_factory=dict)
    # The snapshots that findings are about. A rebuild replaces them, and no other file of the segment.
    snapshots: dict[str, tuple[int, ...] | None] = field(default_factory=dict)


class _CancelledError(Exception):
    """The check that runs is no longer wanted."""


class Checks:
    """The checks of all logs: one runs, the others wait for it. Thread-safe.

    Args:
        bytes_per_second: how fast a check reads; None for no limit.
    """

    def __init__(
        self,
        *,
        bytes_per_second: float | None = BYTES_PER_SECOND,
        fs: FileSystem = SYSTEM_FS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.bytes_per_second = bytes_per_second
        self._fs = fs
        self._clock = clock
        # All of these are guarded by the lock.
        self._progress: dict[Place, Progress] = {}
        self._results: dict[Place, _Result] = {}
        self._coverage: dict[Place, tuple[float, Coverage]] = {}
        self._waiting: OrderedDict[Place, None] = OrderedDict()
        self._running: Place | None = None
        self._is_wanted = self._is_stopped = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._changed = Condition(self._lock)

    def ask(self, places: Iterable[Place]) -> None:
        """Checks the logs after those that wait already; one that waits or runs is not begun twice."""
        with self._lock:
            if self._is_stopped:
                return
            for place in places:
                if place != self._running and place not in self._waiting:
                    self._waiting[place] = None
                    self._progress[place] = Progress("waiting")
            if self._waiting and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kstore-ui-check", daemon=True)
                self._thread.start()

    def cancel(self, places: Iterable[Place]) -> None:
        """Ends the checks of the logs; what an earlier check has found stays."""
        with self._lock:
            for place in places:
                if self._waiting.pop(place, self) is None:
                    self._progress[place] = Progress("cancelled", ended_ms=self._clock.now_ms())
                elif place == self._running:
                    self._is_wanted = False
            self._changed.notify_all()

    def stop(self) -> None:
        """Returns when its thread has ended."""
        with self._lock:
            self._is_stopped, self._is_wanted = True, False
            self._waiting.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def wait(self, seconds: float) -> bool:
        """Waits until no check runs or waits; returns whether that is so."""
        with self._lock:
            return self._changed.wait_for(lambda: self._thread is None, seconds)

    def progress(self, place: Place) -> Progress:
        with self._lock:
            return self._progress.get(place, Progress())

    def coverage(self, place: Place) -> Coverage:
        """What is known of the log as it is now, or was moments ago."""
        with self._lock:
            result = self._results.get(place)
            known = self._coverage.get(place)
        if result is None:
            return Coverage()
        now = self._clock.monotonic()
        if known is not None and now - known[0] < LOOK_SECONDS:
            return known[1]
        try:
            found = _coverage(result, place.path, self._fs)
        except StorageError:
            return Coverage()  # it is gone, or out of reach
        with self._lock:
            if self._results.get(place) is result:
                self._coverage[place] = now, found
        return found

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                place = next(iter(self._waiting), None)
                self._running = place
                if place is None:
                    self._thread = None
                    self._changed.notify_all()
                    return
                del self._waiting[place]
                self._is_wanted = True
                self._progress[place] = Progress("running")
            state, problem, result = "done", "", None
            try:
                result = self._checked(place)
            except _CancelledError:
                state = "cancelled"
            except KstoreError as error:
                state, problem = "failed", str(error)
            except Exception as error:
                # A page says so; the other logs can still be checked.
                logger.exception("checking %s failed", place.path)
                state, problem = "failed", f"{type(error).__name__}: {error}"
            with self._lock:
                self._running = None
                told = self._progress[place]
                self._progress[place] = told._replace(state=state, problem=problem, ended_ms=self._clock.now_ms())
                if result is not None:
                    self._results[place] = result
                    self._coverage.pop(place, None)

    def _checked(self, place: Place) -> _Result:
        """Raises: _CancelledError, KstoreError."""
        # Before the files are read: a segment that is replaced in the meantime is no longer the one that was seen.
        seen = _seen(self._fs, place.path)
        with self._lock:
            self._progress[place] = Progress("running", total=sum(each.size for each in seen.values()))
        throttle = Throttle(self.bytes_per_second, self._clock, self._wait, lambda: not self._is_wanted)

        def advance(size: int) -> None:
            with self._lock:
                told = self._progress[place]
                # A segment that was replaced is read twice.
                self._progress[place] = told._replace(read=min(told.read + size, told.total))
            throttle.note(size)
            if not self._is_wanted:
                raise _CancelledError

        log = verify_log(place.path, fs=self._fs, advance=advance)
        return _result_of(log, seen, self._fs, self._clock.now_ms())

    def _wait(self, seconds: float) -> None:
        with self._lock:
            self._changed.wait_for(lambda: not self._is_wanted, seconds)


def _result_of(log: LogVerification, seen: dict[int, _Seen], fs: FileSystem, now_ms: int) -> _Result:
    result, bases, listed = _Result(now_ms, seen), sorted(seen), 0
    for found in with_bytes(log.findings, fs=fs, with_payload=True):
        finding = found.finding
        name = parse_segment_name(Path(finding.path).name)
        if name is None:
            continue  # the count reads the listing and the small files too, and says the same of them
        # A snapshot may be that of an offset within a segment.
        base = bases[max(bisect_right(bases, name.base_offset) - 1, 0)] if bases else name.base_offset
        result.damage[base] = result.damage.get(base, 0) + (finding.severity == "damage")
        if listed < FINDINGS_MAX:
            listed += 1
            result.findings.setdefault(base, []).append(finding_fields(found, Path(log.path)))
            if name.suffix == SNAPSHOT_SUFFIX:
                result.snapshots[finding.path] = _file_of(fs, finding.path)
    return result


def _file_of(fs: FileSystem, path: str) -> tuple[int, ...] | None:
    try:
        stat = fs.stat(path)
    except FileMissingError:
        return None
    return stat.inode, stat.size, stat.mtime_ns


def _seen(fs: FileSystem, directory: Path) -> dict[int, _Seen]:
    """The segments of a log at this moment, by base offset; one that is deleted in the meantime is left out.

    Raises: StorageError if the directory cannot be listed.
    """
    bases = settled_bases(fs, directory, waits=False)
    found = {}
    for base, following in pairwise([*bases, OFFSET_MAX]):
        try:
            path = directory / segment_name(base, LOG_SUFFIX)
            size = fs.stat(path).size
            # Also of the last one every size and time: it is sealed when the next one begins.
            sight = look(fs, directory, base, following, may_grow=False)
            found[base] = _Seen(sight, size, _end(fs, path, size) if following == OFFSET_MAX else b"")
        except FileMissingError:
            continue
    return found


def _end(fs: FileSystem, path: Path, size: int) -> bytes:
    """A hash of the last bytes below ``size``."""
    start = max(size - END_BYTES, 0)
    return hashlib.blake2b(fs.open(path).pread(size - start, start), digest_size=16).digest()


def _is_same(fs: FileSystem, directory: Path, base: int, then: _Seen, now: _Seen) -> bool:
    """Whether what was checked of a segment is in it still; what was appended since does not matter."""
    if not then.is_last:
        return then.sight == now.sight
    # Indexes may be created late.
    pairs = zip(then.sight.files, now.sight.files, strict=True)
    if now.size < then.size or any(one is not None and (two is None or one[0] != two[0]) for one, two in pairs):
        return False
    try:
        # A truncation leaves the file in place, and what comes after it may reach further.
        return _end(fs, directory / segment_name(base, LOG_SUFFIX), then.size) == then.end
    except FileMissingError:
        return False


def _coverage(result: _Result, directory: Path, fs: FileSystem) -> Coverage:
    """How much of a log, as it is now, the check has covered. Raises: StorageError."""
    now = _seen(fs, directory)
    then = result.seen
    same = [base for base, each in now.items() if base in then and _is_same(fs, directory, base, then[base], each)]
    findings = [
        each
        for base in same
        for each in result.findings.get(base, ())
        if each["path"] not in result.snapshots or result.snapshots[each["path"]] == _file_of(fs, each["path"])
    ]
    return Coverage(
        len(now),
        len(same),
        sum(each.size for each in now.values()),
        sum(result.seen[base].size for base in same),
        result.ended_ms,
        tuple(findings),
        sum(result.damage.get(base, 0) for base in same),
    )


def with_findings(document: Document, coverage: Coverage) -> Document:
    """What was counted of a log, with what a check has found; both may know of the same damage."""
    if not coverage.findings:
        return document
    named = {_subject(each) for each in coverage.findings}
    every = [each for each in document["findings"] if _subject(each) not in named]
    every += coverage.findings
    every.sort(key=lambda each: (each["severity"], each["path"], each.get("position", -1)))
    by_base: Counter[int] = Counter()
    for each in every:
        name = parse_segment_name(Path(each["path"]).name)
        if name is not None and each["severity"] == "damage":
            by_base[name.base_offset] += 1
    damages = [_damage_count(found) for found in (every, document["findings"], coverage.findings)]
    segments = [{**each, "damage": max(each["damage"], by_base[each["base"]])} for each in document["segment_list"]]
    return {
        **document,
        "findings": every,
        # Neither lists all that it has counted.
        "damage": damages[0] + max(document["damage"] - damages[1], 0) + max(coverage.damage - damages[2], 0),
        "notes": sum(each["severity"] == "note" for each in every),
        "segment_list": segments,
    }


def _damage_count(findings: Iterable[Finding]) -> int:
    return sum(each["severity"] == "damage" for each in findings)


def _subject(finding: Finding) -> tuple[Any, ...]:
    """What two findings about the same have in common."""
    if "position" in finding:
        return finding["path"], finding["position"]
    return finding["path"], finding["kind"], finding.get("first")
