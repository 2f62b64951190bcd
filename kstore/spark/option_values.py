"""How an option's text is parsed: one value each, and errors that name the option and what was expected.

Spark passes every option as text, under its name in lower case. If Spark's own Kafka source has a text for an error,
that is used.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from fractions import Fraction
from typing import Any, NoReturn, TypeVar

from kstore.errors import ConfigError
from kstore.files.paths import TopicPartition
from kstore.setting_rules import TIME_UNITS_MS, shown
from kstore.types import INT32_MAX, INT64_MAX

Value = TypeVar("Value")

# How similar a name must be to be suggested for an unknown one (difflib's ratio).
NEAR = 0.6

STORAGE_PREFIX = "storage_options."
# What Spark's own Kafka source and sink take for their client of a broker, in lower case.
BROKER_NAMES = ("groupidprefix",)
BROKER_PREFIXES = ("kafka.", "kafkaconsumer.", "fetchoffset.")

# Spark's own words for times (JavaUtils.timeStringAs) and sizes (byteStringAs); a number alone is ms, or bytes.
SIZE_UNITS = {"b": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}
NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
TIME = re.compile(r"([0-9]{1,19}) *([a-z]*)", re.ASCII)
SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,6})?) *(?:([bkmgtp])(?:i?b)?)?", re.ASCII)
STORAGE_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,18})?", re.ASCII)

EXPECTED_PARTITIONS = 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got '
EXPECTED_OFFSETS = 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got '
EXPECTED_TIMESTAMPS = (
    'Expected e.g. {"topicA": {"0": 123456789, "1": 123456789}, "topicB": {"0": 123456789, "1": 123456789}}, got '
)


class Options:
    """The options of a data source, parsed one by one; names ignore case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._texts = {name.lower(): text for name, text in options.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._texts

    def text(self, name: str) -> str | None:
        """The option as given; None if it was not."""
        return self._texts.get(name.lower())

    def get(self, name: str, read: Callable[[str, str], Value], default: Value) -> Value:
        """The option as ``read(name, text)`` parses it, or ``default``. Raises: ConfigError."""
        text = self.text(name)
        return default if text is None else read(name, text)

    def names(self) -> list[str]:
        """All given names, in lower case."""
        return sorted(self._texts)

    def storage_options(self) -> dict[str, Any]:
        """``storage_options`` (a JSON object, which keeps upper case) and each ``storage_options.NAME``."""
        found: dict[str, Any] = {}
        found.update(self.get("storage_options", to_storage_options, found))
        for name, text in self._texts.items():
            if name.startswith(STORAGE_PREFIX):
                found[name.removeprefix(STORAGE_PREFIX)] = _storage_value(name, text)
        return found


def check_names(given: Iterable[str], known: Collection[str], *, whose: str) -> tuple[str, ...]:
    """Refuses every name that is not ``known``, naming the nearest one that is.

    Returns: the names that only a client of a broker needs; they have no meaning here.
    Raises: ConfigError.
    """
    known_lower = {name.lower() for name in known}
    of_broker = []
    for name in given:
        lower = name.lower()
        if lower in known_lower or lower.startswith(STORAGE_PREFIX):
            continue
        if lower in BROKER_NAMES or lower.startswith(BROKER_PREFIXES):
            of_broker.append(name)
            continue
        raise ConfigError(f"{whose} has no option {shown(name)}{hint(name, sorted(known))}")
    return tuple(of_broker)


def hint(name: str, known: Collection[str]) -> str:
    """What the end of an error about an unknown name says: the nearest of those ``known``, or all of them."""
    by_lower = {each.lower(): each for each in known}
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=NEAR)
    return f", did you mean {by_lower[nearest[0]]!r}?" if nearest else f": there are {', '.join(known)}"


def _refused(name: str, text: object, expected: str) -> NoReturn:
    raise ConfigError(f"{name} is {shown(text)}, expected {expected}") from None


# --- single values ----------------------------------------------------------------------------------------------------


def to_bool(name: str, text: str) -> bool:
    lower = text.strip().lower()
    if lower not in ("true", "false"):
        _refused(name, text, "true or false")
    return lower == "true"


def to_int(name: str, text: str, *, most: int = INT64_MAX) -> int:
    """A count, at least 1."""
    if not NUMBER.fullmatch(text.strip()):
        _refused(name, text, "a whole number")
    number = int(text)
    if number <= 0:
        raise ConfigError(f"{name} must be positive")
    if number > most:
        _refused(name, text, f"a whole number of at most {most}")
    return number


def to_size(name: str, text: str, *, most: int = INT64_MAX) -> int:
    """Bytes: a number, or one with a unit as in Spark's own settings, which are powers of 1024: 64m, 1g, 512 KiB."""
    match = SIZE.fullmatch(text.strip().lower())
    if match is None:
        _refused(name, text, "bytes as a number, or like 64m or 512 KiB")
    size = int(Fraction(match[1]) * (1 << SIZE_UNITS[match[2] or "b"]))
    if size <= 0:
        raise ConfigError(f"{name} must be positive")
    if size > most:
        _refused(name, text, f"at most {most} bytes")
    return size


def to_duration_ms(name: str, text: str) -> int:
    """Milliseconds: a number, or one with a unit: 500ms, 30s, 15m, 1h, 1d."""
    match = TIME.fullmatch(text.strip().lower())
    if match is None or match[2] not in TIME_UNITS_MS:
        _refused(name, text, "a time like 500ms, 30s, 15m or 1h")
    return int(match[1]) * TIME_UNITS_MS[match[2]]


def to_timestamp_ms(name: str, text: str) -> int:
    """Milliseconds since the epoch."""
    if not NUMBER.fullmatch(text.strip()) or abs(int(text)) > INT64_MAX:
        raise ConfigError(f"{name}: Expected a single long value, got {shown(text)}")
    return int(text)


def to_choice(choices: Collection[str]) -> Callable[[str, str], str]:
    """One of ``choices``, ignoring case."""

    def read(name: str, text: str) -> str:
        lower = text.strip().lower()
        if lower not in choices:
            _refused(name, text, "one of " + ", ".join(choices))
        return lower

    return read


def to_pattern(name: str, text: str) -> str:
    """A regular expression, which a part of a topic's name must match."""
    pattern = text.strip()
    if not pattern:
        raise ConfigError(f"Pattern to subscribe is empty as specified value for option '{name}' is '{text}'")
    try:
        re.compile(pattern)
    except re.error as error:
        _refused(name, text, f"a regular expression ({error})")
    return pattern


# --- lists ------------------------------------------------------------------------------------------------------------


def to_paths(name: str, text: str) -> tuple[str, ...]:
    """Spark's form of ``load([...])``: a JSON list."""
    try:
        paths = json.loads(text)
    except (ValueError, RecursionError):
        paths = None
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) and path for path in paths):
        _refused(name, text, 'a JSON list of paths, like ["/a", "/b"]')
    return tuple(paths)


def to_topics(name: str, text: str) -> tuple[str, ...]:
    topics = dict.fromkeys(topic for part in text.split(",") if (topic := part.strip()))
    if not topics:
        raise ConfigError(f"No topics to subscribe to as specified value for option '{name}' is '{text}'")
    return tuple(topics)


def to_columns(name: str, text: str) -> tuple[str, ...]:
    """Names separated by commas; whether they exist is checked elsewhere."""
    columns = tuple(part.strip() for part in text.split(","))
    if not all(columns):
        _refused(name, text, "names of columns separated by commas")
    return columns


def to_partitions(name: str, text: str) -> tuple[TopicPartition, ...]:
    """Partitions of topics: ``{"topicA":[0,1]}``."""
    if not text.strip().startswith("{"):
        raise ConfigError(f"No topicpartitions to assign as specified value for option '{name}' is '{text}'")
    found: set[TopicPartition] = set()
    parsed = _json_object(text)
    for topic, numbers in (parsed or {}).items():
        if not isinstance(numbers, list) or not all(_is_int(number, 0, INT32_MAX) for number in numbers):
            parsed = None
            break
        found.update(TopicPartition(topic, number) for number in numbers)
    if parsed is None:
        raise ConfigError(f"{name}: {EXPECTED_PARTITIONS}{shown(text)}")
    if not found:
        raise ConfigError(f"No topicpartitions to assign as specified value for option '{name}' is '{text}'")
    return tuple(sorted(found))


def to_offsets(name: str, text: str) -> dict[TopicPartition, int]:
    """An offset for each partition: ``{"topicA":{"0":23,"1":-1}}``; -2 is earliest, -1 latest."""
    return _numbers(name, text, EXPECTED_OFFSETS, low=-2)


def to_timestamps(name: str, text: str) -> dict[TopicPartition, int]:
    """A timestamp in ms for each partition: ``{"topicA": {"0": 123456789}}``."""
    return _numbers(name, text, EXPECTED_TIMESTAMPS, low=-INT64_MAX)


def _numbers(name: str, text: str, expected: str, *, low: int) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    parsed = _json_object(text)
    for topic, numbers in (parsed or {}).items():
        if not isinstance(numbers, dict):
            parsed = None
            break
        for partition, number in numbers.items():
            if not (partition.isascii() and partition.isdigit() and len(partition) <= 10 and _is_int(number, low)):
                parsed = None
                break
            found[TopicPartition(topic, int(partition))] = number
    if parsed is None:
        raise ConfigError(f"{name}: {expected}{shown(text)}")
    return found


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _is_int(number: object, low: int, high: int = INT64_MAX) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and low <= number <= high


# --- storage options --------------------------------------------------------------------------------------------------


def to_storage_options(name: str, text: str) -> dict[str, Any]:
    parsed = _json_object(text)
    if parsed is None:
        # Never the text itself: it may hold a password.
        raise ConfigError(f'{name} is not a JSON object like {{"anon": true}}')
    return parsed


def _storage_value(name: str, text: str) -> Any:
    """true, false, numbers, JSON lists, objects and quoted texts are decoded; everything else is text."""
    stripped = text.strip()
    if stripped.lower() in ("true", "false"):
        return stripped.lower() == "true"
    if STORAGE_NUMBER.fullmatch(stripped) or stripped[:1] in ("{", "[", '"'):
        try:
            return json.loads(stripped)
        except (ValueError, RecursionError):
            raise ConfigError(f"{name} starts like JSON but is not") from None
    return text


# --- for errors -------------------------------------------------------------------------------------------------------


def shown_partitions(owners: Iterable[TopicPartition]) -> str:
    return "{" + ", ".join(str(owner) for owner in sorted(owners)) + "}"
