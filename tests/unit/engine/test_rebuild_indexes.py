"""``kstore recover --rebuild-indexes``, and the commands that ``kstore verify`` names."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from kstore.cli.main import main
from kstore.log import Log
from kstore.store import Store
from kstore.upkeep.recover import Rebuild, recover_log
from kstore.upkeep.verify import verify_log
from tests.support.lives.log_cases import edit, files, marker, segment_bases, transaction

INDEXES = (".index", ".timeindex")


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    path = tmp_path / "a log"
    with Log(path, durability="os", segment_bytes=32 << 10) as log:
        while len(segment_bases(path)) < 4:
            log.append_many([b"x" * 90] * 5)
    return path


def repairs(path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The commands that a verification names."""
    main(["verify", "--format", "json", str(path)])
    found = map(json.loads, capsys.readouterr().out.splitlines())
    return sorted({one["repair"] for one in found if "repair" in one})


@pytest.mark.promise("rebuilt")
@pytest.mark.parametrize("what", ["lost", "zeros", "junk", "half", "a byte more"])
def test_every_index_of_a_closed_log_is_rebuilt_to_its_bytes(
    what: str, closed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = files(closed, *INDEXES)
    for name, data in good.items():
        if what == "lost":
            (closed / name).unlink()
        else:
            spoiled = {"zeros": bytes(len(data)), "junk": b"\x55" * len(data), "half": data[: len(data) // 2]}
            (closed / name).write_bytes(spoiled.get(what, data + b" "))
    spoiled_files = files(closed, *INDEXES)
    if what not in ("half", "zeros"):
        # verify compares each entry with the batches: it notices a shortened index only by a ragged end, and zeros are
        # space for entries, of which it only takes a note.
        assert repairs(closed, capsys) == [f"kstore recover --rebuild-indexes {shlex.quote(str(closed))}"]
    assert main(["recover", "--rebuild-indexes", "--dry-run", str(closed)]) == 0
    assert files(closed, *INDEXES) == spoiled_files
    assert "would be rebuilt: " in capsys.readouterr().out
    assert main(["recover", "--rebuild-indexes", str(closed)]) == 0
    out = capsys.readouterr().out
    assert out.count("  rebuilt: ") == sum(good[name] != spoiled_files.get(name) for name in good)
    assert files(closed, *INDEXES) == good
    assert verify_log(closed).is_sound
    assert main(["recover", "--rebuild-indexes", str(closed)]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_recover_tells_of_missing_indexes(closed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (closed / f"{0:020d}.index").unlink()
    assert main(["recover", str(closed)]) == 0
    assert "1 segments lack an index" in capsys.readouterr().out


def test_the_interval_of_the_topic_counts(tmp_path: Path) -> None:
    with Store(tmp_path / "store", durability="os") as store:
        store.create_topic("t", partitions=1, index_interval_bytes=1 << 16, segment_bytes=1 << 20)
        log = store.log("t", 0)
        for _ in range(300):
            log.append_many([b"x" * 900] * 5)
    path = tmp_path / "store" / "t-0"
    before = files(path, *INDEXES)
    assert recover_log(path, rebuild=Rebuild()).rebuilt == []
    name = next(iter(before))
    (path / name).unlink()
    assert recover_log(path, rebuild=Rebuild()).rebuilt == [str(path / name)]
    assert files(path, *INDEXES) == before


def test_a_wrong_transaction_index_and_a_wrong_snapshot_are_repaired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    with Log(path) as log:
        log.append_batches(transaction(7, 0, 1), assign_offsets=False)
        log.append_batches(marker(7, 2, commit=False), assign_offsets=False)
        log.roll()
        log.append(b"x")
    good = files(path, ".txnindex")
    edit(path / next(iter(good)), lambda data: data.__setitem__(9, data[9] ^ 1))
    snapshot = sorted(path.glob("*.snapshot"))[0]
    edit(snapshot, lambda data: data.__setitem__(20, data[20] ^ 1))
    assert repairs(path, capsys) == [f"kstore recover --rebuild-indexes {path}"]
    assert main(["recover", "--rebuild-indexes", str(path)]) == 0
    assert files(path, ".txnindex") == good
    assert not snapshot.exists()
    assert verify_log(path).is_sound
    with Log(path) as log:
        assert [record.offset for record in log.read(isolation_level="read_committed")] == [3]


@pytest.mark.parametrize("option", [["--dry-run"], []], ids=["dry run", "done"])
def test_a_wrong_snapshot_of_what_recovery_cuts_is_no_error(option: list[str], tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Log(path, durability="os") as log:
        log.append_batches(transaction(7, 0, 2), assign_offsets=False)
    (path / "kstore.state").unlink()
    edit(path / f"{0:020d}.log", lambda data: data.__delitem__(slice(-10, None)))
    (snapshot,) = path.glob("*.snapshot")
    edit(snapshot, lambda data: data.__setitem__(20, data[20] ^ 1))
    assert main(["recover", "--rebuild-indexes", *option, str(path)]) == 0
    assert snapshot.exists() == bool(option)


def test_damaged_records_name_the_way_on(closed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(closed / f"{0:020d}.log", lambda data: data.__setitem__(100, data[100] ^ 1))
    assert repairs(closed, capsys) == [f"kstore recover --accept-loss 0-4 {shlex.quote(str(closed))}"]
    assert main(["recover", *shlex.split(repairs(closed, capsys)[0])[2:]]) == 0
    capsys.readouterr()
    assert main(["verify", str(closed)]) == 0


def test_an_impossible_index_interval_is_bad_usage(closed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recover", "--rebuild-indexes", "--index-interval-bytes", "-1", str(closed)]) == 2
    assert "-1 is not in the range" in capsys.readouterr().err
