"""The page of a search: what was asked for, where, and what cannot be searched for. Pure, but for the list of logs."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urlencode

from kstore.errors import ConfigError
from kstore.rules.internal_topics import is_internal
from kstore.ui.places import Place, Places
from kstore.upkeep.search import FIELDS, Pattern

MODES = ("text", "regex", "hex")
TEXT_MAX = 1000


class Limits(NamedTuple):
    """Where a search ends at the latest."""

    records: int = 500
    size: int = 8 << 30
    seconds: float = 60.0


LIMITS = Limits()


class Asked(NamedTuple):
    """The fields of a form, as a client sent them."""

    text: str = ""
    within: str = ""
    mode: str = ""
    field: str = ""
    case: str = ""


class Wanted(NamedTuple):
    """What to search for and where, or why it cannot be done (``problem``). ``scope`` names the place."""

    asked: Asked
    scope: str
    places: list[Place]
    pattern: Pattern | None
    problem: str = ""


def wanted(asked: Asked, places: Places) -> Wanted | None:
    """What a form asks for; None if no such topic or log is there.

    Topics that Kafka and kstore use internally are searched if they are named.
    """
    found = _scope(asked.within, places)
    if found is None:
        return None
    scope, logs = found
    if not asked.text:
        return Wanted(asked, scope, logs, None)
    try:
        pattern = _pattern(asked)
        pattern.check()
    except ConfigError as error:
        return Wanted(asked, scope, logs, None, str(error))
    return Wanted(asked, scope, logs, pattern)


def _scope(within: str, places: Places) -> tuple[str, list[Place]] | None:
    if not within:
        return "all logs", [place for place in places.by_key.values() if not is_internal(place.topic)]
    parts = tuple(within.split("/"))
    if len(parts) == 2 and (members := places.by_topic.get((parts[0], parts[1]))):
        return f"topic {members[0].topic}", members
    if len(parts) == 3 and (place := places.by_key.get((parts[0], parts[1], parts[2]))):
        return place.name, [place]
    return None


def _pattern(asked: Asked) -> Pattern:
    """Raises: ConfigError."""
    if len(asked.text) > TEXT_MAX:
        raise ConfigError(f"{len(asked.text)} characters, expected at most {TEXT_MAX}")
    text = asked.text.encode("utf-8", "surrogatepass")
    if asked.mode == "hex":
        try:
            text = bytes.fromhex(asked.text)
        except ValueError:
            raise ConfigError(f"{asked.text!r} is not hexadecimal, expected pairs of digits") from None
    fields = (asked.field,) if asked.field in FIELDS else FIELDS
    return Pattern(text, is_regex=asked.mode == "regex", ignore_case=bool(asked.case), fields=fields)


def search_model(found: Wanted, total: int, limits: Limits) -> dict[str, Any]:
    """The page, from which a script asks for the events."""
    asked = found.asked
    query = {"q": asked.text, "in": asked.within, "mode": asked.mode, "field": asked.field, "case": asked.case}
    address = urlencode({name: value for name, value in query.items() if value}, errors="surrogatepass")
    return {
        **query,
        "mode": asked.mode if asked.mode in MODES else MODES[0],
        "field": asked.field if asked.field in FIELDS else "",
        "modes": list(MODES),
        "fields": list(FIELDS),
        "scope": found.scope,
        "scope_url": f"/logs/{asked.within}" if asked.within else "/",
        "logs": len(found.places),
        "bytes": total,
        "problem": found.problem,
        "query": address,
        "events": None if found.pattern is None else f"/search/events?{address}",
        "limits": limits._asdict(),
        "checked": {
            "level": "headers",
            "text": "Of what a search reads every byte was checked; damaged batches are left out and counted.",
        },
    }
