"""What is loaded, and when: a program loads only the parts of kstore that it uses."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

import kstore
from kstore.cli.main import COMMANDS

# Each takes longer to load than a log should, and no log needs it.
HEAVY = {"asyncio", "ssl", "ctypes", "email", "argparse", "click", "rich", "pyarrow", "fsspec", "pyspark", "numpy"}
# Parts that a lone log does not need.
OTHER_PARTS = {
    "aio",
    "cli",
    "compaction",
    "consumer",
    "logs",
    "producer",
    "queue",
    "shared",
    "spark",
    "store",
    "upkeep",
}

WRITE = """
with kstore.Log({path!r}) as log:
    log.append_many([b"a", b"b"], keys=[b"k", None])
    log.append(b"c")
"""
READ = """
with kstore.Log({path!r}, read_only=True) as log:
    assert [record.value for record in log.read()] == [b"a", b"b", b"c"]
    assert log.offset_for_time("latest") == 3
with kstore.Log({path!r}) as log:
    assert log.end_offset == 3
"""
STORE = """
with kstore.open({path!r}) as store:
    store.create_topic("t")
    with store.producer() as producer:
        producer.send("t", b"a").result()
    with store.consumer("t", group="g") as consumer:
        assert consumer.poll(timeout=60)
        consumer.commit()
    queue = store.queue("q")
    queue.put(b"a")
    queue.get().ack()
"""


def loaded_by(program: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after ``program``."""
    source = f"import sys\nbefore = set(sys.modules)\n{program}\nprint(*set(sys.modules) - before)"
    return set(
        subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True).stdout.split()
    )


def heavy(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules} & HEAVY


def parts(modules: set[str]) -> set[str]:
    return {name.split(".")[1] for name in modules if name.startswith("kstore.")} & OTHER_PARTS


def test_importing_kstore_loads_no_engine() -> None:
    modules = loaded_by("import kstore")
    assert {name for name in modules if name.startswith("kstore.")} <= {
        "kstore.compiled",
        "kstore.errors",
        "kstore.record",
        "kstore.record._codec",
        "kstore.record.crc",
        "kstore.types",
    }
    assert not heavy(modules)


def test_public_modules_need_no_import_of_their_own() -> None:
    loaded_by(
        "import kstore\n"
        + "\n".join(f"assert kstore.{name}.__name__ == 'kstore.{name}'" for name in sorted(kstore.MODULES))
    )


def test_a_log_loads_only_what_it_needs() -> None:
    modules = loaded_by("import kstore\nassert kstore.Log")
    assert "kstore.log" in modules
    assert not heavy(modules)
    assert not parts(modules)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the boot's id comes through ctypes")
def test_a_log_that_is_written_and_read_loads_nothing_heavy(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    written = loaded_by("import kstore\n" + WRITE.format(path=path))
    assert heavy(written) <= {"ctypes"}  # for ``fallocate``, which Python does not have
    read = loaded_by("import kstore\n" + READ.format(path=path))
    assert not heavy(read)
    assert not parts(written | read)


def test_a_store_with_a_producer_a_consumer_and_a_queue_loads_no_event_loop(tmp_path: Path) -> None:
    modules = loaded_by("import kstore\n" + STORE.format(path=str(tmp_path)))
    assert not {"asyncio", "ssl", "click", "pyarrow"} & modules
    assert not {"aio", "cli", "spark"} & parts(modules)


def test_the_list_of_commands_loads_no_command() -> None:
    modules = loaded_by("import sys\nfrom kstore.cli.main import main\nassert main(['--help']) == 0")
    assert not modules & {module for module, _ in COMMANDS.values()}
    assert not {"asyncio", "ssl", "rich", "pyarrow", "kstore.store"} & modules


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_short_help_of_each(name: str) -> None:
    module, summary = COMMANDS[name]
    command = import_module(module).command
    assert isinstance(command, click.Command)
    assert command.short_help == summary


# --- the public names ------------------------------------------------------------------------------------------------


def test_every_public_name_is_there_and_listed() -> None:
    assert {name for name in kstore.__all__ if getattr(kstore, name, None) is None} == set()
    assert set(kstore.__all__) <= set(dir(kstore))
    assert "aio" in dir(kstore)


def test_a_star_import_takes_every_public_name() -> None:
    names: dict[str, object] = {}
    exec("from kstore import *", names)
    assert set(kstore.__all__) <= names.keys()
    assert names["Store"] is kstore.Store


def test_type_checkers_see_the_names_that_are_loaded_later() -> None:
    tree = ast.parse(Path(kstore.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom) and node.module != "kstore"]
    assert {alias.name: node.module for node in imports for alias in node.names} == kstore.LAZY


def test_a_name_that_is_loaded_later_is_looked_up_once() -> None:
    program = "import kstore\nfirst = kstore.Store\nassert vars(kstore)['Store'] is first is kstore.Store"
    assert "kstore.store" in loaded_by(program)


@pytest.mark.long
def test_asyncio_comes_with_kstore_aio() -> None:
    assert "asyncio" in loaded_by("import kstore\nassert kstore.aio.open")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'kstore' has no attribute 'Topic'"):
        kstore.Topic  # type: ignore[attr-defined]  # noqa: B018


def test_an_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(kstore.ConfigError("no such setting")))
    assert type(error) is kstore.ConfigError
    assert str(error) == "no such setting"


def test_the_checksum_is_the_packages_own() -> None:
    program = """
        from kstore.record.crc import crc32c as ours
        assert "crc32c._cli" not in sys.modules
        import crc32c
        assert ours(b"123456789") == crc32c.crc32c(b"123456789") == 0xE3069283
        assert ours(b"6789", ours(b"12345")) == 0xE3069283
    """
    assert "kstore.record.crc" in loaded_by("\n".join(line.strip() for line in program.splitlines()))
