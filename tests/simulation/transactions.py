"""Transactions of a simulated life over the partitions of one topic, with offsets that commit with them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kstore.errors import InvalidProducerIdMappingError, InvalidTransactionStateError, ProducerFencedError
from kstore.files.paths import TopicPartition
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.store import coordinator_of
from tests.simulation.model import Batch, Entry, Found
from tests.support.harness.evidence import Lost, Wrong

if TYPE_CHECKING:
    from tests.simulation.life import Life

TOPIC = "ledger"
GROUP = "billing"
READERS = "readers"
IDS = ("alpha", "beta")
TIMEOUT_SECONDS = 60
FENCED = (ProducerFencedError, InvalidTransactionStateError, InvalidProducerIdMappingError)

# "asked": the commit or abort was requested and has not returned.
State = Literal["open", "asked to commit", "asked to abort", "committed", "aborted"]


@dataclass(slots=True)
class _Session:
    """A producer's open transaction."""

    number: int
    producer: tuple[int, int]
    began: float
    sequences: dict[int, int] = field(default_factory=dict)
    offset: int | None = None


@dataclass
class Transactions:
    """The fate of each transaction, by number. ``number_of`` has each record's transaction."""

    states: dict[int, State] = field(default_factory=dict)
    number_of: dict[Entry, int] = field(default_factory=dict)
    # Each transaction's offset, which the group may have committed, and the one that it has committed.
    offsets: dict[int, int] = field(default_factory=dict)
    committed_offset: int | None = None
    # Plain commits by partition: the certain offset (None: nothing), and others that may be there.
    certain: dict[int, int | None] = field(default_factory=dict)
    doubtful: dict[int, set[int]] = field(default_factory=dict)
    sessions: dict[str, _Session] = field(default_factory=dict)
    count: int = 0

    # --- steps ------------------------------------------------------------------------------------------------------

    def step(self, life: Life, generator: random.Random) -> None:
        """Starts a transaction, continues one, or ends it. Failures are left to the next ``init_producer_id``."""
        name = generator.choice(IDS)
        session = self.sessions.pop(name, None)
        try:
            if session is None:
                self.sessions[name] = self._begun(life, name)
                return
            if generator.random() < 0.6:
                self._write(life, name, session, generator)
                self.sessions[name] = session
            else:
                self._end(life, name, session, commit=generator.random() < 0.7)
        except FENCED as error:
            # After a week by the clock, which jumps, the store forgets an id without an open transaction.
            is_forgotten = isinstance(error, InvalidProducerIdMappingError) and session and not session.sequences
            is_old = session and life.clock.monotonic() - session.began >= TIMEOUT_SECONDS
            if session is None or not (is_forgotten or is_old):
                raise Wrong(f"transaction {session and session.number} of {name}: {error!r}") from error
            # The store aborted it because of its age, or it held nothing.
            self.states[session.number] = "aborted"

    def _begun(self, life: Life, name: str) -> _Session:
        producer = coordinator_of(life.store).init_producer_id(name, TIMEOUT_SECONDS * 1000)
        self.count += 1
        self.states[self.count] = "open"
        return _Session(self.count, producer, life.clock.monotonic())

    def _write(self, life: Life, name: str, session: _Session, generator: random.Random) -> None:
        coordinator = coordinator_of(life.store)
        model_of = life.topics[TOPIC].logs
        # Each time, because the store may have aborted it for its age, and the logs may have forgotten the producer.
        owners = [TopicPartition(TOPIC, number) for number in range(len(model_of))]
        coordinator.add_partitions(name, *session.producer, owners)
        for number, model in enumerate(model_of):
            life.count_markers(TOPIC, number, model)
            entries = tuple(life.new_entry(generator) for _ in range(generator.randint(1, 3)))
            self.number_of.update((entry, session.number) for entry in entries)
            life.write_count += 1
            batch = Batch(model.end, entries, life.clock.now_ms(), life.write_count)
            sequence = session.sequences.get(number, 0)
            data = build_batch(
                [Record(at, batch.time_ms, key=entry.key, value=entry.value) for at, entry in enumerate(entries)],
                producer_id=session.producer[0],
                producer_epoch=session.producer[1],
                base_sequence=sequence,
                is_transactional=True,
            )
            model.begin([batch])
            first = life.store.log(TOPIC, number).append_batches(data).first_offset
            model.done([batch], first)
            session.sequences[number] = sequence + len(entries)
        if generator.random() < 0.5:
            offset = model_of[0].end
            coordinator.add_offsets(name, *session.producer, GROUP, {TopicPartition(TOPIC, 0): offset})
            session.offset = offset

    def _end(self, life: Life, name: str, session: _Session, *, commit: bool) -> None:
        number = session.number
        if not session.sequences:
            self.states[number] = "aborted"  # it holds nothing
            return
        self.states[number] = "asked to commit" if commit else "asked to abort"
        if commit and session.offset is not None:
            self.offsets[number] = session.offset
        coordinator_of(life.store).end(name, *session.producer, commit=commit)
        self.states[number] = "committed" if commit else "aborted"
        if commit and session.offset is not None:
            self._commit_offset(session.offset)

    def _commit_offset(self, offset: int) -> None:
        """Of two commits the one written later counts, as in Kafka, whichever transaction ended later. The offsets are
        ends of one log, so the later one is the higher one."""
        self.committed_offset = max(offset, self.committed_offset or 0)

    def commit_offset(self, life: Life, generator: random.Random) -> None:
        """A plain commit of a group."""
        partition = generator.randrange(len(life.topics["orders"].logs))
        offset = life.topics["orders"].logs[partition].end
        self.doubtful.setdefault(partition, set()).add(offset)
        coordinator_of(life.store).commit_offsets(READERS, {TopicPartition("orders", partition): offset})
        self.certain[partition] = offset
        self.doubtful[partition].clear()

    # --- what must hold -----------------------------------------------------------------------------------------------

    def hold(self, life: Life, *, settled: bool) -> None:
        """Committed readers see what was committed, and nothing else; ``settled``: the store was just opened."""
        if settled:
            self.sessions.clear()
        seen_in: dict[int, set[int]] = {}
        for number in range(len(life.topics[TOPIC].logs)):
            self._hold_partition(life, number, seen_in, settled)
        if settled:
            self._settle(life, seen_in)
            self._hold_offsets(life)

    def _hold_partition(self, life: Life, number: int, seen_in: dict[int, set[int]], settled: bool) -> None:
        log = life.store.log(TOPIC, number)
        found = Found.of(log)
        stable = log.last_stable_offset
        if settled and stable != log.end_offset:
            raise Wrong(f"{TOPIC}-{number}: a transaction stays open: {log.transactions()}")
        committed = {
            record.offset: Entry(record.key, record.value)
            for record in log.read(isolation_level="read_committed", on_corrupt="skip")
        }
        for offset, entry in found.entries.items():
            transaction = self.number_of.get(entry)
            state = "committed" if transaction is None else self.states[transaction]
            is_seen = committed.get(offset) == entry
            if state == "committed" and not is_seen and offset < stable:
                raise Lost(f"{TOPIC}-{number}: committed readers miss offset {offset}, of transaction {transaction}")
            if state in ("open", "asked to abort", "aborted") and is_seen:
                raise Wrong(f"{TOPIC}-{number}: committed readers see transaction {transaction}, which is {state}")
            if is_seen and transaction is not None:
                seen_in.setdefault(transaction, set()).add(number)
        if extra := committed.keys() - found.entries.keys():
            raise Wrong(f"{TOPIC}-{number}: committed readers see {sorted(extra)}, which others do not")

    def _settle(self, life: Life, seen_in: dict[int, set[int]]) -> None:
        for number, state in self.states.items():
            seen = seen_in.get(number, set())
            if state == "asked to commit":
                if seen and len(seen) < len(life.topics[TOPIC].logs):
                    raise Wrong(f"transaction {number} is committed in the partitions {sorted(seen)} only")
                self.states[number] = "committed" if seen else "aborted"
                if seen and number in self.offsets:
                    self._commit_offset(self.offsets[number])
            elif state != "committed":
                self.states[number] = "aborted"

    def _hold_offsets(self, life: Life) -> None:
        coordinator = coordinator_of(life.store)
        kept = coordinator.committed(GROUP).get(TopicPartition(TOPIC, 0))
        if (kept and kept.offset) != self.committed_offset:
            raise Lost(f"group {GROUP} has committed {kept and kept.offset}, expected {self.committed_offset}")
        found = coordinator.committed(READERS)
        for number, model in enumerate(life.topics["orders"].logs):
            there = found.get(TopicPartition("orders", number))
            offset = there and there.offset
            allowed = {self.certain.get(number), *self.doubtful.get(number, ())}
            # A truncation sets the offset back to the log's new end.
            if any(one is not None and one > model.end for one in allowed):
                allowed.add(model.end)
            if offset not in allowed:
                raise Lost(f"group {READERS} has committed {offset} of partition {number}, expected one of {allowed}")
            self.certain[number] = offset
            self.doubtful.pop(number, None)
