"""The logs of a real broker's coordinators: groups of both protocols, share groups and transactions.

    python -m tests.interop.coordinator_logs TARGET

makes TARGET/coordinators and, with Kafka's own tool, TARGET/coordinators.dumped, which tools/pack_golden.py packs.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tools.interop import java
from tools.interop.broker import Broker
from tools.interop.dump import Run, kafka_dumps

# By log: the tool's option.
DECODERS = {
    "__consumer_offsets-0": "offsets-decoder",
    "__share_group_state-0": "share-group-state-decoder",
    "__transaction_state-0": "transaction-log-decoder",
}
SHARE_PROPERTIES = """\
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""
SEGMENT = "00000000000000000000.log"
GROUPS_SECONDS_MAX = 120


def main(target: Path) -> None:
    java_path, jars = java.find_java(), java.fetch_jars()
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder), java_path, jars)
        broker.extra_properties = SHARE_PROPERTIES
        with broker.running():
            java.run(java_path, jars, "Groups.java", [], seconds=GROUPS_SECONDS_MAX, server=broker.server)
        runs = []
        for name, option in DECODERS.items():
            path = target / "coordinators" / name / SEGMENT
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(broker.data / name / SEGMENT, path)
            runs.append(Run(path, (f"--{option}",)))
        work = Path(folder) / "work"
        work.mkdir()
        for run, printed in kafka_dumps(java_path, jars, runs, work).items():
            dumped = target / "coordinators.dumped" / f"{run.path.relative_to(target)}.{run.options[0][2:]}.txt"
            dumped.parent.mkdir(parents=True, exist_ok=True)
            dumped.write_bytes(printed.out.replace(f"{target}/".encode(), b""))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
