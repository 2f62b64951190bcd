"""Versions 0 and 1 against two other implementations: they read what our oracle writes, and kstore reads theirs."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatch as AioBatch
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AioBuilder
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kstore.record.compression import CODECS_BY_NAME
from kstore.record.scan import parse_batches
from tests.support.harness.selection import tries
from tests.support.oracles.oracle_legacy import message, wrapper

with warnings.catch_warnings():
    # When imported, kafka-python reads its schemas with a function that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.legacy_records import LegacyRecordBatch as KafkaBatch
    from kafka.record.legacy_records import LegacyRecordBatchBuilder as KafkaBuilder

FIELDS = st.one_of(st.none(), st.binary(max_size=60))
RECORDS = st.lists(st.tuples(FIELDS, FIELDS, st.integers(0, 2**40)), min_size=1, max_size=12)
CODECS = st.sampled_from(["none", "gzip", "snappy", "lz4"])
MAGICS = st.sampled_from([0, 1])


def knows(other: Any, codec: str, magic: int) -> bool:
    """Neither writes lz4 in version 0; kafka-python's snappy needs another library."""
    return not (codec == "lz4" and magic == 0) and not (codec == "snappy" and other in (KafkaBatch, KafkaBuilder))


@pytest.mark.parametrize("builder", [AioBuilder, KafkaBuilder], ids=["aiokafka", "kafka-python"])
@settings(max_examples=tries(60, quick=12), deadline=None)
@given(records=RECORDS, codec=CODECS, magic=MAGICS)
def test_kstore_reads_what_others_write(builder: Any, records: list[Any], codec: str, magic: int) -> None:
    assume(knows(builder, codec, magic))
    built = builder(magic=magic, compression_type=CODECS_BY_NAME[codec].id, batch_size=1 << 20)
    for offset, (key, value, timestamp) in enumerate(records):
        # Their builders refuse a null value with a null key in compressed sets, only by convention; so bytes are given.
        built.append(offset, timestamp=timestamp if magic else None, key=key, value=value)
    found = [record for batch in parse_batches(bytes(built.build())) for record in batch.records()]
    assert [(record.key, record.value) for record in found] == [(key, value) for key, value, _ in records]
    assert [record.offset for record in found] == list(range(len(records)))
    if magic:
        assert [record.timestamp for record in found] == [timestamp for _, _, timestamp in records]


@pytest.mark.parametrize("reader", [AioBatch, KafkaBatch], ids=["aiokafka", "kafka-python"])
@settings(max_examples=tries(60, quick=12), deadline=None)
@given(records=RECORDS, codec=CODECS, magic=MAGICS)
def test_others_read_what_the_oracle_writes(reader: Any, records: list[Any], codec: str, magic: int) -> None:
    assume(knows(reader, codec, magic))
    messages = [
        message(offset, value, key, magic=magic, timestamp=timestamp)
        for offset, (key, value, timestamp) in enumerate(records)
    ]
    if codec == "none":
        entries = messages
    else:
        latest = max(timestamp for _, _, timestamp in records)
        entries = [wrapper(messages, offset=len(records) - 1, codec=codec, magic=magic, timestamp=latest)]
    found = [record for entry in entries for record in reader(memoryview(entry), magic)]
    assert [(record.key, record.value) for record in found] == [(key, value) for key, value, _ in records]
    assert [record.offset for record in found] == list(range(len(records)))
    ours = [record for batch in parse_batches(b"".join(entries)) for record in batch.records()]
    assert [(record.key, record.value) for record in ours] == [(key, value) for key, value, _ in records]
