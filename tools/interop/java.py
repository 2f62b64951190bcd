"""Java, with Kafka's or Hadoop's jars on its class path: found, fetched once with Maven, and run.

The jars, and the programs of this folder when compiled, are in ``target/interop/``, which git ignores. The ``pom.xml``
files beside this one pin the jars' versions. Maven's own configuration decides where it gets them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from threading import get_ident

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / "target" / "interop"
KAFKA_POM = HERE / "pom.xml"
SPARK_KAFKA_POM = HERE / "spark-kafka-pom.xml"
HDFS_POM = HERE / "hdfs-pom.xml"
# The release whose dump tool and messages kstore follows; pom.xml has that of the brokers.
NEWEST_KAFKA = "4.4.0"

# Kafka's broker requires it, and the programs beside this file use its language.
JAVA_VERSION_MIN = 17
# For 54 MB, or 104 for HDFS, and on a new machine Maven's own plugins.
FETCH_SECONDS_MAX = 240
# A program is killed this long after its own watchdog should have ended it.
GRACE_SECONDS = 10
JVM_OPTIONS = (
    "-Xmx512m",
    # Short runs on few cores: start fast, leave the second core to the test.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    "-Dfile.encoding=UTF-8",
)


class Unavailable(Exception):
    """Java or the jars are not available on this machine. Not a failure: the message says why a test is skipped."""


class ProgramError(Exception):
    """A Java program failed: its exit status, and the end of its standard error."""


def find_java() -> str:
    """The path of a ``java`` that is new enough: from JAVA_HOME, else from PATH. Raises: Unavailable."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise Unavailable("no java on PATH, and no JAVA_HOME")
    printed = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    match = re.search(r'version "(\d+)', printed)
    if match is None or int(match[1]) < JAVA_VERSION_MIN:
        version = printed.strip().splitlines()[0] if printed.strip() else "of unknown version"
        raise Unavailable(f"{found} is {version}, and Kafka and Hadoop need Java {JAVA_VERSION_MIN}")
    # A bare runtime cannot run a Java file.
    modules = subprocess.run([found, "--list-modules"], capture_output=True, text=True, timeout=60, check=False).stdout
    if "jdk.compiler" not in modules:
        raise Unavailable(f"{found} is a runtime without a compiler (a JDK is needed)")
    return found


def fetch_jars(pom: Path = KAFKA_POM, cache: Path = CACHE, kafka_release: str = "") -> Path:
    """The folder with the jars that ``pom`` names, fetched by Maven if it does not exist. Raises: Unavailable.

    ``kafka_release``, such as "4.3.1", takes the place of the release of Kafka in ``pom``.
    """
    settings = [f"-Dkafka.version={kafka_release}"] if kafka_release else []
    digest = hashlib.sha256(pom.read_bytes() + "".join(settings).encode()).hexdigest()[:12]
    return _made_once(cache / f"lib-{digest}", lambda partial: _copy_dependencies(pom, partial, settings))


def _made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """``folder``; ``make`` fills it if it does not exist."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Moved into place when complete, so that an interrupted one never counts as complete.
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.{get_ident()}.partial")
    try:
        make(partial)
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():  # another run was faster, and made the same
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _copy_dependencies(pom: Path, target: Path, settings: Sequence[str]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("no mvn (Maven) on PATH to fetch jars with")
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={target}"]
    try:
        done = subprocess.run(
            [maven, "-q", "-B", "-f", str(pom), *settings, *goal],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"Maven did not fetch the jars of {pom.name} within {FETCH_SECONDS_MAX} s") from None
    if done.returncode != 0 or not target.is_dir():
        said = next((line for line in done.stdout.splitlines() if "ERROR" in line), "it said nothing")
        raise Unavailable(f"Maven could not fetch the jars of {pom.name}: {said[:300]}")


def command(
    java: str, jars: Path, program: str, *, seconds: int, options: Sequence[str] = JVM_OPTIONS, **properties: str
) -> list[str]:
    """The command line that runs ``program`` (a Java file of this folder), which ends itself after ``seconds``.

    Raises: ProgramError if it cannot be compiled.
    """
    source = HERE / program
    digest = hashlib.sha256(source.read_bytes() + jars.name.encode()).hexdigest()[:12]
    # Java would compile the source file at each start, which takes a second or more of processor time.
    classes = _made_once(CACHE / f"{source.stem}-{digest}", partial(_compile, java, jars, source))
    settings = [f"-D{name}={value}" for name, value in {"seconds": str(seconds), **properties}.items()]
    return [java, *options, *settings, "-cp", f"{classes}:{jars}/*", source.stem]


def _compile(java: str, jars: Path, source: Path, target: Path) -> None:
    compiler = [java, *JVM_OPTIONS, "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    path = os.pathsep.join(map(str, jars.glob("*.jar")))
    options = ["--release", str(JAVA_VERSION_MIN), "-encoding", "UTF-8", "-cp", path, "-d", str(target)]
    done = subprocess.run([*compiler, *options, str(source)], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise ProgramError(f"{source.name} was not compiled:\n{done.stderr[-3000:]}")


def run(java: str, jars: Path, program: str, lines: Iterable[str], *, seconds: int, **properties: str) -> None:
    """Runs ``program`` to its end, with ``lines`` on its standard input. Raises: ProgramError."""
    quiet = {"org.slf4j.simpleLogger.defaultLogLevel": "off"}
    done = subprocess.run(
        command(java, jars, program, seconds=seconds, **quiet, **properties),
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=seconds + GRACE_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise ProgramError(f"{program} ended with status {done.returncode}:\n{done.stderr[-3000:]}")
