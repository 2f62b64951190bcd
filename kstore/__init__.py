"""An embedded, durable, append-only log with Apache Kafka's exact file format."""

from kstore.log import Log
from kstore.record._codec import Record
from kstore.record.scan import parse_batches
from kstore.types import AppendInfo, CorruptRange, RecoveryReport

__all__ = ["AppendInfo", "CorruptRange", "Log", "Record", "RecoveryReport", "parse_batches"]
__version__ = "0.1.0"
