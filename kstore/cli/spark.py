"""``kstore spark``: whole jobs on logs with Spark, and the archive for its executors."""

from __future__ import annotations

from importlib import import_module

import click

from kstore.cli.command import OK, KstoreCommand, KstoreGroup
from kstore.errors import ConfigError
from kstore.spark.jobs import JOBS
from kstore.spark.session import missing_extra

EXAMPLES = """
\b
Examples:
  kstore spark verify data/
  kstore spark export --by date data/ lake/                 run it again to update
  kstore spark stats --every 1h data/
  kstore spark compact --topic customers data/ compacted/
  kstore spark pack kstore.tar.gz                           for executors without kstore
  kstore spark verify --help

\b
A job runs on this machine, or where --master says. For spark-submit it is a file:
  spark-submit --master yarn $(python -c 'import kstore.spark.jobs as j; print(j.__path__[0])')/verify.py DIR

\b
Exit status:
  0  done
  1  damage was found, or the job failed; the output says why
  2  bad usage: nothing was started
"""

PACK_EXAMPLES = """
\b
Examples:
  kstore spark pack kstore.tar.gz
  kstore spark pack --package s3fs kstore.tar.gz

\b
Exit status:
  0  the archive is written
  1  a package is not installed, or the file cannot be written
  2  bad usage
"""


class _Jobs(KstoreGroup):
    """The jobs, each of which parses its own options: ``spark-submit`` passes them without this command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*JOBS, "pack"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "pack":
            return pack_command
        return _job(cmd_name) if cmd_name in JOBS else None


def _job(name: str) -> click.Command:
    def call(arguments: tuple[str, ...]) -> int:
        try:
            module = import_module(f"kstore.spark.jobs.{name.replace('-', '_')}")
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("kstore"):
                raise
            raise missing_extra(error) from error
        status: int = module.main(list(arguments))
        return status

    job = KstoreCommand(
        name,
        callback=call,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        help=JOBS[name],
        short_help=JOBS[name],
        add_help_option=False,
    )
    job.ignore_unknown_options = True
    return job


@click.group("spark", cls=_Jobs, epilog=EXAMPLES, short_help="Jobs on logs with Spark.")
def command() -> None:
    """Verify, export, compact, count and rewrite logs with Spark, on one machine or many."""


@click.command("pack", cls=KstoreCommand, epilog=PACK_EXAMPLES, short_help="Write the archive for executors.")
@click.argument("archive", metavar="OUT.tar.gz", type=click.Path(dir_okay=False))
@click.option("--package", "packages", multiple=True, metavar="NAME", help="Add this installed package.")
def pack_command(archive: str, packages: tuple[str, ...]) -> int:
    """Write kstore and its requirements to OUT.tar.gz, and print the settings that make Spark use it.

    Spark cannot load compiled modules from a zip of --py-files; an archive that it unpacks next to each executor works.
    """
    from kstore.spark.pack import pack

    try:
        packed = pack(archive, packages=packages)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or archive}: {error.strerror or error}") from None
    print(f"{packed.path}: {packed.size:,} bytes, for {packed.runs_on}")
    for name, version in packed.packages.items():
        print(f"  {name} {version}")
    print("settings:")
    for name, value in packed.settings.items():
        print(f"  --conf {name}={value}")
    return OK
