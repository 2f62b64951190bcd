"""Prints a dump in the lines of Kafka's DumpLogSegments."""

from __future__ import annotations

from collections.abc import Iterable

from kstore.cli.decoders import Decoder, java_bool, json_text
from kstore.cli.dump.batches import LegacyDumpBatch, Message, V2DumpBatch
from kstore.cli.dump.control import control_note
from kstore.cli.dump.printer import Output, Reports, Shown
from kstore.errors import CorruptDataError, CorruptRecordError
from kstore.messages.schema import Value
from kstore.record._codec import Record
from kstore.state.producer_snapshot import ProducerEntry
from kstore.types import AbortedTransaction

INDENT = "|"


class TextPrinter:
    """Batches, records and entries go to standard output, damage and mismatches to standard error."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def file(self, path: str) -> None:
        self._output.write(f"Dumping {path}\n")

    def ignored(self, path: str) -> None:
        self._output.remark(f"Ignoring unknown file {path}")

    def log_start(self, base_offset: int) -> None:
        self._output.write(f"Log starting offset: {base_offset}\n")

    def snapshot_start(self, end_offset: int, epoch: int) -> None:
        self._output.write(f"Snapshot end offset: {end_offset}, epoch: {epoch}\n")

    def bootstrap_start(self) -> None:
        self._output.write("KRaft bootstrap snapshot\n")

    def batch(self, batch: V2DumpBatch | LegacyDumpBatch, is_valid: bool) -> None:
        start = _v2_start(batch) if isinstance(batch, V2DumpBatch) else f"offset: {batch.last_offset}"
        entry = batch.entry
        try:
            times = f"{batch.timestamp_type}: {batch.max_timestamp}"
            codec = batch.codec
        except CorruptDataError:
            # Kafka's tool breaks off here too; the line break makes the next output start on a new line.
            self._output.write(f"{start}\n")
            raise
        self._output.write(
            f"{start} position: {entry.position} {times} size: {entry.size} "
            f"magic: {entry.magic} compresscodec: {codec} crc: {batch.crc} isvalid: {java_bool(is_valid)}\n"
        )

    @property
    def is_raw(self) -> bool:
        """Whether what records hold is printed as it is."""
        return self._output.is_raw

    def lines(self, text: str) -> None:
        """Prints whole lines, as ``plain_lines`` makes them; records' contents only if ``is_raw``."""
        self._output.write_lines(text)

    def records(self, batch: V2DumpBatch, records: Iterable[Record], shown: Shown) -> None:
        write = self._output.write
        timestamp_type, sequence, is_control = batch.timestamp_type, batch.sequence, batch.is_control
        decoder = None if is_control else shown.decoder
        if not shown.metadata:
            for record in records:
                write(_contents("", decoder, record) if decoder else "\n")
            return
        has_sequences = batch.header.base_sequence >= 0
        for record in records:
            offset, key, value, headers = record.offset, record.key, record.value, record.headers
            line = (
                f"| offset: {offset} {timestamp_type}: {record.timestamp} "
                f"keySize: {-1 if key is None else len(key)} valueSize: {-1 if value is None else len(value)} "
                f"sequence: {sequence(offset) if has_sequences else -1} "
                f"headerKeys: [{','.join([name for name, _ in headers]) if headers else ''}]"
            )
            if is_control:
                write(f"{line} {control_note(record).text}\n")
            else:
                write(_contents(line, decoder, record) if decoder else f"{line}\n")

    def messages(self, batch: LegacyDumpBatch, messages: Iterable[Message], shown: Shown) -> None:
        decoder = shown.decoder
        for message in messages:
            record, line = message.record, ""
            if shown.metadata:
                line = (
                    f"| offset: {record.offset} {batch.timestamp_type}: {record.timestamp} "
                    f"keySize: {message.key_size} valueSize: {message.value_size} "
                    f"isValid: {java_bool(message.is_valid)} crc: {message.crc}"
                )
            self._output.write(_contents(line, decoder, record) if decoder else f"{line}\n")
            if decoder and message.problem:
                raise CorruptRecordError(message.problem)

    def invalid_tail(self, size: int, name: str) -> None:
        self._output.write(f"Found {size} invalid bytes at the end of {name}\n")

    def empty_index(self, path: str) -> None:
        self._output.write(f"{path} is empty.\n")

    def sanity_passed(self, path: str) -> None:
        self._output.write(f"{path} passed sanity check.\n")

    def index_entry(self, offset: int, position: int) -> None:
        self._output.write(f"offset: {offset} position: {position}\n")

    def time_index_entry(self, timestamp: int, offset: int) -> None:
        self._output.write(f"timestamp: {timestamp} offset: {offset}\n")

    def aborted_transaction(self, version: int, entry: AbortedTransaction) -> None:
        self._output.write(
            f"version: {version} producerId: {entry.producer_id} firstOffset: {entry.first_offset} "
            f"lastOffset: {entry.last_offset} lastStableOffset: {entry.last_stable_offset}\n"
        )

    def producer(self, entry: ProducerEntry) -> None:
        first_offset = entry.current_txn_first_offset
        line = (
            f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch} "
            f"coordinatorEpoch: {entry.coordinator_epoch} "
            f"currentTxnFirstOffset: {_optional(None if first_offset < 0 else first_offset)} "
            f"lastTimestamp: {entry.timestamp}"
        )
        if entry.last_offset >= 0:
            line += (
                f" firstSequence: {_first_sequence(entry)} lastSequence: {entry.last_sequence} "
                f"lastOffset: {entry.last_offset} offsetDelta: {entry.offset_delta} timestamp: {entry.timestamp}"
            )
        self._output.write(f"{line}\n")

    def snapshot_crc(self, stored: int, computed: int) -> None:
        self._output.remark(
            f"Snapshot is corrupt (CRC is no longer valid). Stored crc: {stored}. Computed crc: {computed}"
        )

    def damage(self, path: str, reason: str, position: int | None) -> None:
        at = "" if position is None else f" at position {position}"
        self._output.remark(f"{path}: damaged{at}: {reason}")

    def note(self, path: str, text: str) -> None:
        self._output.remark(f"{path}: {text}")

    def reports(self, reports: Reports) -> None:
        for kind, path, mismatches in reports:
            lines = [kind.line.format(*mismatch) for mismatch in mismatches]
            self._output.remark("\n".join([kind.heading.format(path), *lines]))

    def flush(self) -> None:
        self._output.flush()


def _v2_start(batch: V2DumpBatch) -> str:
    header = batch.header
    return (
        f"baseOffset: {header.base_offset} lastOffset: {batch.last_offset} count: {header.record_count} "
        f"baseSequence: {header.base_sequence} lastSequence: {batch.last_sequence} producerId: {header.producer_id} "
        f"producerEpoch: {header.producer_epoch} partitionLeaderEpoch: {header.leader_epoch} "
        f"isTransactional: {java_bool(batch.is_transactional)} isControl: {java_bool(batch.is_control)} "
        f"deleteHorizonMs: {_optional(batch.delete_horizon_ms)}"
    )


def _contents(line: str, decoder: Decoder, record: Record) -> str:
    """The line followed by key and payload; without both, an empty line stays empty."""
    key, value = decoder(record)
    if not line and (key is not None or value is not None):
        line = INDENT
    if key is not None:
        line += f" key: {_text(key)}"
    if value is not None:
        line += f" payload: {_text(value)}"
    return f"{line}\n"


def _text(value: Value) -> str:
    return value if isinstance(value, str) else json_text(value)


def _optional(number: int | None) -> str:
    """Java's text of an OptionalLong."""
    return "OptionalLong.empty" if number is None else f"OptionalLong[{number}]"


def _first_sequence(entry: ProducerEntry) -> int:
    """Counted back from the last, wrapping from 0 to 2^31 - 1."""
    return (entry.last_sequence - entry.offset_delta) % (1 << 31)
