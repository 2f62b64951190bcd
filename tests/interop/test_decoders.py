"""Records of Kafka's own topics, decoded by Kafka's tool and by ``kstore dump-log``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.conftest import Kafka
from tests.interop.decoder_logs import write_all
from tools.interop.dump import kafka_dumps

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
ERROR = re.compile(rb"(Error at (?:offset )?\d+, skipping\.).*")
# Not the ones in tests/golden.
SEEDS = (2, 3)


def test_random_messages_are_decoded_alike(dump_tool: Kafka, tmp_path: Path) -> None:
    runs = [run for seed in SEEDS for run in write_all(tmp_path / str(seed), seed)]
    work = tmp_path / "work"
    work.mkdir()
    for run, printed in kafka_dumps(dump_tool.java, dump_tool.jars, runs, work).items():
        assert not printed.threw, run
        command = [sys.executable, str(ROOT / "tools" / "dump_log.py"), *run.arguments]
        ours = subprocess.run(command, capture_output=True, check=False)
        assert (ours.returncode, ours.stderr) == (0, b""), run
        assert ERROR.sub(rb"\1", dump_tool.lines(ours.stdout)) == ERROR.sub(rb"\1", printed.out), run
