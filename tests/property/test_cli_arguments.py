"""Every command, with options and places drawn at random: it does its work or says in words why not."""

from __future__ import annotations

import io
import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import kstore
from kstore.cli.main import cli, main
from tests.support.harness.selection import tries

# These run until they are stopped, or start a Spark.
ENDLESS = ("ui", "replicate", "spark")
# None leads out of the test's directory: a store made in / would hold every backup of the machine.
TEXTS = ["", "orders", "jobs", "g", "a/b", "é", "a b", "x" * 300, "1h", "2026-01-31", "s@5", "{}", "%s%q", "TRUE"]
NUMBERS = ["0", "1", "-1", "3", "4294967296", "9223372036854775807", "9223372036854775808", "nan", "inf", "1e-300"]
INPUT = b'k:v\n{"value": 1}\n\xff\n'
RUNS = tries(1500, quick=40)


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name in command.list_commands(click.Context(command)):
        found = command.get_command(click.Context(command), name)
        if found is not None and name not in ENDLESS:
            yield from commands(found, (*path, name))


def make_places(generator: random.Random) -> list[str]:
    """A store, copies of it with damage of three kinds, and what is no store at all."""
    with kstore.open("store", durability="os") as store:
        store.create_topic("orders", 2)
        with store.producer() as producer:
            for number in range(60):
                producer.send("orders", b"%d" % number, key=b"k%d" % (number % 7))
        queue = store.queue("jobs")
        queue.put_many([b"a", b"b"])
        queue.get().ack()
        with store.consumer("orders", group="g") as consumer:
            consumer.poll(1)
            consumer.commit()
    for name in ("damaged", "junk", "cut"):
        shutil.copytree("store", name)
        for file in Path(name).rglob("*"):
            if file.is_file() and (data := bytearray(file.read_bytes())):
                data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
                spoiled: dict[str, bytes | bytearray] = {
                    "damaged": data,
                    "junk": generator.randbytes(200),
                    "cut": data[: len(data) // 2],
                }
                file.write_bytes(spoiled[name])
    Path("empty").mkdir()
    Path("a-file").write_bytes(INPUT)
    Path("dangling").symlink_to("nowhere")
    log = f"{0:020d}"
    Path("odd-0", f"{log}.log").mkdir(parents=True)
    inside = [f"{store}/orders-0" for store in ("store", "damaged", "junk", "cut")]
    files = [f"damaged/orders-0/{log}{suffix}" for suffix in (".log", ".index", ".timeindex")]
    return [
        *("store", "damaged", "junk", "cut", "empty", "a-file", "dangling", "odd-0", "missing"),
        *(*inside, *files, "store/kstore.topics"),
    ]  # fmt: skip


def share(option: click.Option) -> float:
    """How often it is given."""
    if option.name == "exits":
        return 1.0  # without it, the command waits for more records
    return 0.9 if option.required else 0.15


def drawn(generator: random.Random, path: tuple[str, ...], command: click.Command, places: list[str]) -> list[str]:
    arguments = [*path]
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            names = places if generator.random() < 0.8 else TEXTS
            arguments += generator.choices(names, k=1 if parameter.nargs == 1 else generator.randrange(3))
        elif (
            isinstance(parameter, click.Option) and parameter.name != "follow" and generator.random() < share(parameter)
        ):
            arguments.append(generator.choice(parameter.opts))
            if not parameter.is_flag and not parameter.count:
                choices = list(map(str, getattr(parameter.type, "choices", ())))
                arguments.append(generator.choice(choices or generator.choice((NUMBERS, TEXTS, places))))
    return arguments


@pytest.mark.filterwarnings("ignore")  # of what a command that failed has left open
def test_no_command_ends_in_a_traceback(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    generator = random.Random(seed)
    places = make_places(generator)
    known = list(commands(cli))
    statuses = set()
    for _ in range(RUNS):
        arguments = drawn(generator, *generator.choice(known), places)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(INPUT)))
        try:
            status = main(arguments)
        except BaseException as error:
            raise AssertionError(f"kstore {arguments}") from error
        assert status in (0, 1, 2), arguments
        assert "Traceback" not in capfd.readouterr().err, arguments
        statuses.add(status)
        os.chdir(tmp_path)
    assert statuses == {0, 1, 2}
