"""A condition of SQL as what a read may skip because of it: the same filters that Spark would push. Pure.

Only conditions of this form are understood; any other one skips nothing, since whatever is skipped must be certain::

    comparison AND comparison AND ...

    offset, partition       =, ==, <=>, <, <=, >, >= a number; BETWEEN two numbers; IN (numbers)
    topic                   = 'text', IN ('texts'), LIKE 'prefix%'
    timestamp               =, >, >=, BETWEEN times; a time is TIMESTAMP '...', DATE '...' or the text alone

Spark evaluates the whole condition on what is read. A time without a zone is in the session's zone, which is not known
here: the earliest moment that it can mean is used, since only lower bounds of times skip anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>-?[0-9]{1,18})(?![\w.])
      | '(?P<text>[^'\\]*)'(?!\s*')
      | (?P<word>[A-Za-z_]\w*)
      | (?P<sign><=>|<=|>=|==|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE | re.ASCII,
)
COMPARISONS: dict[str, type] = {
    "=": EqualTo,
    "==": EqualTo,
    "<=>": EqualTo,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
}
# With the two sides exchanged.
EXCHANGED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
NUMBERS = ("offset", "partition")
COLUMNS = (*NUMBERS, "topic", "timestamp")
# Only the plain ones of the forms that Spark knows: another reading of them must not be a later moment.
TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ T][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(?:Z|[+-][0-9]{2}:[0-9]{2})?)?",
    re.ASCII,
)
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
# No zone is further ahead of UTC (Java's ZoneOffset.MAX).
AHEAD_MAX = timedelta(hours=18)

Value = int | str | datetime


class _Token(NamedTuple):
    """``kind`` is the name of the group in TOKEN."""

    kind: str
    text: str


class _NotUnderstoodError(Exception):
    """The condition has another form."""


def filters_of(condition: str) -> list[Filter]:
    """The filters of a condition, all of which every row that passes it passes; none if it is not understood."""
    try:
        return list(_Parser(condition).filters())
    except _NotUnderstoodError:
        return []


def columns_in(condition: str, known: tuple[str, ...]) -> list[str]:
    """The columns, out of those ``known``, that a condition may need, in their order: a superset."""
    words = {word.lower() for word in re.findall(r"\w+", condition)}
    return [name for name in known if name.lower() in words]


class _Parser:
    """Reads a condition from left to right."""

    def __init__(self, condition: str) -> None:
        self._tokens: list[_Token] = []
        at = 0
        while condition[at:].strip():
            match = TOKEN.match(condition, at)
            if match is None or match.lastgroup is None:
                raise _NotUnderstoodError
            self._tokens.append(_Token(match.lastgroup, match[match.lastgroup]))
            at = match.end()
        self._at = 0

    def filters(self) -> Iterator[Filter]:
        yield from self._comparison()
        while self._at < len(self._tokens):
            self._expect("and")
            yield from self._comparison()

    def _comparison(self) -> Iterator[Filter]:
        first = self._peek()
        if first.kind == "word" and first.text.lower() in COLUMNS:
            self._at += 1
            column = first.text.lower()
            yield from self._of(column)
            return
        # 5 < offset
        at = self._at
        self._skip_value()
        sign = self._take("sign").text
        column = self._take("word").text.lower()
        after, self._at = self._at, at
        if column not in COLUMNS or sign not in COMPARISONS:
            raise _NotUnderstoodError
        value = self._value(column)
        self._at = after
        yield from _compared(column, EXCHANGED.get(sign, sign), value)

    def _of(self, column: str) -> Iterator[Filter]:
        token = self._next()
        word = token.text.lower()
        if token.kind == "sign" and token.text in COMPARISONS:
            yield from _compared(column, token.text, self._value(column))
        elif token.kind == "word" and word == "between":
            low = self._value(column)
            self._expect("and")
            yield from _compared(column, ">=", low)
            yield from _compared(column, "<=", self._value(column))
        elif token.kind == "word" and word == "in" and column != "timestamp":
            yield In((column,), tuple(self._values(column)))
        elif token.kind == "word" and word == "like" and column == "topic":
            pattern = self._take("text").text
            prefix = pattern.removesuffix("%")
            if prefix == pattern or re.search("[%_]", prefix):
                raise _NotUnderstoodError
            yield StringStartsWith((column,), prefix)
        else:
            raise _NotUnderstoodError

    def _values(self, column: str) -> Iterator[Value]:
        self._expect("(")
        yield self._value(column)
        while self._peek().text == ",":
            self._at += 1
            yield self._value(column)
        self._expect(")")

    def _value(self, column: str) -> Value:
        if column in NUMBERS:
            return int(self._take("number").text)
        if column == "topic":
            return self._take("text").text
        form = TIME
        if self._peek().kind == "word":
            word = self._next().text.lower()
            if word not in ("timestamp", "date"):
                raise _NotUnderstoodError
            form = DATE if word == "date" else TIME
        return _earliest(self._take("text").text, form)

    def _skip_value(self) -> None:
        if self._peek().kind == "word":
            self._at += 1
        if self._next().kind not in ("number", "text"):
            raise _NotUnderstoodError

    def _peek(self) -> _Token:
        if self._at >= len(self._tokens):
            raise _NotUnderstoodError
        return self._tokens[self._at]

    def _next(self) -> _Token:
        token = self._peek()
        self._at += 1
        return token

    def _take(self, kind: str) -> _Token:
        token = self._next()
        if token.kind != kind:
            raise _NotUnderstoodError
        return token

    def _expect(self, text: str) -> None:
        token = self._next()
        if token.kind not in ("word", "sign") or token.text.lower() != text:
            raise _NotUnderstoodError


def _compared(column: str, sign: str, value: Value) -> Iterator[Filter]:
    if isinstance(value, datetime):
        # Only as a lower bound: the value may be earlier than what is meant.
        if sign not in ("<", "<="):
            yield GreaterThanOrEqual((column,), value)
    else:
        yield COMPARISONS[sign]((column,), value)


def _earliest(text: str, form: re.Pattern[str]) -> datetime:
    """The earliest moment that a time can mean."""
    if not form.fullmatch(text):
        raise _NotUnderstoodError
    try:
        found = datetime.fromisoformat(text)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC) - AHEAD_MAX
    except (ValueError, OverflowError):
        raise _NotUnderstoodError from None
