"""Which partition of an internal topic holds a transactional id or a group: Kafka's rule. No I/O here.

partition = abs(hash) % count     hash: Java's String.hashCode; abs of the least int is 0 (Kafka: Utils.abs)
"""

from __future__ import annotations


def java_hash(text: str) -> int:
    """Java's ``String.hashCode``: over UTF-16 code units, in 32 signed bits."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(data), 2):
        value = (value * 31 + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(name: str, count: int) -> int:
    """The partition of ``count`` to which a transactional id or a group belongs."""
    hashed = java_hash(name)
    return 0 if hashed == -(1 << 31) else abs(hashed) % count
