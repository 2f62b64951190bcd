"""Offset-exact, byte-exact copies of logs, to and from local disks, HDFS and object stores."""

from kstore.upkeep.mirror.job import mirror, size_of
from kstore.upkeep.mirror.report import MirroredLog

__all__ = ["MirroredLog", "mirror", "size_of"]
