"""Kafka's own decoders, and Java, on the bytes in ``tests/decoded`` and the batches in ``tests/odd_batches``."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstore.cli.main import main
from tests.decoded import payloads, texts
from tests.interop.conftest import Kafka
from tests.support.lives.odd_batches import ODD, ODD_LEGACY
from tools.interop import java
from tools.interop.dump import Run, kafka_dumps

pytestmark = pytest.mark.interop

SECONDS_MAX = 120


def answers(kafka: Kafka, lines: list[str], target: Path) -> list[bytes | None]:
    java.run(kafka.java, kafka.jars, "Payloads.java", lines, seconds=SECONDS_MAX, target=str(target))
    printed = target.read_text().splitlines()
    return [None if line.startswith("!") else b"" if line == "-" else bytes.fromhex(line) for line in printed]


def test_payloads_are_decoded_as_the_table_says(kafka: Kafka, tmp_path: Path) -> None:
    rows = payloads()
    lines = [f"{row.codec_id}\t{row.magic}\t{row.data.hex() or '-'}" for row in rows]
    for row, answer in zip(rows, answers(kafka, lines, tmp_path / "answers"), strict=True):
        assert answer == row.content, row.name


def test_texts_are_decoded_as_the_table_says(kafka: Kafka, tmp_path: Path) -> None:
    rows = texts()
    found = answers(kafka, [f"text\t{data.hex() or '-'}" for data, _ in rows], tmp_path / "answers")
    for (data, text), answer in zip(rows, found, strict=True):
        assert answer == text.encode("utf-16-be"), data.hex()


def test_odd_batches_are_dumped_alike(kafka: Kafka, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    runs = {}
    for name, odd in {**ODD, **ODD_LEGACY}.items():
        path = tmp_path / name / f"{0:020d}.log"
        path.parent.mkdir()
        path.write_bytes(odd.data)
        for options in (("--print-data-log",), ("--deep-iteration",)):
            runs[Run(path, options)] = odd
    work = tmp_path / "work"
    work.mkdir()
    for run, printed in kafka_dumps(kafka.java, kafka.jars, list(runs), work).items():
        assert not printed.threw, run
        capsysbinary.readouterr()
        assert main(["dump-log", *run.arguments]) == 0, run
        ours = capsysbinary.readouterr()
        assert (ours.out, ours.err) == (printed.out, printed.err), run
        if run.options == ("--print-data-log",):
            values = [b"payload: " + (value or b"") for _, value in runs[run].records]
            assert all(value in printed.out for value in values), run
