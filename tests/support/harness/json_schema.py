"""Checks values by a JSON schema: the part of the language that docs/commands.schema.json uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "null": (type(None),),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}
KNOWN = {
    "additionalProperties",
    "anyOf",
    "const",
    "deprecated",
    "description",
    "items",
    "minimum",
    "properties",
    "required",
    "type",
}


def problems(value: Any, schema: Mapping[str, Any], where: str = "$") -> Iterator[str]:
    """Where and how ``value`` differs from ``schema``."""
    assert schema.keys() <= KNOWN, f"{where}: {schema.keys() - KNOWN} is not part of what is checked here"
    if "anyOf" in schema:
        found = [list(problems(value, each, where)) for each in schema["anyOf"]]
        if all(found):
            yield from min(found, key=len)
        return
    if "const" in schema and value != schema["const"]:
        yield f"{where}: {value!r}, expected {schema['const']!r}"
    types = schema.get("type", list(TYPES))
    if not any(_is(value, name) for name in ([types] if isinstance(types, str) else types)):
        yield f"{where}: {value!r}, expected {types}"
        return
    if "minimum" in schema and value is not None and value < schema["minimum"]:
        yield f"{where}: {value}, expected at least {schema['minimum']}"
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from problems(item, schema.get("items", {}), f"{where}[{number}]")
    if isinstance(value, dict):
        yield from _of_object(value, schema, where)


def _of_object(value: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> Iterator[str]:
    named = schema.get("properties", {})
    for name in schema.get("required", []):
        if name not in value:
            yield f"{where}: no {name}"
    for name, item in value.items():
        others = schema.get("additionalProperties", True)
        if name in named:
            yield from problems(item, named[name], f"{where}.{name}")
        elif others is False:
            yield f"{where}: {name} is not in the schema"
        elif others is not True:
            yield from problems(item, others, f"{where}.{name}")


def _is(value: Any, name: str) -> bool:
    # A bool is an int to Python, not to JSON.
    return isinstance(value, TYPES[name]) and (not isinstance(value, bool) or name == "boolean")
