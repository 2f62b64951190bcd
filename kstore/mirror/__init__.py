"""Offset-exact, byte-exact copies of logs, to and from local disks, HDFS and object stores."""

from kstore.mirror.job import mirror, size_of
from kstore.mirror.report import MirroredLog

__all__ = ["MirroredLog", "mirror", "size_of"]
