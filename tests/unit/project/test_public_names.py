"""An editor lists for an open log, store, producer, consumer and queue exactly what the documents describe.

A new name belongs here. Functions such as ``kstore.log.writer_of`` give the parts that only kstore's own layers use.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

import kstore
import kstore.aio
import kstore.log
import kstore.store
from kstore.rules.deprecated import Deprecated
from tools.docs_site import DOORS

# Names that many have.
COMMON = {"close", "closed", "metrics"}
FACES = {
    "Log": COMMON
    | {"abort_transaction", "accept_loss", "append", "append_arrow", "append_batches", "append_many", "apply_retention"}
    | {"check", "compact", "delete_records", "end_offset", "end_transaction", "fetch", "flush", "get", "high_watermark"}
    | {"last_stable_offset", "offset_for_time", "path", "producers", "read", "read_only", "read_values", "recovery"}
    | {"refresh", "roll", "start_offset", "tail", "to_arrow", "to_arrow_batches", "to_pandas", "to_polars"}
    | {"transactions", "truncate_to", "verify"},
    "Store": COMMON
    | {"add_partitions", "alter_topic", "apply_retention", "backup", "checkpoint", "config", "consumer"}
    | {"consumer_offsets", "create_topic", "delete_topic", "describe_topic", "disk_usage", "group_members", "ignored"}
    | {
        "door_metrics",
        "live_consumers",
        "live_producers",
        "log",
        "log_metrics",
        "notes",
        "own_metrics",
        "partitions",
        "path",
    }
    | {
        "producer",
        "queue",
        "read_only",
        "recovery",
        "replicator",
        "run_due_tasks",
        "run_task",
        "status",
        "summary",
        "to_arrow",
        "topic",
    }
    | {"topics"},
    "Producer": COMMON
    | {"abort_transaction", "begin_transaction", "client_id", "commit_transaction", "config", "flush"}
    | {"init_transactions", "partitions_for", "send", "send_arrow", "send_many", "send_offsets", "store_path"}
    | {"topic_metrics", "transaction", "undelivered"},
    "Consumer": COMMON
    | {"assign", "assignment", "beginning_offsets", "client_id", "commit", "committed", "config", "current"}
    | {"end_offsets", "group", "group_metadata", "lag", "offsets_for_times", "partition_metrics", "partitions_for"}
    | {"pause", "paused", "poll", "position", "positions", "resume", "seek", "seek_to_beginning", "seek_to_committed"}
    | {"seek_to_end", "seek_to_time", "skip_damage", "store_path", "subscribe", "subscription", "to_arrow"}
    | {"unsubscribe", "values", "wakeup"},
    "Queue": {"close", "closed"}
    | {"accept_loss", "ack", "ack_many", "check", "config", "dead_letters", "empty", "extend", "fail", "full", "get"}
    | {"get_many", "get_nowait", "join", "leased", "maxsize", "nack", "name", "peek", "put", "put_many", "put_nowait"}
    | {"qsize", "retry_dead", "stats", "task_done"},
}


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    path = tmp_path_factory.mktemp("public")
    with kstore.open(path / "data", durability="os", background=False) as store:
        store.create_topic("t")
        with store.producer() as producer, store.consumer("t") as consumer:
            found = (store.log("t"), store, producer, consumer, store.queue("jobs"))
            yield {type(thing).__name__: thing for thing in found}


@pytest.mark.parametrize("name", FACES)
def test_an_editor_lists_what_users_call(things: dict[str, object], name: str) -> None:
    deprecated = {one for one, found in vars(type(things[name])).items() if isinstance(found, Deprecated)}
    assert {one for one in dir(things[name]) if not one.startswith("_")} - deprecated == FACES[name]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("Log", "truncate_fully_and_start_at"), ("Log", "expire_producers"), ("Store", "coordinator")],
)
def test_a_name_that_only_kstore_uses_works_with_a_warning(things: dict[str, object], kind: str, name: str) -> None:
    with pytest.warns(
        DeprecationWarning, match=f"{kind}.{name} will be removed in the next minor release: (use|a store)"
    ) as caught:
        assert getattr(things[kind], name)
    assert caught[0].filename == __file__


# --- signatures -------------------------------------------------------------------------------------------------------


def signatures() -> Iterator[tuple[str, inspect.Signature]]:
    """Those of the public functions and of the classes, as help() and editors show them."""
    for module in sorted(MODULES):
        found = import_module(module)
        for name in getattr(found, "__all__", ()):
            if callable(value := getattr(found, name)):
                with contextlib.suppress(ValueError):  # a compiled class has none
                    yield f"{module}.{name}", inspect.signature(value)


@pytest.mark.parametrize("opens", [kstore.Log, kstore.Store, kstore.open, kstore.aio.open])
def test_what_opens_shows_its_users_nothing_that_only_stores_and_tests_pass(opens: Callable[..., object]) -> None:
    assert not inspect.signature(opens).parameters.keys() & {"fs", "clock"}


def test_no_signature_shows_an_address_or_a_private_name() -> None:
    shown = dict(signatures())
    assert len(shown) > 60
    private = {name for name, found in shown.items() if any(one.startswith("_") for one in found.parameters)}
    assert private == set()
    assert {name for name, found in shown.items() if re.search(r"\bat 0x", str(found))} == set()


# --- what the guides use ----------------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[3]
# Their functions are named like their modules, so no package can export them.
FUNCTIONS = re.compile(r"kstore\.spark\.(pack|jobs\.\w+)")
MODULES = {"kstore", "kstore.log", "kstore.store", "kstore.segment", "kstore.index", *DOORS.values()}


def programs() -> Iterator[tuple[str, str]]:
    """The Python of every guide and example, by its file."""
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))):
        for block in re.findall(r"^```python\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            yield path.name, block
    for path in sorted(ROOT.glob("examples/*.py")):
        yield path.name, path.read_text(encoding="utf-8")


def used_names(program: str) -> Iterator[tuple[str, str]]:
    """What a program imports from kstore's modules or names as ``kstore.…``: the module, and the name in it."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "kstore":
            for alias in node.names:
                is_module = f"{node.module}.{alias.name}" in MODULES
                yield (f"{node.module}.{alias.name}", "") if is_module else (node.module, alias.name)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "kstore")
        elif isinstance(node, ast.Attribute):
            module = ast.unparse(node.value)
            if module in MODULES and f"{module}.{node.attr}" not in MODULES:
                yield module, node.attr


def test_guides_and_examples_use_public_names_only() -> None:
    count, private = 0, []
    for name, program in programs():
        for module, attribute in used_names(program):
            count += 1
            if module not in MODULES and not FUNCTIONS.fullmatch(module):
                private.append((name, module))
            elif attribute and attribute not in getattr(import_module(module), "__all__", [attribute]):
                private.append((name, f"{module}.{attribute}"))
    assert private == []
    assert count > 60


def test_the_page_on_stability_names_the_public_modules() -> None:
    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
    assert {module for module in MODULES if f"`{module}`" in page or f"`{module}.__all__`" in page} == MODULES


def test_the_names_of_the_first_doors_are_in_kstore() -> None:
    assert {*kstore.log.__all__, *kstore.store.__all__} <= set(kstore.__all__)


def test_every_public_name_is_what_it_says() -> None:
    for name in kstore.__all__:
        assert getattr(kstore, name) is not None, name


# --- what editors know of them ----------------------------------------------------------------------------------------

# The folders of the public classes and their attributes' classes.
FOLDERS = ("aio", "consumer", "engine", "indexes", "logs", "producer", "queue", "segments", "transactions")


def untyped_attributes(path: Path) -> Iterator[str]:
    """Public attributes whose type ``__init__`` does not make evident, so that type checkers guess it."""
    for kind in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(kind, ast.ClassDef) or kind.name.startswith("_"):
            continue
        made = [one for one in kind.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        nodes = [node for function in made for node in ast.walk(function)]
        typed = {ast.unparse(node.target) for node in nodes if isinstance(node, ast.AnnAssign)}
        for node in nodes:
            if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant | ast.Name):
                names = {ast.unparse(target) for target in node.targets if isinstance(target, ast.Attribute)}
                public = {name for name in names - typed if re.fullmatch(r"self\.[a-z]\w*", name)}
                yield from (f"{path.relative_to(ROOT)}: {kind.name}: {name}" for name in sorted(public))


def test_public_attributes_have_types() -> None:
    paths = [ROOT / "kstore" / name for name in ("log.py", "segment.py", "store.py", "index.py")]
    paths += [path for folder in FOLDERS for path in sorted((ROOT / "kstore" / folder).rglob("*.py"))]
    assert [one for path in paths for one in untyped_attributes(path)] == []
