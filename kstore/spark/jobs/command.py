"""What all jobs share on the command line: options, sessions, errors and exit statuses.

It does not use click, so that ``spark-submit`` runs a job wherever kstore and pyspark are installed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kstore.config import LogConfig
from kstore.errors import ConfigError, KstoreError
from kstore.files.fs import plain_text
from kstore.rules.deprecated import farewell
from kstore.setting_rules import value_of
from kstore.spark.option_values import to_size, to_storage_options
from kstore.spark.session import missing_extra, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What a job does with a session; returns the exit status.
Work = Callable[["SparkSession"], int]

# The same as for every command (kstore.cli.command, a layer above).
OK = 0
DAMAGED = FAILED = 1
USAGE = 2
INTERRUPTED = 130

# The last line of a Python traceback that Spark passes on.
RAISED = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and leaves the examples unchanged."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, argparse.SUPPRESS, False, []) or not action.help:
            return action.help
        return f"{action.help} Default: %(default)s."


def job_parser(
    name: str, description: str, examples: str, *, paths: str = "A log, or a directory of logs; local, or a URL."
) -> argparse.ArgumentParser:
    """The parser of a job, with the options that all jobs share, and ``paths``."""
    parser = argparse.ArgumentParser(
        prog=f"kstore spark {name}",
        description=description,
        epilog=examples,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help=paths)
    spark = parser.add_argument_group("Spark and storage")
    spark.add_argument(
        "--master", metavar="URL", help="Spark's master. Default: that of spark-submit, else this machine."
    )
    spark.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="A setting of Spark; repeatable."
    )
    spark.add_argument(
        "--storage-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="An option for the store's library (fsspec, HDFS); repeatable.",
    )
    spark.add_argument(
        "--format", choices=("text", "json"), default="text", help="The format of the summary; json: one object a line."
    )
    return parser


def add_isolation_level(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--isolation-level",
        choices=("read_committed", "read_uncommitted"),
        default="read_committed",
        help="read_committed: no records of aborted transactions, and nothing after an open one.",
    )


def add_config(parser: argparse.ArgumentParser, topics: str) -> None:
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"A setting of the {topics} (compression_type).",
    )


def run(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    prepared: Callable[[argparse.Namespace], Work],
) -> int:
    """Runs a job; the exit status. ``prepared`` checks the options, before a session starts, and returns the work."""
    try:
        options = parser.parse_args(arguments)
    except SystemExit as end:  # --help, or bad usage, already reported
        return end.code if isinstance(end.code, int) else USAGE
    try:
        conf = key_values("--conf", options.conf)
        work = prepared(options)
    except ConfigError as error:
        parser.print_usage(sys.stderr)
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return USAGE
    except KstoreError as error:
        return _failed(parser, error)
    try:
        with _session(parser.prog, options.master, conf) as spark:
            status = work(spark)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except KstoreError as error:
        return _failed(parser, error)
    except Exception as error:
        told = _of_spark(error)
        if told is None:
            raise
        print(f"{parser.prog}: {told}", file=sys.stderr)
        return FAILED


def _failed(parser: argparse.ArgumentParser, error: KstoreError) -> int:
    print(f"{parser.prog}: {plain_text(error)}", file=sys.stderr)
    return FAILED


def _of_spark(error: Exception) -> str | None:
    """The error of a failed task, out of all that Spark prints about it; None for an error that is not Spark's."""
    try:
        from pyspark.errors import PySparkException
    except ImportError:
        return None
    if not isinstance(error, PySparkException):
        return None
    text = str(error)
    raised = RAISED.findall(text)
    return f"{raised[-1][0]}: {raised[-1][1]}" if raised else text.strip().split("\n", 1)[0]


@contextmanager
def _session(name: str, master: str | None, conf: dict[str, str]) -> Iterator[SparkSession]:
    """A session, stopped at the end unless it existed before."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise missing_extra(error) from error
    running = SparkSession.getActiveSession()
    # Times in a job's columns are UTC, wherever it runs.
    spark = session(master=master, app_name=name, **{"spark.sql.session.timeZone": "UTC", **conf})
    try:
        yield spark
    finally:
        if running is None:
            spark.stop()


# --- options ----------------------------------------------------------------------------------------------------------


def key_values(option: str, texts: Sequence[str]) -> dict[str, str]:
    """``KEY=VALUE`` each. Raises: ConfigError."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ConfigError(f"{option} is {text!r}, expected KEY=VALUE")
        found[name] = value
    return found


def instead(recipe: str) -> str:
    """What replaces a deprecated job: a recipe, by its heading."""
    return f'docs/spark.md has it as a recipe, "{recipe}"'


def note_deprecated(what: str, recipe: str) -> None:
    """Warns on standard error, so what a script reads does not change."""
    print(f"kstore: {farewell(what, instead(recipe))}", file=sys.stderr)


def storage_options(options: argparse.Namespace) -> dict[str, Any]:
    """The values of ``--storage-option``; JSON values are decoded. Raises: ConfigError."""
    found: dict[str, Any] = {}
    for name, text in key_values("--storage-option", options.storage_option).items():
        try:
            found[name] = to_storage_options(name, f'{{"value": {text}}}')["value"]
        except ConfigError:
            found[name] = text
    return found


def settings_of(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """Settings of topics, in Kafka's spelling or kstore's, as in the other commands. Raises: ConfigError."""
    found: dict[str, Any] = {}
    for name, text in key_values(option, texts).items():
        found[name.strip().replace(".", "_")] = value_of(text.strip())
    LogConfig.from_settings(**found)
    return found


def size_of(option: str, text: str) -> int:
    """Bytes, like 128m. Raises: ConfigError."""
    return to_size(option, text)


def summary(form: str, title: str, fields: dict[str, Any]) -> None:
    """Prints a job's results at its end."""
    if form == "json":
        print(json.dumps({"type": "summary", "job": title, **fields}, default=str))
        return
    print(title)
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
        print(f"  {name.replace('_', ' '):<{width}}  {shown}")
