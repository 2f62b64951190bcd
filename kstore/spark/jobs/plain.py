"""A job's items and results as JSON, by the types that its function declares: nothing else is ever created from them.

    int, str, bool, float, None, Literal    themselves
    Path                                    a text
    list, tuple, Sequence                   a list
    dict                                    a list of pairs
    NamedTuple, dataclass                   a list of its fields, in order
    Any, or nothing declared                a JSON value; a tuple becomes a list

``item_type(work)`` and ``result_type(work)`` are what a function declares; ``to_json`` and ``from_json`` are each
other's inverse. No I/O here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from inspect import signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from kstore.errors import ConfigError

SIMPLE = (int, str, bool, float, NoneType)


def item_type(work: Callable[..., Any]) -> Any:
    """The type of the first argument of ``work`` that is not bound yet."""
    bound = 0
    while isinstance(work, partial):
        bound += len(work.args)
        work = work.func
    names = list(signature(work).parameters)
    return get_type_hints(work).get(names[bound], Any)


def result_type(work: Callable[..., Any]) -> Any:
    while isinstance(work, partial):
        work = work.func
    return get_type_hints(work).get("return", Any)


def to_json(value: Any, kind: Any) -> str:
    """Raises: ConfigError for a value that is not of ``kind``, or that has no form in JSON."""
    return json.dumps(_plain(value, kind), separators=(",", ":"))


def from_json(text: str, kind: Any) -> Any:
    """Raises: ConfigError for a text that is not of ``kind``."""
    return _value(json.loads(text), kind)


def _plain(value: Any, kind: Any) -> Any:
    if kind is Any:
        return _any(value)
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return None if value is None else _plain(value, _optional(kind))
    if kind in SIMPLE or origin is Literal:
        return value if _is_simple(value, kind) else _unexpected(value, kind)
    if kind is Path:
        return str(value)
    if origin is dict:
        key_kind, value_kind = get_args(kind)
        return [[_plain(key, key_kind), _plain(item, value_kind)] for key, item in value.items()]
    if origin is not None:
        return [_plain(item, item_kind) for item, item_kind in _with_kinds(value, kind)]
    if not isinstance(value, kind):
        _unexpected(value, kind)
    return [_plain(getattr(value, name), field_kind) for name, field_kind in _fields(kind)]


def _value(plain: Any, kind: Any) -> Any:
    if kind is Any:
        return plain
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return None if plain is None else _value(plain, _optional(kind))
    if kind in SIMPLE or origin is Literal:
        return plain if _is_simple(plain, kind) else _unexpected(plain, kind)
    if kind is Path:
        return Path(plain) if isinstance(plain, str) else _unexpected(plain, kind)
    if not isinstance(plain, list):
        _unexpected(plain, kind)
    if origin is dict:
        key_kind, value_kind = get_args(kind)
        return {_value(key, key_kind): _value(item, value_kind) for key, item in plain}
    if origin is not None:
        found = [_value(item, item_kind) for item, item_kind in _with_kinds(plain, kind)]
        return found if origin is list else tuple(found)
    names_and_kinds = _fields(kind)
    if len(plain) != len(names_and_kinds):
        _unexpected(plain, kind)
    return kind(*(_value(item, field_kind) for item, (_, field_kind) in zip(plain, names_and_kinds, strict=True)))


def _any(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_any(item) for item in value]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: _any(item) for name, item in value.items()}
    _unexpected(value, Any)


def _is_simple(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    return type(value) is kind or (kind is float and type(value) is int)


def _optional(kind: Any) -> Any:
    """The type of ``X | None`` that is not None; there is exactly one."""
    (found,) = (each for each in get_args(kind) if each is not NoneType)
    return found


def _with_kinds(values: Sequence[Any], kind: Any) -> Iterable[tuple[Any, Any]]:
    """The items of a list or tuple, each with its type."""
    kinds = get_args(kind)
    if get_origin(kind) is tuple and kinds[-1] is not Ellipsis:
        if len(values) != len(kinds):
            _unexpected(values, kind)
        return zip(values, kinds, strict=True)
    return ((value, kinds[0]) for value in values)


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    """The fields of a NamedTuple or dataclass, in order, each with its type."""
    hints = get_type_hints(kind)
    if is_dataclass(kind):
        names: Iterable[str] = [field.name for field in fields(kind)]
    elif isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = kind._fields
    else:
        raise TypeError(f"{kind} is no type that a job may declare")
    return tuple((name, hints[name]) for name in names)


def _unexpected(value: Any, kind: Any) -> NoReturn:
    # Never the value itself: a storage option may be a password.
    expected = "text, a number, true, false, null, or lists and objects of these" if kind is Any else str(kind)
    raise ConfigError(
        f"a value of type {type(value).__name__} cannot travel between driver and executors, expected {expected}"
    )
