"""Prints a dump as JSON, one object a line; each has its ``type`` and the ``path`` it is about.

Types: file, batch, record, index_entry, time_index_entry, aborted_transaction, producer, and for problems damage,
mismatch, invalid_tail. Unlike Kafka's lines, all of it goes to standard output.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from typing import Any

from kstore.cli.decoders import Decoder
from kstore.cli.dump.batches import LegacyDumpBatch, Message, V2DumpBatch
from kstore.cli.dump.control import control_note
from kstore.cli.dump.printer import Output, Reports, Shown
from kstore.cli.record_json import add_bytes, compact, header_fields
from kstore.errors import CorruptRecordError
from kstore.messages.primitives import Uuid
from kstore.messages.schema import Value
from kstore.record._codec import Record
from kstore.state.producer_snapshot import ProducerEntry
from kstore.types import AbortedTransaction


class JsonPrinter:
    """Everything goes to standard output; names are snake_case, absent numbers null or -1 as in the files."""

    def __init__(self, output: Output, *, plain: bool) -> None:
        """``plain``: whether keys and values are shown unchanged, whatever the decoder."""
        self._output = output
        self._plain = plain
        self._path = ""

    def file(self, path: str) -> None:
        self._path = path
        self._say("file")

    def ignored(self, path: str) -> None:
        self._say("ignored", path=path)

    def log_start(self, base_offset: int) -> None:
        self._say("log_start", base_offset=base_offset)

    def snapshot_start(self, end_offset: int, epoch: int) -> None:
        self._say("snapshot_start", end_offset=end_offset, epoch=epoch)

    def bootstrap_start(self) -> None:
        self._say("bootstrap_start")

    def batch(self, batch: V2DumpBatch | LegacyDumpBatch, is_valid: bool) -> None:
        fields: dict[str, Any] = {"position": batch.entry.position, "last_offset": batch.last_offset}
        if isinstance(batch, V2DumpBatch):
            header = batch.header
            fields |= {
                "base_offset": header.base_offset,
                "record_count": header.record_count,
                "base_sequence": header.base_sequence,
                "last_sequence": batch.last_sequence,
                "producer_id": header.producer_id,
                "producer_epoch": header.producer_epoch,
                "leader_epoch": header.leader_epoch,
                "is_transactional": batch.is_transactional,
                "is_control": batch.is_control,
                "delete_horizon_ms": batch.delete_horizon_ms,
            }
        fields |= {
            "size": batch.entry.size,
            "magic": batch.entry.magic,
            "crc": batch.crc,
            "is_valid": is_valid,
        }
        try:
            fields |= {"timestamp_type": batch.timestamp_type, "max_timestamp": batch.max_timestamp}
            fields["codec"] = batch.codec
        finally:
            self._say("batch", **fields)

    def records(self, batch: V2DumpBatch, records: Iterable[Record], shown: Shown) -> None:
        write, is_control, decoder = self._output.write, batch.is_control, shown.decoder
        for record in records:
            fields: dict[str, Any] = {"type": "record", "path": self._path}
            if shown.metadata:
                _add_metadata(fields, record)
                fields["sequence"] = batch.sequence(record.offset)
                if decoder is None:
                    fields["header_keys"] = [name for name, _ in record.headers]
                else:
                    fields["headers"] = header_fields(record.headers)
            if is_control:
                note = control_note(record)
                fields["control_type"], fields["control"] = note.type, _plain_data(note.data)
            elif decoder is not None:
                self._add_contents(fields, record, decoder)
            write(f"{compact(fields)}\n")

    def messages(self, batch: LegacyDumpBatch, messages: Iterable[Message], shown: Shown) -> None:
        for message in messages:
            fields: dict[str, Any] = {}
            if shown.metadata:
                _add_metadata(fields, message.record)
                fields |= {"key_size": message.key_size, "value_size": message.value_size}
                fields |= {"is_valid": message.is_valid, "crc": message.crc}
            if shown.decoder is not None:
                self._add_contents(fields, message.record, shown.decoder)
            self._say("record", **fields)
            if shown.decoder is not None and message.problem:
                raise CorruptRecordError(message.problem)

    def invalid_tail(self, size: int, name: str) -> None:
        self._say("invalid_tail", size=size)

    def empty_index(self, path: str) -> None:
        self._say("empty_index", path=path)

    def sanity_passed(self, path: str) -> None:
        self._say("sanity_passed", path=path)

    def index_entry(self, offset: int, position: int) -> None:
        self._say("index_entry", offset=offset, position=position)

    def time_index_entry(self, timestamp: int, offset: int) -> None:
        self._say("time_index_entry", timestamp=timestamp, offset=offset)

    def aborted_transaction(self, version: int, entry: AbortedTransaction) -> None:
        self._say("aborted_transaction", version=version, **entry._asdict())

    def producer(self, entry: ProducerEntry) -> None:
        self._say("producer", **entry._asdict())

    def snapshot_crc(self, stored: int, computed: int) -> None:
        self._say("damage", reason="bad crc of a producer snapshot", stored_crc=stored, computed_crc=computed)

    def damage(self, path: str, reason: str, position: int | None) -> None:
        self._say("damage", path=path, reason=reason, position=position)

    def note(self, path: str, text: str) -> None:
        self._say("note", path=path, text=text)

    def reports(self, reports: Reports) -> None:
        for kind, path, mismatches in reports:
            for found, expected in mismatches:
                self._say("mismatch", path=path, kind=kind.name, **{kind.found: found, kind.expected: expected})

    def flush(self) -> None:
        self._output.flush()

    def _say(self, what: str, **fields: Any) -> None:
        self._output.write(f"{compact({'type': what, 'path': self._path, **fields})}\n")

    def _add_contents(self, fields: dict[str, Any], record: Record, decoder: Decoder) -> None:
        if self._plain:
            add_bytes(fields, "key", record.key)
            add_bytes(fields, "value", record.value)
        else:
            key, value = decoder(record)
            fields["key"], fields["value"] = _plain_data(key), _plain_data(value)


def _add_metadata(fields: dict[str, Any], record: Record) -> None:
    key, value = record.key, record.value
    fields["offset"] = record.offset
    fields["timestamp"] = record.timestamp
    fields["timestamp_type"] = record.timestamp_type
    fields["key_size"] = -1 if key is None else len(key)
    fields["value_size"] = -1 if value is None else len(value)


def _plain_data(value: Value) -> Any:
    """``value`` with everything that JSON cannot express converted."""
    match value:
        case Uuid():
            return str(value)
        case bytes():
            return b64encode(value).decode()
        case list():
            return [_plain_data(element) for element in value]
        case dict():
            return {name: _plain_data(inner) for name, inner in value.items()}
        case _:
            return value
