"""Handing a directory of partitions from kstore to a Kafka broker (KRaft, 4.x), and back.

store        the directory: its holders, its contents, one change after another, and the report
partition    one partition's log: opened and closed cleanly, read whole, its indexes checked against it
to_broker    from_broker    the two directions
"""

from kstore.upkeep.handover.from_broker import from_broker
from kstore.upkeep.handover.store import Change, HandoverReport, PartitionReport
from kstore.upkeep.handover.to_broker import to_broker

__all__ = ["Change", "HandoverReport", "PartitionReport", "from_broker", "to_broker"]
