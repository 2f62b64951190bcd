"""What ``kstore dump-log`` prints, as the dump tool of Kafka 4.0 to 4.3 prints it: kstore follows 4.4.

It keeps the dumps of older releases useful: those in tests/golden, and those that tests/interop makes.
"""

from __future__ import annotations

import re

from kstore.transactions.metadata import TransactionState

STATE = re.compile(rb'"transactionStatus":"([^"]*)"')
NUMBERS = {str(state).encode(): b"%d" % state for state in TransactionState}
# The fields of a streams group's metadata, and the type of a record of the cluster's metadata, that came with 4.4.
FIELDS = re.compile(rb',"(?:stored|failed)DescriptionTopologyEpoch":-?\d+')
RECORD = re.compile(rb'(\| offset: (\d+) .* payload: )\{"type":"UNREGISTER_CONTROLLER_RECORD",.*\}')


def as_older(out: bytes) -> bytes:
    """``out`` with the numbers of transactions' states, and without what came with 4.4."""
    out = STATE.sub(lambda match: b'"transactionStatus":' + NUMBERS.get(match[1], match[1]), out)
    return RECORD.sub(rb"\1Error at \2, skipping.", FIELDS.sub(b"", out))
