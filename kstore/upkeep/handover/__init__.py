"""Handing a directory of partitions from kstore to a Kafka broker (KRaft, 4.x), and back.

report       what was, or would be, done
store        the directory: who holds it, what is in it, one change after the other
partition    one partition's log: opened and closed in order, read whole, its indexes held against it
to_broker    from_broker    the two ways
"""

from kstore.upkeep.handover.from_broker import from_broker
from kstore.upkeep.handover.report import HandoverReport, PartitionReport, Step
from kstore.upkeep.handover.to_broker import to_broker

__all__ = ["HandoverReport", "PartitionReport", "Step", "from_broker", "to_broker"]
