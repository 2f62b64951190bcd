"""Programs with each client at a door: of Python, C, JavaScript, Go and Java, Java's command-line tools, and Spark.

Each runs at a real broker too, and must print the same. All but Spark have a group of one member and then of two.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

import kstore
from tests.interop.conftest import Kafka
from tools.interop import java
from tools.interop.java import CACHE

# A broker, and what a registry sends, for each: `make interop` runs them, CI does not.
pytestmark = [pytest.mark.interop, pytest.mark.long]

ROOT = Path(__file__).parents[2]
CLIENTS = Path(__file__).with_name("clients")
KAFKAJS, FRANZ = "2.2.4", CLIENTS / "franz"
# Old releases that programs still have, each in an environment of its own.
OLD_CONFLUENT, OLD_KAFKA_PYTHON = "confluent-kafka==2.3.0", "kafka-python==2.0.2"
# Spark takes two minutes on two processors that are busy otherwise.
SECONDS_MAX = 600
TOOLS = "org.apache.kafka.tools"
CONFIG_TOOL = "kafka.admin.ConfigCommand"
GROUP_TOOL = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
# What Java is asked, in this order: a name for the output, a tool and its arguments; or a command of Client.java, and
# its arguments before the path.
ASKED = (
    ("created", f"{TOOLS}.TopicCommand", "--create --topic orders --partitions 3"),
    ("topics", f"{TOOLS}.TopicCommand", "--list --exclude-internal"),
    ("described", f"{TOOLS}.TopicCommand", "--describe --topic orders"),
    ("produce", "orders\t30\tzstd\t0"),
    ("pair", "team\torders\t30"),
    ("ends", f"{TOOLS}.GetOffsetShell", "--topic orders"),
    ("starts", f"{TOOLS}.GetOffsetShell", "--topic orders --time earliest"),
    (
        "console",
        f"{TOOLS}.consumer.ConsoleConsumer",
        "--topic orders --group billing --from-beginning --max-messages 30 --formatter-property print.key=true "
        "--formatter-property print.headers=true --formatter-property print.offset=true",
    ),
    ("group", GROUP_TOOL, "--describe --group billing"),
    ("members", GROUP_TOOL, "--describe --group billing --members"),
    ("state", GROUP_TOOL, "--describe --group billing --state"),
    ("groups", GROUP_TOOL, "--list"),
    ("states", GROUP_TOOL, "--list --state"),
    ("reset", GROUP_TOOL, "--reset-offsets --group billing --topic orders:0 --to-offset 4 --execute"),
    ("reset by", GROUP_TOOL, "--reset-offsets --group billing --topic orders:0 --shift-by 3 --execute"),
    ("set", CONFIG_TOOL, "--alter --topic orders --add-config retention.ms=86400000"),
    ("config", CONFIG_TOOL, "--describe --topic orders"),
    ("unset", CONFIG_TOOL, "--alter --topic orders --delete-config retention.ms"),
    ("config again", CONFIG_TOOL, "--describe --topic orders"),
    ("more partitions", f"{TOOLS}.TopicCommand", "--alter --topic orders --partitions 4"),
    ("described again", f"{TOOLS}.TopicCommand", "--describe --topic orders"),
    ("deleted offsets", GROUP_TOOL, "--delete-offsets --group billing --topic orders:0"),
    ("deleted group", GROUP_TOOL, "--delete --group billing"),
    ("no groups", GROUP_TOOL, "--list"),
    ("deleted", f"{TOOLS}.TopicCommand", "--delete --topic orders"),
)
# What differs between any two brokers: ids, defaults, where the coordinator is. A door knows no eligible leaders.
OWN = (
    (re.compile(r"\s+(Elr|LastKnownElr|Configs):.*"), ""),
    (re.compile(r", (STATIC_BROKER|DEFAULT)_CONFIG:[^,}]*"), ""),
    (re.compile(r"TopicId: \S+"), "TopicId: ID"),
    (re.compile(r"127\.0\.0\.1:\d+|localhost:\d+"), "HOST"),
    (re.compile(r"\((\d+)\)"), "(NODE)"),
    (re.compile(r"(Leader|Replicas|Isr): \d+"), r"\1: NODE"),
    (re.compile(r"[ \t]+"), " "),
)


Client = Callable[[str, Path, Kafka], list[str]]


def answered(program: list[str], **environment: str) -> list[str]:
    done = subprocess.run(
        program,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout.splitlines()


def with_python(library: str, module: str, server: str) -> list[str]:
    """A library of this environment."""
    pytest.importorskip(module)
    return answered([sys.executable, "-m", "tests.interop.client_program", library, server])


def with_confluent_kafka(server: str, _: Path, __: Kafka) -> list[str]:
    return with_python("confluent-kafka", "confluent_kafka", server)


def with_kafka_python(server: str, _: Path, __: Kafka) -> list[str]:
    return with_python("kafka-python", "kafka", server)


def with_aiokafka(server: str, _: Path, __: Kafka) -> list[str]:
    return with_python("aiokafka", "aiokafka", server)


@cache
def environment_with(requirement: str, root: Path) -> str:
    """The Python of an environment below ``root`` that has ``requirement``. Skips if there is no such package."""
    home = root / requirement.replace("=", "-")
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=SECONDS_MAX)
    python = str(home / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    installed = subprocess.run(
        [*pip, requirement], capture_output=True, text=True, timeout=SECONDS_MAX, check=False, cwd=root
    )
    if installed.returncode != 0:
        pytest.skip(f"pip could not install {requirement}: {installed.stderr.strip()[-300:]}")
    return python


def with_old_confluent_kafka(server: str, directory: Path, _: Kafka) -> list[str]:
    python = environment_with(OLD_CONFLUENT, directory.parent)
    return answered([python, "-m", "tests.interop.client_program", "confluent-kafka", server])


def with_old_kafka_python(server: str, directory: Path, _: Kafka) -> list[str]:
    if sys.version_info >= (3, 12):
        pytest.skip(f"{OLD_KAFKA_PYTHON} cannot be imported by Python 3.12 and later")
    python = environment_with(OLD_KAFKA_PYTHON, directory.parent)
    return answered([python, "-m", "tests.interop.client_program", "kafka-python", server])


def with_kcat(server: str, _: Path, __: Kafka) -> list[str]:
    pytest.importorskip("confluent_kafka")  # makes the topic
    if shutil.which("kcat") is None:
        pytest.skip("no kcat on PATH")
    return answered([sys.executable, "-m", "tests.interop.kcat_program", server])


def with_spark(server: str, directory: Path, _: Kafka) -> list[str]:
    for module in ("pyspark", "confluent_kafka"):
        pytest.importorskip(module)
    try:
        jars = java.fetch_jars(java.SPARK_KAFKA_POM)
    except java.Unavailable as reason:
        pytest.skip(str(reason))
    folder = directory / "spark"
    folder.mkdir()
    return answered([sys.executable, "-m", "tests.interop.spark_program", server, str(jars), str(folder)])


def with_kafkajs(server: str, _: Path, __: Kafka) -> list[str]:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no node and npm on PATH")
    home = CACHE / f"kafkajs-{KAFKAJS}"
    if not (home / "node_modules").is_dir():
        home.mkdir(parents=True, exist_ok=True)
        installed = subprocess.run(
            ["npm", "install", "--silent", "--prefix", str(home), f"kafkajs@{KAFKAJS}"],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        if installed.returncode != 0:
            pytest.skip(f"npm could not install kafkajs: {installed.stderr[-300:]}")
    return answered(["node", str(CLIENTS / "kafkajs.js"), server], NODE_PATH=str(home / "node_modules"))


def with_franz_go(server: str, _: Path, __: Kafka) -> list[str]:
    if shutil.which("go") is None:
        pytest.skip("no go on PATH")
    program = CACHE / "franz"
    CACHE.mkdir(parents=True, exist_ok=True)
    built = subprocess.run(
        ["go", "build", "-o", str(program), "."],
        cwd=FRANZ,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    if built.returncode != 0:
        pytest.skip(f"go could not build the program: {built.stderr[-300:]}")
    return answered([str(program), server])


def with_java(server: str, directory: Path, kafka: Kafka) -> list[str]:
    lines = [
        f"{name}\t{rest[0]}\t{directory / name}"
        if len(rest) == 1
        else "\t".join(("tool", str(directory / name), rest[0], *rest[1].split()))
        for name, *rest in ASKED
    ]
    java.run(kafka.java, kafka.jars, "Client.java", lines, seconds=SECONDS_MAX, server=server)
    found = []
    for name, *_ in ASKED:
        if name != "produce":
            text = (directory / name).read_text(encoding="utf-8")
            for pattern, instead in OWN:
                text = pattern.sub(instead, text)
            # The columns of a table are as wide as its longest word.
            found += [f"{name}: {line.strip()}" for line in sorted(text.splitlines()) if line.strip()]
    return found


@contextmanager
def at_door(directory: Path, _: Kafka) -> Iterator[str]:
    with kstore.open(directory / "store", durability="os") as store, kstore.Door(store, port=0) as door:
        yield door.bootstrap_servers


@contextmanager
def at_broker(directory: Path, kafka: Kafka) -> Iterator[str]:
    broker = kafka.broker(directory)
    broker.life_seconds_max = SECONDS_MAX
    with broker.running():
        yield broker.server


CLIENTS_HERE: tuple[Client, ...] = (
    with_confluent_kafka,
    with_old_confluent_kafka,
    with_kafka_python,
    with_old_kafka_python,
    with_aiokafka,
    with_kcat,
    with_kafkajs,
    with_franz_go,
    with_java,
    with_spark,
)


@pytest.mark.parametrize("client", CLIENTS_HERE)
def test_a_program_prints_at_a_door_what_it_prints_at_a_broker(client: Client, kafka: Kafka, tmp_path: Path) -> None:
    printed = {}
    for place in (at_door, at_broker):
        directory = tmp_path / place.__name__
        directory.mkdir()
        with place(directory, kafka) as server:
            printed[place.__name__] = client(server, directory, kafka)
    assert len(printed["at_door"]) > 10
    assert printed["at_door"] == printed["at_broker"]
