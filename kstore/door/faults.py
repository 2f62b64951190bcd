"""``Faults``: what a door does wrong on purpose, for tests of Kafka's clients (``kstore.testing``)."""

from __future__ import annotations

import threading
import time
from difflib import get_close_matches
from typing import NamedTuple

from kstore.door import errors
from kstore.door.apis import Api, served
from kstore.door.call import Call, ConnectionEnded, Message
from kstore.door.reply import Reply
from kstore.door.served import Served
from kstore.door.waiting import Waiter
from kstore.errors import ConfigError

# A request that gets no answer looks this often whether it is still to get none; ``clear`` wakes it before.
LOOK_SECONDS = 60.0
# By their names in Kafka's definitions.
CODES: dict[str, int] = {
    name: code
    for name, code in vars(errors).items()
    if isinstance(code, int) and name.isupper() and code != errors.NONE
}


class _Places(NamedTuple):
    """One list of a request, and the list of its response that gives each of its elements an error.

    ``fields``: what identifies an element there, by its names in both; "" is the element itself.
    """

    asked: str
    answered: str
    fields: tuple[tuple[str, str], ...]
    # The same for the partitions of each element, which then have the errors.
    parts: _Places | None = None


def _named(asked: str, answered: str, name: str = "name", named: str = "name", parts: _Places | None = None) -> _Places:
    return _Places(asked, answered, ((name, named),), parts)


_PARTITIONS = _named("partitions", "partitions", "partitionIndex", "partitionIndex")
_RESOURCE = (("resourceType", "resourceType"), ("resourceName", "resourceName"))
# An API that is not here has one error for the whole answer, at its top.
PLACES: dict[str, tuple[_Places, ...]] = {
    "Produce": (
        _named("topicData", "responses", parts=_named("partitionData", "partitionResponses", "index", "index")),
    ),
    "Fetch": (
        _named(
            "topics", "responses", "topic", "topic", _named("partitions", "partitions", "partition", "partitionIndex")
        ),
    ),
    "ListOffsets": (_named("topics", "topics", parts=_PARTITIONS),),
    "OffsetForLeaderEpoch": (
        _named("topics", "topics", "topic", "topic", _named("partitions", "partitions", "partition", "partition")),
    ),
    "Metadata": (_named("topics", "topics"),),
    "CreateTopics": (_named("topics", "topics"),),
    "DeleteTopics": (_named("topics", "responses"), _named("topicNames", "responses", "")),
    "DeleteRecords": (_named("topics", "topics", parts=_PARTITIONS),),
    "CreatePartitions": (_named("topics", "results"),),
    "DescribeConfigs": (_Places("resources", "results", _RESOURCE),),
    "IncrementalAlterConfigs": (_Places("resources", "responses", _RESOURCE),),
    "FindCoordinator": (_named("coordinatorKeys", "coordinators", "", "key"),),
    "OffsetCommit": (_named("topics", "topics", parts=_PARTITIONS),),
    "OffsetFetch": (_named("groups", "groups", "groupId", "groupId"),),
    "DescribeGroups": (_named("groups", "groups", "", "groupId"),),
    "DeleteGroups": (_named("groupsNames", "results", "", "groupId"),),
}


class Faults:
    """Which requests a door fails, delays, leaves without an answer, or answers in vain. Thread-safe.

    An API is named as in Kafka's protocol: "Produce", "Fetch", "JoinGroup". A request takes the first fault that is
    meant for it, in the order of the methods here; a delay comes before any other.
    """

    def __init__(self, door: Served) -> None:
        self._door = door
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._failures: dict[str, list[int]] = {}
        self._losses: dict[str, int] = {}
        self._delays: dict[str, float] = {}
        self._silent: set[tuple[str, tuple[str, int] | None]] = set()
        self._waiting: set[Waiter] = set()

    def fail_next(self, api: str, error: str | int, *, count: int = 1) -> None:
        """Answers the next ``count`` requests with ``error``, without carrying them out.

        Args:
            api: the requests.
            error: Kafka's name of the error, such as "NOT_LEADER_OR_FOLLOWER", or its code.

        Raises: ConfigError for an unknown API or error.
        """
        code = error if isinstance(error, int) else _code(error)
        with self._lock:
            self._failures.setdefault(self._known(api), []).extend([code] * count)

    def lose_next_answer(self, api: str, *, count: int = 1) -> None:
        """Carries out the next ``count`` requests, and closes their connections instead of answering.

        Raises: ConfigError for an unknown API.
        """
        with self._lock:
            name = self._known(api)
            self._losses[name] = self._losses.get(name, 0) + count

    def stop_answering(self, api: str, partition: tuple[str, int] | None = None) -> None:
        """Leaves requests without an answer, and does not carry them out, until ``clear``.

        Args:
            api: the requests.
            partition: topic and number: only requests that name this partition, as those of Produce and Fetch do.

        Raises: ConfigError for an unknown API, or one whose requests name no partitions.
        """
        name = self._known(api)
        if partition is not None and all(places.parts is None for places in PLACES.get(name, ())):
            raise ConfigError(f"requests of {name} name no partitions")
        with self._lock:
            self._silent.add((name, partition))

    def delay(self, api: str, ms: float) -> None:
        """Lets each request wait before it is carried out; 0: no longer. Raises: ConfigError for an unknown API."""
        with self._lock:
            self._delays[self._known(api)] = ms / 1000

    def clear(self) -> None:
        """Ends all faults. Requests that ``stop_answering`` holds are carried out and answered."""
        with self._lock:
            self._failures.clear()
            self._losses.clear()
            self._delays.clear()
            self._silent.clear()
            waiting = list(self._waiting)
        for waiter in waiting:
            waiter.wake()

    def _known(self, api: str) -> str:
        names = [one.name for one in served(self._door)]
        if api not in names:
            near = get_close_matches(api, names, 1)
            raise ConfigError(f"api is {api!r}{f', did you mean {near[0]!r}?' if near else ''}: served are {names}")
        return api

    # --- the connection's thread ------------------------------------------------------------------------------------

    def answer(self, api: Api, call: Call) -> Message | Reply | None:
        """In place of ``api.handle``."""
        self._hold(api, call)
        with self._lock:
            failures = self._failures.get(api.name)
            code = failures.pop(0) if failures else None
            is_lost = code is None and self._losses.get(api.name, 0) > 0
            if is_lost:
                self._losses[api.name] -= 1
        if code is not None:
            return refusal(api.name, call.body, code)
        found = api.handle(call)
        if is_lost:
            raise ConnectionEnded(f"a test lost the answer to {api.name}")
        return found

    def _hold(self, api: Api, call: Call) -> None:
        """Waits as long as a delay or a silence is meant for this request. Raises: ConnectionEnded."""
        waiter = call.waiter()
        until = time.monotonic() + self._delays.get(api.name, 0.0)
        with self._lock:
            self._waiting.add(waiter)
        try:
            while True:
                is_silent = self._is_silent(api.name, call.body)
                if waiter.gone and (is_silent or time.monotonic() < until):
                    raise ConnectionEnded(f"a test left {api.name} without an answer")
                if not is_silent and time.monotonic() >= until:
                    return
                waiter.wait(time.monotonic() + LOOK_SECONDS if is_silent else until)
        finally:
            with self._lock:
                self._waiting.discard(waiter)

    def _is_silent(self, name: str, body: Message) -> bool:
        with self._lock:
            of_api = [partition for api, partition in self._silent if api == name]
        return None in of_api or any(partition in _partitions(name, body) for partition in of_api)


def refusal(name: str, body: Message, code: int) -> Message:
    """The answer to a request of API ``name`` that gives error ``code`` to all that it is about."""
    answer: Message = {"errorCode": code}
    for places in PLACES.get(name, ()):
        answer.setdefault(places.answered, []).extend(_refused(places, body, code))
    return answer


def _refused(places: _Places, asked: Message, code: int) -> list[Message]:
    answers = []
    for one in asked.get(places.asked) or ():
        answer: Message = {there: one[here] if here else one for here, there in places.fields}
        if places.parts is None:
            answer["errorCode"] = code
        else:
            answer[places.parts.answered] = _refused(places.parts, one, code)
        answers.append(answer)
    return answers


def _partitions(name: str, body: Message) -> set[tuple[str, int]]:
    [places] = PLACES[name]
    assert places.parts is not None  # checked by stop_answering
    [(topic, _)], [(number, _)] = places.fields, places.parts.fields
    return {(one[topic], part[number]) for one in body[places.asked] for part in one[places.parts.asked]}


def _code(name: str) -> int:
    if name not in CODES:
        near = get_close_matches(name.upper(), CODES, 1)
        raise ConfigError(f"error is {name!r}{f', did you mean {near[0]!r}?' if near else ', a name of Kafka'}")
    return CODES[name]
