"""Writes values as Java and Kafka's tools write them: numbers, JSON."""

from __future__ import annotations

import math
from base64 import b64encode
from decimal import Decimal

from kstore.messages.schema import Uuid, Value

# Jackson's escapes; it leaves everything beyond ASCII unchanged.
_JSON_ESCAPES = {code: f"\\u{code:04X}" for code in range(32)}
_JSON_ESCAPES |= {ord(char): f"\\{letter}" for char, letter in zip('\b\t\n\f\r"\\', 'btnfr"\\', strict=True)}


def java_bool(value: bool) -> str:
    return "true" if value else "false"


def java_double(value: float) -> str:
    """The text of Java's ``Double.toString``: plain from 0.001 to 10,000,000, else with an exponent."""
    if not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    negative, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    # The text means text[0].text[1:] x 10^exponent.
    exponent = exponent + len(digits) - 1 if value else 0
    sign = "-" if negative else ""
    if not -3 <= exponent < 7:
        return f"{sign}{text[0]}.{text[1:] or '0'}E{exponent}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{text}"
    text = text.ljust(exponent + 2, "0")
    return f"{sign}{text[: exponent + 1]}.{text[exponent + 1 :]}"


def json_text(value: Value) -> str:
    """``value`` as Jackson's JSON: no spaces, bytes in base64, control characters escaped in capitals."""
    match value:
        case None:
            return "null"
        case bool():
            return java_bool(value)
        case int():
            return str(value)
        case float():
            return java_double(value) if math.isfinite(value) else _quoted(java_double(value))
        case str():
            return _quoted(value)
        case Uuid():
            return _quoted(str(value))
        case bytes() | memoryview():
            return _quoted(b64encode(value).decode())
        case list():
            return f"[{','.join([json_text(element) for element in value])}]"
        case _:
            return f"{{{','.join([f'{_quoted(name)}:{json_text(inner)}' for name, inner in value.items()])}}}"


def _quoted(text: str) -> str:
    return f'"{text.translate(_JSON_ESCAPES)}"'
