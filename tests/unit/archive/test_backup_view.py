"""A backup is read in place, as a store and by the commands, like what a restore would make of it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.archive.manifest import manifest_name
from kstore.archive.view import shown_backup
from kstore.cli.main import main
from kstore.errors import (
    ConfigError,
    CorruptBatchError,
    CorruptFileError,
    FileMissingError,
    LogNotFoundError,
    NotALogError,
    ReadOnlyError,
)
from kstore.files.remote import open_remote
from kstore.store import Store
from tests.support.lives.dump_helpers import Dump

SETTINGS: dict[str, Any] = {"background": False, "segment_bytes": 2048}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Two logs with several segments each, all with transactions, even the active ones; committed offsets."""
    store = Store(tmp_path / "store", durability="os", **SETTINGS)
    store.create_topic("orders", 2)
    with store.producer(transactional_id="t") as producer:
        producer.init_transactions()
        for number in range(30):
            producer.begin_transaction()
            for at in range(4):
                producer.send("orders", b"%d-%d" % (number, at) * 10, key=b"k", partition=number % 2)
            producer.flush()  # or an aborted transaction would write nothing
            producer.commit_transaction() if number % 3 else producer.abort_transaction()
    with store.consumer("orders", group="g", isolation_level="read_committed") as consumer:
        consumer.poll(timeout=1)
        consumer.commit()
    yield store
    store.close()


def contents(store: Store) -> dict[str, Any]:
    found: dict[str, Any] = {"groups": store.consumer_offsets.committed("g")}
    for partition in store.partitions("orders"):
        log = store.log("orders", partition)
        found[f"all {partition}"] = list(log.read())
        found[f"committed {partition}"] = list(log.read(isolation_level="read_committed"))
        time_ms = found[f"all {partition}"][9].timestamp
        found[f"looked up {partition}"] = log.get(log.end_offset - 2), log.offset_for_time(time_ms)
    return found


def test_a_backup_is_opened_as_the_store_that_it_has(store: Store, tmp_path: Path, memory: str) -> None:
    expected = contents(store)
    for target in (str(tmp_path / "backups"), memory):
        store.backup(target)
        with kstore.open(target, read_only=True) as shown:
            assert shown.topics() == ["orders"]
            assert contents(shown) == expected
    assert len(list((tmp_path / "backups" / "orders-0").glob("*.log"))) > 1


def test_a_store_at_a_url_is_opened_for_reading(store: Store, tmp_path: Path, memory: str) -> None:
    expected = contents(store)
    store.close()
    at = open_remote(memory)
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file():
            at.fs.put(at.path / path.relative_to(tmp_path / "store"), [path.read_bytes()])
    with kstore.open(memory, read_only=True) as shown:
        assert contents(shown) == expected
    with pytest.raises(LogNotFoundError):
        kstore.open(f"{memory}/missing", read_only=True)
    with pytest.raises(ConfigError, match="read_only"):
        kstore.open(memory)
    with pytest.raises(ConfigError, match="a log is on this machine's disks"):
        kstore.Log(memory)
    with kstore.open((tmp_path / "store").as_uri(), durability="os", **SETTINGS) as opened:
        assert contents(opened) == expected


def test_a_log_of_a_backup_is_opened_by_itself(store: Store, tmp_path: Path, memory: str) -> None:
    log = store.log("orders", 1)
    expected = list(log.read()), list(log.read(isolation_level="read_committed")), log.end_offset
    for target in (str(tmp_path / "backups"), (tmp_path / "backups").as_uri(), memory):
        store.backup(target)
        manifest = max((tmp_path / "backups").glob("*.manifest")).name
        for place in (target, f"{target}/{manifest}") if target != memory else (target,):
            with kstore.Log(f"{place}/orders-1", read_only=True) as shown:
                found = list(shown.read()), list(shown.read(isolation_level="read_committed")), shown.end_offset
                assert found == expected
                with pytest.raises(ReadOnlyError):
                    shown.append(b"x")
        with pytest.raises(NotALogError):
            kstore.Log(target, read_only=True)
        with pytest.raises(LogNotFoundError):
            kstore.Log(f"{target}/orders-7", read_only=True)
    with pytest.raises(NotALogError):
        kstore.Log(tmp_path / "backups" / "orders-1")  # for writing


def test_a_log_of_a_backup_is_found_below_the_home_directory(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.backup(tmp_path / "backups")
    monkeypatch.setenv("HOME", str(tmp_path))
    with kstore.Log("~/backups/orders-0", read_only=True) as shown:
        assert list(shown.read()) == list(store.log("orders", 0).read())


def test_a_log_at_a_url_is_opened_for_reading(store: Store, tmp_path: Path, memory: str) -> None:
    store.close()
    at = open_remote(memory)
    for path in (tmp_path / "store" / "orders-0").iterdir():
        at.fs.put(at.path / path.name, [path.read_bytes()])
    with kstore.Log(memory, read_only=True) as shown, kstore.Log(tmp_path / "store" / "orders-0") as log:
        assert list(shown.read()) == list(log.read())


def records_in(dumped: tuple[int, str, str]) -> list[str]:
    status, out, _ = dumped
    assert status == 0
    return [line for line in out.splitlines() if line.startswith("| offset")]


@pytest.mark.long
def test_dump_log_shows_the_files_of_a_backup_as_those_of_the_store(
    store: Store, tmp_path: Path, memory: str, dump: Dump
) -> None:
    store.close()
    with kstore.open(tmp_path / "store", durability="os", **SETTINGS) as opened:
        opened.backup(tmp_path / "backups")
        opened.backup(memory)
    manifest = max((tmp_path / "backups").glob("*.manifest"))
    log = min((tmp_path / "store" / "orders-0").glob("*.log")).name
    whole = dump("--print-data-log", "store/orders-0")
    stores = (tmp_path / "store").as_uri()
    for place in (str(tmp_path / "backups"), str(manifest), memory, (tmp_path / "backups").as_uri(), stores):
        for name in (log, f"{log[:20]}.index", f"{log[:20]}.timeindex"):
            for option in ("--print-data-log", "--format=json", "--verify-index-only"):
                status, out, errors = dump(option, f"store/orders-0/{name}")
                expected = status, out.replace("store/", f"{place}/"), errors
                assert dump(option, f"{place}/orders-0/{name}") == expected
        for path in (f"{place}/orders-0", f"{place}/orders-0/"):
            assert records_in(dump("--print-data-log", path)) == records_in(whole)
        assert dump(f"{place}/orders-0/{5:020d}.log")[0] == 1
        assert dump(f"{place}/orders-7")[0] == 1


def test_dump_log_reports_a_damaged_manifest(store: Store, tmp_path: Path, dump: Dump) -> None:
    store.backup(tmp_path / "backups")
    manifest = max((tmp_path / "backups").glob("*.manifest"))
    stored = min((tmp_path / "backups" / "orders-0").glob("*.log"))
    manifest.write_bytes(manifest.read_bytes()[:-5])
    status, _, errors = dump("backups")
    assert status == 1
    assert "backups" in errors
    # What is there is dumped by its own name, whatever the manifest says.
    status, out, _ = dump(f"backups/orders-0/{stored.name}")
    assert "baseOffset: 0" in out


@pytest.mark.long
def test_a_log_in_pieces_is_one_file(store: Store, tmp_path: Path) -> None:
    store.create_topic("pieces", segment_bytes=1 << 20)
    for number in range(5):
        store.log("pieces").append_many([b"%d" % number * 30] * 20)
        store.backup(tmp_path / "backups")
    assert len(list((tmp_path / "backups" / "pieces-0").iterdir())) == 5
    with kstore.open(tmp_path / "backups", read_only=True) as shown:
        assert list(shown.log("pieces").read()) == list(store.log("pieces").read())
        assert shown.log("pieces").get(99) == store.log("pieces").get(99)


def test_a_transaction_that_is_open_at_the_moment_stays_open(store: Store, tmp_path: Path) -> None:
    with store.producer(transactional_id="open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"open", partition=0).result(60)
        producer.flush()
        expected = contents(store)
        store.backup(tmp_path / "backups")
        producer.abort_transaction()
    with kstore.open(tmp_path / "backups", read_only=True) as shown:
        assert contents(shown) == expected
        assert shown.log("orders").last_stable_offset < shown.log("orders").end_offset


def test_the_manifest_of_an_earlier_backup_opens_that_one(store: Store, tmp_path: Path) -> None:
    expected, result = contents(store), store.backup(tmp_path / "backups")
    store.log("orders").append(b"later")
    store.backup(tmp_path / "backups")
    with kstore.open(tmp_path / "backups" / manifest_name(result.time_ms), read_only=True) as shown:
        assert contents(shown) == expected
    with kstore.open(tmp_path / "backups", read_only=True) as shown:
        assert contents(shown) != expected


def test_a_restore_of_a_backup_with_the_transaction_index_of_an_active_segment_is_the_store(
    store: Store, tmp_path: Path
) -> None:
    expected = contents(store)
    store.backup(tmp_path / "backups")
    kstore.restore(tmp_path / "backups", tmp_path / "new")
    with kstore.open(tmp_path / "new", **SETTINGS) as new:
        assert contents(new) == expected


def test_nothing_is_written_through_a_backup(store: Store, tmp_path: Path) -> None:
    store.backup(tmp_path / "backups")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "backups").rglob("*")}
    found = shown_backup(tmp_path / "backups")
    assert found is not None
    fs, root = found
    log = root / "orders-0"
    name = log / min(name for name in fs.list(log) if name.endswith(".log"))
    for write in (
        lambda: fs.open(name, write=True),
        lambda: fs.open(log / "new", create=True),
        lambda: fs.unlink(name),
        lambda: fs.rename(name, log / "new"),
        lambda: fs.mkdir(log / "new"),
        lambda: fs.open(name).write_all([b"x"], 0),
        lambda: fs.open(name).truncate(0),
        lambda: fs.open(name).map(10),
    ):
        with pytest.raises(ReadOnlyError, match="a backup is only read"):
            write()
    with kstore.open(tmp_path / "backups", read_only=True) as shown, pytest.raises(ReadOnlyError):
        shown.log("orders").append(b"x")
    with pytest.raises(NotALogError, match="backups, expected a directory of logs"):
        kstore.open(tmp_path / "backups", **SETTINGS)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "backups").rglob("*")} == before


def test_damage_of_a_backup_is_found_where_it_is_read(store: Store, tmp_path: Path) -> None:
    store.backup(tmp_path / "backups")
    directory = tmp_path / "backups" / "orders-0"
    path = min(directory.glob("*.log"))
    whole = path.read_bytes()
    with kstore.open(tmp_path / "backups", read_only=True) as shown:
        path.write_bytes(whole[:70] + bytes([whole[70] ^ 1]) + whole[71:])
        with pytest.raises(CorruptBatchError):
            list(shown.log("orders").read())
    for change in (lambda: path.write_bytes(whole[:-1]), path.unlink):
        change()
        with (
            kstore.open(tmp_path / "backups", read_only=True) as shown,
            pytest.raises(CorruptFileError, match=f"{path.name}: a file of the backup is damaged or missing"),
        ):
            list(shown.log("orders").read())
        assert main(["stats", str(tmp_path / "backups")]) == 1  # not fewer records
    manifest = max((tmp_path / "backups").glob("*.manifest"))
    manifest.write_bytes(manifest.read_bytes()[:-5])
    with pytest.raises(CorruptFileError):
        kstore.open(tmp_path / "backups", read_only=True)


@pytest.mark.long
def test_the_commands_read_a_backup_as_they_read_the_store(
    store: Store, tmp_path: Path, memory: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    monkeypatch.chdir(tmp_path)
    with kstore.open("store", durability="os", **SETTINGS) as opened:
        opened.backup("backups")
        opened.backup(memory)
    manifest = max(Path("backups").glob("*.manifest")).name

    def said(*arguments: str) -> str:
        assert main(list(arguments)) == 0, arguments
        return capsys.readouterr().out

    for arguments in (
        ("read", "{}/orders-0", "--isolation-level", "read_committed"),
        ("read", "{}/orders-1", "--format", "json"),
        ("explain", "{}/orders-0", "--offset", "20"),
        ("grep", "7-1", "{}/orders-1", "--count", "--format", "json"),
        ("verify", "{}", "--format", "json"),
        ("stats", "{}", "--deep", "--format", "json"),
    ):
        expected = said(*(each.format("store") for each in arguments))
        for place in ("backups", f"backups/{manifest}", memory):
            found = said(*(each.format(place) for each in arguments))
            if arguments[0] in {"read", "explain"}:
                assert found.count("\n") == expected.count("\n")
            if arguments[0] == "read":
                assert found == expected
            if arguments[0] == "verify":
                shown, stored = ([json.loads(line) for line in text.splitlines()] for text in (found, expected))
                assert [(log["records"], log["end"], log["damage"]) for log in shown] == [
                    (log["records"], log["end"], log["damage"]) for log in stored
                ]


def test_a_damaged_transaction_index_shows_no_aborted_record(store: Store, tmp_path: Path) -> None:
    store.backup(tmp_path / "backups")
    for path in (tmp_path / "backups" / "orders-0").glob("*.txnindex"):
        data = bytearray(path.read_bytes())
        data[16] ^= 1  # in the first offset of a transaction
        path.write_bytes(data)
    with kstore.open(tmp_path / "backups", read_only=True) as shown:
        with pytest.raises(CorruptFileError):
            list(shown.log("orders").read(isolation_level="read_committed"))
        assert list(shown.log("orders").read()) == list(store.log("orders").read())


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("missing", [False, True], ids=["damaged", "missing"])
def test_a_damaged_index_is_built_anew(suffix: str, missing: bool, store: Store, tmp_path: Path) -> None:
    expected = contents(store)
    store.backup(tmp_path / "backups")
    for path in (tmp_path / "backups" / "orders-0").glob(f"*{suffix}"):
        path.write_bytes(bytes(path.stat().st_size))
        if missing:
            path.unlink()
    with kstore.open(tmp_path / "backups", read_only=True) as shown:
        assert contents(shown) == expected


def test_an_index_that_was_repaired_is_copied_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.backup.take.SETTLED_NS", -(10**18))  # all times may be believed
    expected = contents(store)
    store.close()
    path = min((tmp_path / "store" / "orders-0").glob("*.txnindex"))
    whole = path.read_bytes()
    path.write_bytes(whole[:17] + bytes([whole[17] ^ 1]) + whole[18:])
    with kstore.open(tmp_path / "store", durability="os", **SETTINGS) as opened:
        opened.backup(tmp_path / "backups")
    path.write_bytes(whole)
    with kstore.open(tmp_path / "store", durability="os", **SETTINGS) as opened:
        assert opened.backup(tmp_path / "backups").copied_count
    with kstore.open(tmp_path / "backups", read_only=True) as shown:
        assert contents(shown) == expected


def test_what_is_at_a_path_comes_before_a_backup_beside_it(store: Store, tmp_path: Path) -> None:
    expected = contents(store)
    backups = tmp_path / "backups"
    store.backup(backups)
    store.close()
    for name in ("kafka-1", "orders-7"):
        shutil.copytree(tmp_path / "store", backups / name)
        with kstore.open(backups / name, read_only=True) as opened:
            assert contents(opened) == expected
    shutil.copytree(tmp_path / "store" / "orders-0", backups / "lone-0")
    assert shown_backup(backups / "lone-0") is None
    # A stray manifest in a directory of logs.
    shutil.copy(max(backups.glob("*.manifest")), tmp_path / "store" / "backup-000000000000001.manifest")
    assert shown_backup(tmp_path / "store" / "orders-0") is None
    assert main(["verify", str(tmp_path / "store" / "orders-0")]) == 0


def test_the_root_of_the_file_system_is_not_the_current_directory(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.backup(tmp_path / "backups")
    monkeypatch.chdir(tmp_path / "backups")
    assert shown_backup("orders-0") is not None
    assert shown_backup(".") is not None
    for path in ("/", "/orders-0", "memory:///", "memory:///orders-0"):
        assert shown_backup(path) is None


def test_a_backup_is_not_followed(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.backup(tmp_path / "backups")
    assert main(["read", "--follow", str(tmp_path / "backups" / "orders-0")]) == 2
    assert "a log that may grow" in capsys.readouterr().err.replace("one log that", "a log that")


async def opened_by_a_task(target: Path) -> list[str]:
    async with kstore.aio.open(target, read_only=True) as shown:
        return await shown.topics()


def test_a_task_opens_a_backup(store: Store, tmp_path: Path) -> None:
    store.backup(tmp_path / "backups")
    assert asyncio.run(opened_by_a_task(tmp_path / "backups")) == ["orders"]


def test_paths_are_taken_as_they_are_written(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.backup(tmp_path / "~nobody-has-this-name")
    monkeypatch.chdir(tmp_path)
    manifest = max((tmp_path / "~nobody-has-this-name").glob("*.manifest")).name
    for path in (
        "~nobody-has-this-name",
        f"~nobody-has-this-name/{manifest}/",
        f"~nobody-has-this-name/{manifest}/orders-0",
    ):
        assert main(["verify", path]) == 0
    store.close()
    with kstore.open((tmp_path / "store").as_uri(), read_only=True) as opened:
        assert opened.topics() == ["orders"]
    assert main(["stats", (tmp_path / "store" / "orders-0").as_uri()]) == 0


@pytest.mark.long
def test_places_of_one_name_in_two_stores_are_both_searched(
    store: Store, memory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [f"memory://{host}/same" for host in ("one", "two")]
    for place in places:
        store.backup(place)
    assert main(["grep", "7-1", *places, "--count"]) == 0
    logs = [line.rpartition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert {f"{place}/orders-{number}" for place in places for number in range(2)} <= set(logs)
    assert len(logs) == len(set(logs))


def test_a_path_to_no_backup_is_none(store: Store, tmp_path: Path) -> None:
    store.backup(tmp_path / "backups")
    for path in ("store", "store/orders-0", "missing", "missing/orders-0"):
        assert shown_backup(tmp_path / path) is None
    for missing in ("backups/orders-7", "backups/backup-000000000000001.manifest"):
        with pytest.raises((LogNotFoundError, FileMissingError)):
            kstore.open(tmp_path / missing, read_only=True)
    shutil.rmtree(tmp_path / "backups" / "orders-0")
    with pytest.raises(CorruptFileError), kstore.open(tmp_path / "backups", read_only=True) as shown:
        list(shown.log("orders").read())
