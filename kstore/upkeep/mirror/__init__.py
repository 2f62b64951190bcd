"""Offset-exact, byte-exact copies of logs, to and from local disks, HDFS and object stores."""

from kstore.upkeep.mirror.job import MirroredLog, mirror, size_of

__all__ = ["MirroredLog", "mirror", "size_of"]
