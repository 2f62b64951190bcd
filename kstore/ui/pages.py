"""What each page shows, as a dictionary of JSON values, which is all that the page's template sees.

Sizes are bytes, times ms since the epoch, end offsets exclusive. What a client asks for is looked up: a log among those
found, a segment in its directory's listing, a batch by a walk to its position, a record in its batch.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

from kstore.errors import CorruptDataError, FileMissingError, KstoreError, OffsetOutOfRangeError
from kstore.files.paths import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_name,
)
from kstore.log import Log
from kstore.record._codec import Record
from kstore.record.batch import Batch
from kstore.record.control import parse_control_type
from kstore.record.walk import Damage
from kstore.reports.document import view_fields
from kstore.reports.hexview import VIEW_BYTES, batch_view
from kstore.types import OFFSET_MAX
from kstore.ui import groups, statements
from kstore.ui.checking import Checks, with_findings
from kstore.ui.payload import FORMS, preview, shown
from kstore.ui.places import Place
from kstore.ui.search_pages import Asked, Wanted, wanted
from kstore.ui.segments import Entries, Segment, Window, segment_of
from kstore.ui.statements import Known
from kstore.ui.survey import Counted, Survey
from kstore.upkeep.explain import Explanation, explain_offset, explain_time
from kstore.upkeep.verify.changing import TRIES_MAX, has_changed, look, settled_bases
from kstore.upkeep.verify.partition import verify_head

Model = dict[str, Any]

NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)
MILLISECONDS = re.compile(r"@([0-9]{1,16})", re.ASCII)
# How long the first page waits for the search of the directories, so that it is seldom empty, and how long any other
# page does, of which the user has a bookmark.
FIND_SECONDS = 0.3
FIRST_SECONDS = 30.0
SEGMENTS_MAX = 200
RECORDS_MAX = 100
LAST_RECORDS = 20
# A record may have any number of headers.
HEADERS_MAX = 200
HEADER_BYTES_MAX = 8 << 10
# The strip of a whole segment has a link for each of these parts.
PARTS_MAX = 100
# The files of a segment that have findings of their own.
INDEX_FILES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
CRC_CHECKED = "The CRC of each batch on this page was checked."
GROUPS_CHECKED: Model = {
    "level": "headers",
    "text": "The batches with committed offsets were checked; where partitions end, by headers alone, payloads not.",
}
SUMMED = ("segments", "bytes", "batches", "records", "damage", "notes")


class Look(NamedTuple):
    """A part of a segment, and what its indexes say."""

    segment: Segment
    window: Window
    entries: Entries
    times: Entries

    @property
    def has_problem(self) -> bool:
        return bool(self.window.damages or self.entries.problem or self.times.problem)


class NotHereError(Exception):
    """The address leads nowhere; the text says what was looked for."""


class Pages:
    """The models of all pages. Thread-safe; each method reads what it shows when it is called.

    Raises: NotHereError for what does not exist; KstoreError for what cannot be read.
    """

    def __init__(self, survey: Survey, checks: Checks) -> None:
        self.survey = survey
        self.checks = checks

    # --- what is known, and what was checked ------------------------------------------------------------------------

    def _known(self, place: Place, counted: Counted | None) -> Known:
        """What was counted of a log, with what a check of every byte has found."""
        coverage = self.checks.coverage(place)
        if counted is not None:
            counted = counted._replace(document=with_findings(counted.document, coverage))
        return Known(counted, coverage, self.checks.progress(place))

    def _findings(self, known: Known) -> list[Model]:
        if known.counted is None:
            return list(known.coverage.findings)
        return list(known.counted.document["findings"])

    def _checked(self, place: Place, text: str = "") -> Model:
        """What was checked of a log, and, with ``text``, of what the page shows itself."""
        said = statements.of_log(self._known(place, self.survey.known()[0].get(place)))
        return statements.of_a_part(text, said) if text else said

    def _check(self, url: str, known: list[Known], size: int) -> Model:
        progress = [each.progress for each in known]
        return statements.check_of(url, progress, size, self.checks.bytes_per_second)

    def places_of(self, number: str = "", topic: str = "") -> list[Place]:
        """The logs of a topic, or all of them."""
        self.survey.wait_for_places(FIRST_SECONDS)
        if not topic:
            return list(self.survey.places.by_key.values())
        members = self.survey.places.by_topic.get((number, topic))
        if members is None:
            raise NotHereError("There is no such topic.")
        return members

    # --- many logs --------------------------------------------------------------------------------------------------

    def overview(self, wanted: str = "") -> Model:
        """All topics, or those with ``wanted`` in their names."""
        survey = self.survey
        survey.find_again()
        survey.wait_for_places(FIND_SECONDS)
        counts, sizes = survey.known()
        places = survey.places
        known = {place: self._known(place, counts.get(place)) for place in places.by_key.values()}
        counted = {place: each.counted for place, each in known.items() if each.counted is not None}
        topics = []
        for members in places.by_topic.values():
            row: Model = {"topic": members[0].topic, "url": members[0].topic_url, "directory": str(members[0].root)}
            row |= {"partitions": len(members), "counted": sum(place in counted for place in members)}
            row |= _sums([counted[place].document for place in members if place in counted])
            # The bytes are known long before the rest.
            row["bytes"] = sum(sizes.get(place, 0) for place in members)
            topics.append(row)
        total = {name: sum(row[name] for row in topics) for name in SUMMED}
        total |= {"topics": len(topics), "partitions": len(places.by_key)}
        stores = survey.stores()
        findings = [each for store in stores for each in store["findings"]]
        total["damage"] += sum(each["severity"] == "damage" for each in findings)
        total["notes"] += sum(each["severity"] == "note" for each in findings)
        listed = [row for row in topics if wanted.lower() in row["topic"].lower()]
        listed.sort(key=lambda row: (not row["damage"], -row["bytes"]))
        boxes = [
            {
                "name": place.name,
                "topic": place.topic,
                "bytes": size,
                "url": place.url,
                "damage": counted[place].document["damage"] if place in counted else 0,
            }
            for place, size in sizes.items()
        ]
        rows = groups.positions(stores, places, counted)
        return {
            "paths": [str(path) for path in survey.paths],
            "directories": len(places.roots),
            "deep": survey.deep,
            "checked": statements.of_logs(list(known.values())),
            "check": self._check("/check", list(known.values()), total["bytes"]),
            "problems": places.problems,
            "pending": survey.pending_count or not survey.is_complete,
            "wanted": wanted,
            "total": total,
            "topics": listed,
            "logs": boxes,
            "findings": findings,
            "groups": rows,
            "group_list": groups.summaries(rows),
            "queues": [each for store in stores for each in store["queues"]],
            "readers_problems": [each for store in stores for each in store["readers_problems"]],
        }

    def wanted(self, asked: Asked) -> tuple[Wanted, int]:
        """What a search asks for, and how many bytes the logs have."""
        survey = self.survey
        survey.wait_for_places(FIRST_SECONDS)
        found = wanted(asked, survey.places)
        if found is None:
            raise NotHereError("There is no such topic or log to search.")
        sizes = survey.known()[1]
        return found, sum(sizes.get(place, 0) for place in found.places)

    def group(self, number: str, key: str) -> Model:
        """A consumer group: its position in each partition."""
        survey = self.survey
        survey.find_again()
        survey.wait_for_places(FIRST_SECONDS)
        counted, _ = survey.known()
        url = f"/groups/{number}/{key}"
        every = groups.positions(survey.stores(), survey.places, counted)
        rows = [row for row in every if row["group_url"] == url]
        if not rows:
            waiting = "" if survey.is_complete else " Not everything was found yet: try again in a moment."
            raise NotHereError(f"There is no such group.{waiting}")
        (summary,) = groups.summaries(rows)
        return {
            **summary,
            "checked": GROUPS_CHECKED,
            "read_at": rows[0]["read_at"],
            "pending": not survey.is_complete,
            "positions": rows,
        }

    def topic(self, number: str, topic: str) -> Model:
        """The partitions of a topic."""
        members = self.places_of(number, topic)
        counts, sizes = self.survey.known()
        known = {place: self._known(place, counts.get(place)) for place in members}
        counted = {place: each.counted for place, each in known.items() if each.counted is not None}
        rows = []
        for place in members:
            row = _log(place) | {"bytes": sizes.get(place, 0), "counted": place in counted}
            if place in counted:
                document = counted[place].document
                row |= {name: value for name, value in document.items() if name not in ("path", "name", "topic")}
            rows.append(row)
        return {
            "topic": members[0].topic,
            "key": "/".join(members[0].key[:2]),
            "directory": str(members[0].root),
            "checked": statements.of_logs(list(known.values())),
            "check": self._check(
                f"{members[0].topic_url}/check", list(known.values()), sum(row["bytes"] for row in rows)
            ),
            "pending": any(self.survey.is_pending(place) for place in members),
            "partitions": rows,
        }

    # --- one log ----------------------------------------------------------------------------------------------------

    def place(self, number: str, topic: str, partition: str) -> Place:
        """The log with this address."""
        self.survey.wait_for_places(FIRST_SECONDS)
        place = self.survey.places.by_key.get((number, topic, partition))
        if place is None:
            raise NotHereError("There is no such log.")
        return place

    def open(self, place: Place) -> Log:
        """The log for reading. Raises: as ``Log``."""
        return Log(place.path, read_only=True, fs=self.survey.fs)

    def partition(self, place: Place, start: str = "") -> Model:
        """A log, and its segments from base offset ``start`` on."""
        survey = self.survey
        held = self._known(place, survey.ask(place))
        counted = held.counted
        model: Model = {"log": _log(place), "ends": None, "problem": survey.problem(place)}
        model["checked"] = statements.of_log(held)
        size = sum(size for _, size in survey.sight(place))
        model["check"] = self._check(f"{place.url}/check", [held], size)
        try:
            with self.open(place) as log:
                watermark = log.high_watermark
                model["ends"] = {"start": log.start_offset, "high_watermark": watermark, "end": log.end_offset}
        except KstoreError as error:
            model["problem"] = model["problem"] or str(error)
        head = verify_head(place.path, fs=survey.fs)
        bases = head.bases
        model["elsewhere"] = [each.reason for each in head.log.findings if each.kind == "checkpoint"]
        first = _number(start, "segment") if start else 0
        some = [base for base in bases if base >= first][:SEGMENTS_MAX]
        known = {} if counted is None else {each["base"]: each for each in counted.document["segment_list"]}
        model["segment_count"] = len(bases)
        model["segments"] = [{"base": base, "url": f"{place.url}/{base}", **known.get(base, {})} for base in some]
        model["next_segment"] = some[-1] + 1 if some and some[-1] != bases[-1] else None
        model["pending"] = survey.is_pending(place)
        model["sound"] = held.level == "bytes" and counted is not None and not counted.document["damage"]
        model["counted"] = None if counted is None else {**counted.document, "at": counted.at_ms}
        return model

    def jump(self, place: Place, to: str) -> str:
        """The address of the record at an offset or a time, or of the damage in its place; at the log's end, of what
        comes next."""
        explanation, offset = self._explanation(place, to)
        address, _ = _found_address(place, explanation, offset)
        last = explanation.steps[-1]
        if address is None and last.what == "end" and "offset" in last.values:
            return f"{place.url}/live"
        if address is None:
            raise NotHereError(f"{last.text}.")
        return address

    def explain(self, place: Place, to: str) -> Model:
        """The path of a lookup."""
        explanation, offset = self._explanation(place, to)
        address, is_record = _found_address(place, explanation, offset)
        return {
            "log": _log(place),
            "to": to,
            "checked": self._checked(place, "What this lookup reads was checked, and no other batch."),
            "steps": [{"step": step.what, "text": step.text, "values": step.values} for step in explanation.steps],
            "found": is_record,
            "url": address,
        }

    def _explanation(self, place: Place, to: str) -> tuple[Explanation, int | None]:
        """The lookup, and the offset that was looked up if it was one."""
        kind, number = _target(to)
        with self.open(place) as log:
            try:
                return (explain_offset(log, number), number) if kind == "offset" else (explain_time(log, number), None)
            except OffsetOutOfRangeError as error:
                raise NotHereError(f"{error}.") from None

    def live(self, place: Place) -> Model:
        """The last records of a log, and where a follower continues."""
        with self.open(place) as log:
            end = log.high_watermark
            _, records = records_left(log, end - LAST_RECORDS, end, RECORDS_MAX)
        return {
            "log": _log(place),
            "checked": self._checked(place, "The batches of these records were checked; damaged ones are left out."),
            "end": end,
            "records": [record_row(place, record) for record in records],
        }

    # --- one segment ------------------------------------------------------------------------------------------------

    def _look(self, place: Place, base: str, position: int, batches_max: int = 0) -> Look:
        """A segment from ``position`` on.

        As in ``kstore verify``, what seems to be damage is read again if a writer changed the files in the meantime.
        """
        fs, base_offset = self.survey.fs, _number(base, "segment")
        for number in range(TRIES_MAX):
            try:
                bases = settled_bases(fs, place.path, waits=False)
                following = next((each for each in bases if each > base_offset), OFFSET_MAX)
                before = look(fs, place.path, base_offset, following)
                segment = segment_of(fs, verify_head(place.path, fs=fs), place.path, base_offset)
                if segment is None:
                    break
                entries, times = segment.offset_entries(), segment.time_entries()
                window = segment.window(position, entries, batches_max=batches_max)
                found = Look(segment, window, entries, times)
                if number == TRIES_MAX - 1 or not found.has_problem:
                    return found
                if not has_changed(fs, place.path, before, base_offset, settled_bases(fs, place.path, waits=False)):
                    return found
            except FileMissingError:
                continue  # it was deleted, or a cleaner is replacing it
        raise NotHereError("There is no such segment: it may have been deleted, or merged by a compaction.")

    def segment(self, place: Place, base: str, position: str = "") -> Model:
        """The batches of a segment from byte ``position`` on."""
        segment, window, entries, times = self._look(place, base, _number(position, "position") if position else 0)
        url = f"{place.url}/{segment.base_offset}"
        known = self._known(place, self.survey.ask(place))
        findings = self._findings(known)
        last = entries.entry(len(entries) - 1).value if len(entries) else 0
        return {
            "log": _log(place),
            "url": url,
            "checked": statements.of_a_part(CRC_CHECKED, statements.of_log(known)),
            "file": segment.path().rpartition("/")[2],
            "base": segment.base_offset,
            "next_base": None if segment.is_last else segment.offset_stop,
            "bytes": segment.size,
            "live": segment.is_live,
            "files": list(self._files(segment)),
            "start": window.start,
            "stop": window.stop,
            "next": window.next_position,
            "last": last,
            "batches": [_batch_row(url, at, batch) for at, batch in window.batches],
            "damages": [_damage_row(url, segment, window, damage) for damage in window.damages],
            "index": _index_rows(entries, window),
            "index_entries": len(entries),
            "index_problem": entries.problem,
            "timeindex": _time_rows(times, window),
            "timeindex_entries": len(times),
            "timeindex_problem": times.problem,
            "parts": [{"position": each.value, "offset": each.offset} for each in entries.sampled(PARTS_MAX)],
            "findings": [each for each in findings if each["path"] == segment.path() and "position" in each],
            "file_findings": [
                each for each in findings if each["path"] in (segment.path(suffix) for suffix in INDEX_FILES)
            ],
        }

    def _files(self, segment: Segment) -> Iterator[Model]:
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX):
            path = segment.path(suffix)
            try:
                size = self.survey.fs.stat(path).size
            except FileMissingError:
                continue
            yield {"name": path.rpartition("/")[2], "bytes": size}

    def _batch_at(
        self, place: Place, base: str, position: str
    ) -> tuple[Segment, Window, Entries, tuple[int, Batch] | Damage]:
        """The batch, or the damage, that starts exactly there."""
        at = _number(position, "position")
        segment, window, entries, _ = self._look(place, base, at, batches_max=1)
        for damage in window.damages[:1]:
            if damage.position == at:
                return segment, window, entries, damage
        for batch in window.batches[:1]:
            if batch[0] == at:
                return segment, window, entries, batch
        raise NotHereError("No batch starts at this position.")

    def _previous(self, place: Place, segment: Segment, entries: Entries, position: int) -> str | None:
        """The page of the batch, or the damage, before ``position``, perhaps in the segment before; None if there is
        none, or if no index leads there."""
        if position:
            before = segment.before(position, entries)
            return None if before is None else f"{place.url}/{segment.base_offset}/{before}"
        bases = settled_bases(self.survey.fs, place.path, waits=False)
        number = bisect_left(bases, segment.base_offset)
        if not number:
            return None
        try:
            earlier, _, entries, _ = self._look(place, str(bases[number - 1]), OFFSET_MAX, batches_max=1)
        except NotHereError:
            return None  # it was deleted in the meantime
        before = earlier.before(earlier.size, entries)
        return None if before is None else f"{place.url}/{earlier.base_offset}/{before}"

    def _next(self, place: Place, segment: Segment, end: int) -> str | None:
        """The page of what follows ``end``, perhaps in the next segment."""
        if end < segment.size:
            return f"{place.url}/{segment.base_offset}/{end}"
        if segment.is_last:
            return None
        path = place.path / segment_name(segment.offset_stop, LOG_SUFFIX)
        try:
            return f"{place.url}/{segment.offset_stop}/0" if self.survey.fs.stat(path).size else None
        except FileMissingError:
            return None

    def batch(self, place: Place, base: str, position: str, first: str = "") -> Model:
        """A batch, or the damage in its place: the header with its bytes, and records from offset ``first`` on."""
        segment, window, entries, found = self._batch_at(place, base, position)
        url = f"{place.url}/{segment.base_offset}"
        at = found.position if isinstance(found, Damage) else found[0]
        end = found.stop if isinstance(found, Damage) else at + found[1].size
        model: Model = {
            "log": _log(place),
            "checked": self._checked(place, "Every byte of this batch was checked."),
            "segment_url": url,
            "base": segment.base_offset,
            "url": f"{url}/{at}",
            "position": at,
            "bytes": end - at,
            "view": _view(segment, at, found.first_offset if isinstance(found, Damage) else found[1].base_offset),
            "previous_url": self._previous(place, segment, entries, at),
            "next_url": self._next(place, segment, end),
            "batch": None,
            "damage": None,
            "findings": [
                each
                for each in self._findings(self._known(place, self.survey.known()[0].get(place)))
                if each["path"] == segment.path() and at <= each.get("position", -1) < end
            ],
            "problem": "",
            "records": [],
            "next_first": None,
        }
        if isinstance(found, Damage):
            model["damage"] = _damage_row(url, segment, window, found)
            return model
        batch = found[1]
        model["batch"] = _batch_row(url, at, batch)
        try:
            records = list(islice(batch.records(_number(first, "offset") if first else 0), RECORDS_MAX + 1))
        except CorruptDataError as error:
            model["problem"] = error.reason
            return model
        if len(records) > RECORDS_MAX:
            model["next_first"] = records.pop().offset
        model["records"] = [_row_of_batch(model["url"], batch, record) for record in records]
        return model

    def record(self, place: Place, base: str, position: str, offset: str, form: str = "") -> Model:
        """A record, its key, value and headers as ``form``."""
        segment, _, _, found = self._batch_at(place, base, position)
        number = _number(offset, "offset")
        if isinstance(found, Damage):
            raise NotHereError("The batch is damaged.")
        at, batch = found
        record = next(iter(batch.records(number, number + 1)), None) if number < OFFSET_MAX else None
        if record is None:
            raise NotHereError("The batch has no such record.")
        form = form if form in FORMS else FORMS[0]
        batch_url = f"{place.url}/{segment.base_offset}/{at}"
        return {
            "log": _log(place),
            "checked": self._checked(place, "Every byte of this record's batch was checked."),
            "base": segment.base_offset,
            "position": at,
            "segment_url": f"{place.url}/{segment.base_offset}",
            "batch_url": batch_url,
            "url": f"{batch_url}/{number}",
            "form": form,
            "forms": list(FORMS),
            "marker": _marker(batch, record),
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestamp_type": record.timestamp_type,
            "leader_epoch": record.leader_epoch,
            "key": shown(record.key, form).fields(),
            "value": shown(record.value, form).fields(),
            "headers": [
                {
                    "name": preview(name).fields(),
                    "value": shown(value, form, HEADER_BYTES_MAX).fields(),
                }
                for name, value in record.header_bytes[:HEADERS_MAX]
            ],
            "header_count": len(record.headers),
        }


def _log(place: Place) -> Model:
    return {
        "name": place.name,
        "topic": place.topic,
        "partition": place.partition,
        "directory": str(place.path),
        "url": place.url,
        "key": "/".join(place.key),
        "topic_url": place.topic_url,
    }


def _sums(documents: list[Model]) -> dict[str, int]:
    return {name: sum(document[name] for document in documents) for name in SUMMED}


def _number(text: str, what: str) -> int:
    if not NUMBER.fullmatch(text) or int(text) > OFFSET_MAX:
        raise NotHereError(f"That is not the number of a {what}.")
    return int(text)


def _target(to: str) -> tuple[str, int]:
    """What a user typed: an offset, or a time in ms."""
    text = to.strip()
    if NUMBER.fullmatch(text):
        return "offset", _number(text, "record")
    if match := MILLISECONDS.fullmatch(text):
        return "time", int(match[1])
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise NotHereError(
            "Expected an offset, a time such as 2026-01-31T09:00, or @ and ms since the epoch."
        ) from None
    return "time", round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def _found_address(place: Place, explanation: Explanation, offset: int | None) -> tuple[str | None, bool]:
    """The page of the record, and True; or of the damage in the place of ``offset``, or where the lookup ended."""
    base = position = damage = None
    for step in explanation.steps:
        if step.what == "segment":
            base, position, damage = step.values["base_offset"], None, None
        elif step.what == "batch":
            position = step.values["position"]
        elif step.what == "damage":
            damage = step.values.get("position", position)
    if base is None:
        return None, False
    record = explanation.record
    # A lookup goes on after damage, to the next record.
    if record is not None and (damage is None or offset in (None, record.offset)):
        return f"{place.url}/{base}/{position}/{record.offset}", True
    return None if damage is None else f"{place.url}/{base}/{damage}", False


def _view(segment: Segment, position: int, first_offset: int) -> Model:
    """The bytes of a batch's header and a little more, with the names of the fields."""
    data, size_left = segment.entry_bytes(position, VIEW_BYTES), segment.size - position
    base = segment.base_offset
    return view_fields(
        batch_view(data, position, size_left, first_offset=first_offset, base_offset=base, with_payload=True)
    )


def _batch_row(url: str, position: int, batch: Batch) -> Model:
    return {
        "url": f"{url}/{position}",
        "position": position,
        "bytes": batch.size,
        "first": batch.base_offset,
        "last": batch.last_offset,
        "records": batch.record_count,
        "codec": _codec(batch),
        "magic": batch.magic,
        "max_timestamp": batch.max_timestamp,
        "timestamp_type": batch.timestamp_type,
        "leader_epoch": batch.leader_epoch,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "transactional": batch.is_transactional,
        "control": batch.is_control,
        "delete_horizon": batch.delete_horizon_ms,
        "crc": batch.crc,
    }


def _codec(batch: Batch) -> str:
    try:
        return batch.codec
    except CorruptDataError as error:
        return error.reason


def _damage_row(url: str, segment: Segment, window: Window, damage: Damage) -> Model:
    """``stop`` is where the next whole batch starts, or where the search ended (``open``)."""
    is_tail = segment.is_live and damage.next_offset is None and damage.stop == segment.size
    return {
        "url": f"{url}/{damage.position}",
        "position": damage.position,
        "stop": damage.stop,
        "bytes": damage.stop - damage.position,
        "first": damage.first_offset,
        "next_offset": damage.next_offset,
        "reason": damage.reason,
        # A writer may be writing there now.
        "severity": "note" if is_tail or (damage.is_space and segment.offset_stop == OFFSET_MAX) else "damage",
        "open": window.is_open and damage is window.damages[-1],
    }


def _index_rows(entries: Entries, window: Window) -> list[Model]:
    """The entries that point into the window; ``wrong``: a batch is there, but none with this last offset starts there.

    Brokers before 3.x wrote the last offset of a whole append, which may be that of a later batch.
    """
    starts = {at: batch.last_offset for at, batch in window.batches}
    rows = []
    for entry in entries.with_values(window.start, window.stop):
        is_damaged = any(damage.position <= entry.value < damage.stop for damage in window.damages)
        is_wrong = not is_damaged and (entry.value not in starts or starts[entry.value] > entry.offset)
        rows.append({"slot": entry.slot, "offset": entry.offset, "position": entry.value, "wrong": is_wrong})
    return rows


def _time_rows(times: Entries, window: Window) -> list[Model]:
    if not window.batches:
        return []
    first, last = window.batches[0][1].base_offset, window.batches[-1][1].last_offset
    return [
        {"slot": each.slot, "timestamp": each.value, "offset": each.offset} for each in times.with_offsets(first, last)
    ]


def records_left(log: Log, first: int, stop: int, count_max: int) -> tuple[int, list[Record]]:
    """The readable records from offset ``first`` on, or from where the log starts after a deletion that comes between,
    and that offset. Raises: StorageError."""
    while (first := max(first, log.start_offset)) < stop:
        try:
            return first, list(islice(log.read(first, stop, on_corrupt="skip"), count_max))
        except OffsetOutOfRangeError as error:
            if error.offset >= error.start_offset:
                break  # it was cut below
            first = error.start_offset
    return first, []


def record_row(place: Place, record: Record) -> Model:
    """A record in a list of a log's; its address looks it up."""
    return _record_row(f"{place.url}/jump?to={record.offset}", record)


def _row_of_batch(url: str, batch: Batch, record: Record) -> Model:
    return {**_record_row(f"{url}/{record.offset}", record), "marker": _marker(batch, record)}


def _record_row(url: str, record: Record) -> Model:
    return {
        "url": url,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": preview(record.key).fields(),
        "value": preview(record.value).fields(),
        "headers": len(record.headers),
    }


def _marker(batch: Batch, record: Record) -> str:
    """The kind of a control record; empty for all others."""
    if not batch.is_control:
        return ""
    try:
        return parse_control_type(record.key).name
    except CorruptDataError as error:
        return error.reason
