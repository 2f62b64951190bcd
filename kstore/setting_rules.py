"""How settings are parsed: rules for single values, and errors that say what was found and what was expected.

A configuration is a frozen dataclass, with a table of rules that has a row for each of its fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from operator import index
from types import MappingProxyType
from typing import Any, NamedTuple

from kstore.errors import ConfigError
from kstore.types import INT64_MAX

# "Never" for a time or a count, as in Kafka.
UNLIMITED = INT64_MAX
# Kafka's way to write "no limit" where 0 is a limit.
NO_LIMIT = -1
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# How similar a name must be to be suggested for an unknown one (difflib's ratio).
NEAR = 0.75
NO_HINTS: Mapping[str, str] = MappingProxyType({})

SIZE_UNITS = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": 1 << 40,
}
TIME_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
# Digits are bounded, so that a hostile setting cannot make the conversion slow.
QUANTITY = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)", re.ASCII)


class Setting(NamedTuple):
    """One row of the table: ``kafka_name`` is "" if Kafka has no such setting; ``expected`` says what is accepted."""

    name: str
    kafka_name: str
    default: object
    expected: str
    doc: str


class Rule(NamedTuple):
    """How one setting's value is parsed: ``parse`` raises TypeError or ValueError for an invalid one."""

    kafka_name: str
    parse: Callable[[object], object]
    expected: str
    doc: str


def whole(value: object) -> int:
    if isinstance(value, bool):
        raise TypeError
    return index(value)  # type: ignore[arg-type]  # for other types it raises the desired TypeError


def _quantity(value: str, units: Mapping[str, int]) -> int:
    match = QUANTITY.fullmatch(value.strip())
    if match is None or match[2] not in units:
        raise ValueError
    from fractions import Fraction  # loads decimal, which few settings need

    number = Fraction(match[1]) * units[match[2]]
    if number.denominator != 1:
        raise ValueError
    return number.numerator


def parse_size(text: str) -> int:
    """Bytes of a text like "64MiB". Raises: ValueError."""
    return _quantity(text, SIZE_UNITS)


def _size(value: object) -> int:
    return _quantity(value, SIZE_UNITS) if isinstance(value, str) else whole(value)


def _time(value: object) -> int:
    if isinstance(value, timedelta):
        time_ms, rest = divmod(value, timedelta(milliseconds=1))
        if rest:
            raise ValueError
        return time_ms
    return _quantity(value, TIME_UNITS_MS) if isinstance(value, str) else whole(value)


def gzip_level(value: object) -> int:
    level = whole(value)
    if level == 0:  # zlib's "stored", which Kafka refuses
        raise ValueError
    return level


def boolean(value: object) -> bool:
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.strip().lower())
    if not isinstance(value, bool):
        raise TypeError
    return value


def text_up_to(bytes_max: int) -> Callable[[object], str]:
    """Accepts a str of at most ``bytes_max`` bytes in UTF-8."""

    def parse(value: object) -> str:
        if not isinstance(value, str):
            raise TypeError
        if len(value.encode("utf-8")) > bytes_max:
            raise ValueError
        return value

    return parse


def object_with(method: str, names: Collection[str]) -> Callable[[object], object]:
    """Accepts one of ``names``, an object with ``method``, or a callable that is not a class."""

    def parse(value: object) -> object:
        if isinstance(value, str):
            if value not in names:
                raise ValueError
        elif isinstance(value, type) or not (callable(value) or callable(getattr(value, method, None))):
            raise TypeError
        return value

    return parse


def _same(value: object) -> object:
    return value


def within(
    low: int, high: int, kind: tuple[Callable[[object], int], str], kafka_name: str, doc: str, *, or_never: bool = False
) -> Rule:
    """A number from ``low`` to ``high``; with ``or_never``, None stands for ``high``, which means "no limit"."""
    convert, what = kind

    def parse(value: object) -> int:
        number = high if value is None and or_never else convert(value)
        if not low <= number <= high:
            raise ValueError
        return number

    never = ", or None for no limit" if or_never else ""
    return Rule(kafka_name, parse, f"{what}, from {low} to {high}{never}", doc)


def or_none(kind: tuple[Callable[[object], object], str], kafka_name: str, doc: str) -> Rule:
    """A number from 0, or -1 (or None) for no limit, as Kafka writes it."""
    convert, what = kind

    def parse(value: object) -> object:
        number = NO_LIMIT if value is None else convert(value)
        if not isinstance(number, int) or not NO_LIMIT <= number <= UNLIMITED:
            raise ValueError
        return number

    return Rule(kafka_name, parse, f"{what}, from 0 to {UNLIMITED}, or -1 for no limit", doc)


def one_of(choices: Sequence[str], kafka_name: str, doc: str, *, convert: Callable[[object], object] = _same) -> Rule:
    def parse(value: object) -> object:
        chosen = convert(value)
        if not isinstance(chosen, str) or chosen not in choices:
            raise ValueError
        return chosen

    return Rule(kafka_name, parse, "one of " + ", ".join(map(repr, choices)), doc)


def shown(value: object) -> str:
    """A value for an error message, cut to one short line."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


SIZE = (_size, "bytes as an int or like '64MiB'")
TIME = (_time, "ms as an int or like '7d', '500ms', or a timedelta")
COUNT = (whole, "an int")
BOOL = "True or False"


# --- whole configurations ---------------------------------------------------------------------------------------------


def parse_fields(config: Any, rules: Mapping[str, Rule]) -> None:
    """Parses each field of a new, frozen dataclass by its rule. Raises: ConfigError.

    A default is valid as it stands, except None, which stands for what its rule makes of it.
    """
    known = type(config).__dataclass_fields__
    for name, rule in rules.items():
        value = getattr(config, name)
        if value is known[name].default and value is not None:
            continue
        try:
            parsed = rule.parse(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{name} is {shown(value)}, expected {rule.expected}") from None
        object.__setattr__(config, name, parsed)


def resolved(
    settings: Mapping[str, object], rules: Mapping[str, Rule], whose: str = "", hints: Mapping[str, str] = NO_HINTS
) -> dict[str, Any]:
    """``settings`` by the names of ``rules``: Kafka's dotted names are accepted too.

    Raises ConfigError for a setting that does not exist, or that is given twice. The error names the nearest one that
    does exist, or says what ``hints`` has for the name.
    """
    found: dict[str, Any] = {}
    for given, value in settings.items():
        name = given if given in rules else snake_case(given, rules)
        if name not in rules:
            raise ConfigError(f"there is no setting {shown(given)}{whose}{_advice(given, rules, hints)}")
        if name in found:
            raise ConfigError(f"{name} is given twice, also by its Kafka name")
        found[name] = value
    return found


def snake_case(name: str, rules: Mapping[str, Rule]) -> str:
    """The name in ``rules`` of a setting that may have Kafka's dotted name; another name is returned as it is."""
    if "." not in name:
        return name
    return next((own for own, rule in rules.items() if rule.kafka_name == name), name)


def _advice(given: str, rules: Mapping[str, Rule], hints: Mapping[str, str]) -> str:
    name = given.replace(".", "_")
    if name in hints:
        return f": {hints[name]}"
    import difflib

    # Brokers' own settings have the prefix "log.".
    near = difflib.get_close_matches(name.removeprefix("log_"), rules, n=1, cutoff=NEAR)
    return f", did you mean {near[0]!r}?" if near else f": there are {', '.join(rules)}"


def value_of(text: str) -> Any:
    """The value of a setting on a command line: a number, true or false if it reads as one, else the text."""
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text.lower(), text)


def changed(config: Any) -> str:
    """The ``repr`` of a configuration: the settings that do not have their defaults."""
    default = type(config)()
    given = [(field.name, getattr(config, field.name)) for field in fields(config)]
    words = [f"{name}={value!r}" for name, value in given if value != getattr(default, name)]
    return f"{type(config).__name__}({', '.join(words)})"


def table(defaults: object, rules: Mapping[str, Rule]) -> tuple[Setting, ...]:
    """Every setting, in the order of the rules."""
    return tuple(
        Setting(name, rule.kafka_name, getattr(defaults, name), rule.expected, rule.doc) for name, rule in rules.items()
    )
