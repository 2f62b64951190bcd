"""Requests and responses of Kafka's protocol: written by kstore, read and written again by Kafka's own classes."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from kstore.messages._wire import MessageReader
from kstore.messages.schema import load_messages
from tests.interop.conftest import Kafka
from tests.interop.decoder_logs import encode_random
from tests.support.harness.selection import tries
from tools.interop import java

pytestmark = pytest.mark.interop

# In all about 100,000.
MESSAGES_EACH = tries(300, quick=10)
SECONDS_MAX = 200


def test_messages_of_all_versions_come_back_from_kafka_with_the_same_bytes(dump_tool: Kafka, tmp_path: Path) -> None:
    rng = random.Random(43)
    lines, written = [], []
    for message in load_messages("wire").values():
        kind = "request" if message.name.endswith("Request") else "response"
        for version in range(message.versions.lowest, message.versions.highest + 1):
            for _ in range(MESSAGES_EACH):
                values = message.read(MessageReader(encode_random(message, version, rng, ())), version)
                data = message.write(values, version)
                assert message.read(MessageReader(data), version) == values
                lines.append(f"{kind}\t{message.key}\t{version}\t{data.hex()}")
                written.append(data)
    target = tmp_path / "answers"
    java.run(dump_tool.java, dump_tool.jars, "Wire.java", lines, seconds=SECONDS_MAX, target=str(target))
    answers = target.read_text().splitlines()
    assert len(answers) == len(written)
    others = [
        (line, answer) for line, data, answer in zip(lines, written, answers, strict=True) if answer != data.hex()
    ]
    assert Counter(line.rpartition("\t")[0] for line, _ in others) == {}, others[:3]
