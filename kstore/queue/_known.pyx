# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""The loops over the items of one call in what is known of a queue's items: claims, acks, and what is forgotten of the
done ones. No I/O here.

``known`` is a ``KnownItems``, which says what its tables mean, and has the rules: an item that needs a decision is left to
it. A signal is served only in such a call, and a refused allocation may end a loop anywhere: to call it again does the
rest.
"""

from bisect import bisect_right

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport int64_t, uint8_t, uint64_t

from kstore.queue.leases import Claim, Retry

cdef extern from "Python.h":
    # Borrowed references.
    PyObject* PyDict_GetItemWithError(object table, object key) except? NULL
    int PyDict_Next(object table, Py_ssize_t* at, PyObject** key, PyObject** value)

cdef enum:
    # The sizes of the head of a group of events, and of its rows: see ``events``.
    HEAD_SIZE = 5
    CLAIM_SIZE = 36
    ACKED_SIZE = 12
    # Indexes into the tuples.
    OWNER = 0
    EXPIRES_MS = 2
    DELIVERIES = 0

assert Claim._fields == ("owner", "deliveries", "expires_ms", "claimed_ms")
assert Retry._fields == ("deliveries", "due_ms")


def apply_plain(known, bytes value not None):
    """Applies a record of the journal that is one group of claims or of acks. False, and nothing is done, if it is
    anything else."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(value)
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(value)
    cdef Py_ssize_t count
    if size < HEAD_SIZE:
        return False
    count = <Py_ssize_t>big_endian(data + 1, 4)
    if data[0] == c"C" and count * CLAIM_SIZE == size - HEAD_SIZE:
        apply_claims(known, data + HEAD_SIZE, count)
    elif data[0] == c"A" and count * ACKED_SIZE == size - HEAD_SIZE:
        apply_acks(known, data + HEAD_SIZE, count)
    else:
        return False
    return True


cdef int apply_claims(known, const uint8_t* row, Py_ssize_t count) except -1:
    cdef int64_t floor = known.floor, offset, deliveries, now_ms, expires_ms, highest = -1
    cdef int64_t claim_deliveries = -1, claim_now_ms = 0, claim_expires_ms = 0
    cdef uint64_t owner, claim_owner = 0
    cdef set done = known.done
    cdef list borders = known.done_runs.borders
    cdef dict claims = known.claims, retries = known.retries, waits = known._waits
    cdef Py_ssize_t at
    cdef PyObject* found
    leases, claim, retry = known.leases, None, None
    for at in range(count):
        highest = max(highest, <int64_t>big_endian(row + CLAIM_SIZE * at, 8))
    note_stop(known, highest + 1)
    for at in range(count):
        offset = <int64_t>big_endian(row, 8)
        deliveries = <int64_t>big_endian(row + 8, 4)
        owner = big_endian(row + 12, 8)
        now_ms = <int64_t>big_endian(row + 20, 8)
        expires_ms = <int64_t>big_endian(row + 28, 8)
        row += CLAIM_SIZE
        key = offset
        if is_done(offset, key, floor, done, borders):
            continue
        found = PyDict_GetItemWithError(claims, key)
        if found != NULL:
            if field(found, EXPIRES_MS) > now_ms and <uint64_t><object>PyTuple_GET_ITEM(<object>found, OWNER) != owner:
                continue
        if key in waits or is_leased_by_other(leases, key, owner):
            known._claim(key, deliveries, owner, now_ms, expires_ms)
            continue
        # The items of one call differ in their offsets only.
        if (
            claim is None or deliveries != claim_deliveries or owner != claim_owner or now_ms != claim_now_ms
            or expires_ms != claim_expires_ms
        ):
            claim = Claim(owner, deliveries, expires_ms, now_ms)
            retry = Retry(deliveries, 0)
            claim_deliveries, claim_owner, claim_now_ms, claim_expires_ms = deliveries, owner, now_ms, expires_ms
        claims[key] = claim
        found = PyDict_GetItemWithError(retries, key)
        if found == NULL:
            retries[key] = retry
        elif field(found, DELIVERIES) < deliveries:
            retries[key] = Retry(deliveries, (<object>found).due_ms)
    return 0


cdef int apply_acks(known, const uint8_t* row, Py_ssize_t count) except -1:
    cdef int64_t first, stop
    cdef Py_ssize_t at
    for at in range(count):
        first = <int64_t>big_endian(row, 8)
        stop = first + <int64_t>big_endian(row + 8, 4)
        row += ACKED_SIZE
        note_stop(known, stop)
        if stop - first == 1 and not has_more(known):
            finish_each(known, (first,))
        else:
            known._acked(first, stop - first)
    return 0


cdef int note_stop(known, int64_t stop) except -1:
    if stop > <int64_t>known._known_stop:
        known._known_stop = stop
    return 0


cdef bint has_more(known) except -1:
    """Whether more than the tables of single items may name a done one: copies, or offsets that hold no item."""
    return bool(known.moved or known.unconfirmed or known._copies or known.absent)


def finish_all(known, offsets):
    """Marks items as done, and forgets everything else about them. False, and nothing is done, if copies are known, or
    offsets that hold no item."""
    if has_more(known):
        return False
    finish_each(known, offsets)
    return True


cdef int finish_each(known, offsets) except -1:
    cdef int64_t floor = known.floor
    cdef set done = known.done
    cdef list borders = known.done_runs.borders
    cdef Tables tables = Tables(known)
    for key in offsets:
        if <int64_t>key >= floor:
            if not (borders and bisect_right(borders, key) % 2):
                done.add(key)
            tables.forget(key)
    tables.end()
    if borders and <int64_t>borders[0] <= floor:
        known._advance()
        return 0
    key = floor
    while key in done:
        floor += 1
        after = floor
        # First: a refused allocation must not undo what is done.
        known.floor = after
        done.discard(key)
        key = after
    if borders and <int64_t>borders[0] <= floor:
        known._advance()
    elif <int64_t>known.position < floor:
        known.position = key
    return 0


def forget_run(known, first, stop):
    """Forgets everything about the items from ``first`` to below ``stop``, whatever their number, but that they are done.
    No copies may be known."""
    cdef Tables tables = Tables(known)
    if stop - first <= tables.size():
        for key in range(first, stop):
            tables.forget(key)
    else:
        for key in sorted({key for table in tables.all() for key in table if first <= key < stop}):
            tables.forget(key)
    tables.end()


def take_free(state, fresh, Py_ssize_t wanted, set taken not None, now, now_ms):
    """The next ``wanted`` items of ``fresh``, a deque, that may be delivered; those before them are removed from it, too.

    ``state`` is a ``QueueState``. ``taken``: these were taken from where they waited, because another process had leased
    and returned them.
    """
    cdef int64_t floor = state.floor, offset
    cdef set done = state.done, busy = state.busy
    cdef dict claims = state.claims, retries = state.retries, unconfirmed = state.unconfirmed
    cdef list borders = state.done_runs.borders
    cdef PyObject* claim
    cdef list found = []
    cdef Claimed elsewhere = Claimed(state)
    cdef double now_ms_monotonic = now * 1000
    while fresh and len(found) < wanted:
        item = fresh.popleft()
        key = item.offset
        offset = key
        if is_done(offset, key, floor, done, borders) or key in taken:
            continue
        if key in busy or key in unconfirmed or lease_of(state.leases, key) is not None:
            continue
        claim = PyDict_GetItemWithError(claims, key)
        if claim != NULL and field(claim, EXPIRES_MS) > now_ms_monotonic:
            elsewhere.add(key, claim)
            continue
        if key in retries and not state._is_free(key, now, now_ms):
            continue
        found.append(item)
    elsewhere.end()
    return found


def offer_known(state, records):
    """``QueueState.offer`` of records without a gap and without headers, of which some are known."""
    cdef int64_t floor = state.floor, offset
    cdef set done = state.done, busy = state.busy
    cdef dict claims = state.claims, retries = state.retries
    cdef list borders = state.done_runs.borders
    cdef Claimed elsewhere = Claimed(state)
    cdef PyObject* claim
    fresh = state.fresh
    for record in records:
        key = record.offset
        offset = key
        if key in retries:
            claim = PyDict_GetItemWithError(claims, key)
            if claim == NULL or key in busy or lease_of(state.leases, key) is not None:
                state.offer(record)
                continue
        else:
            claim = NULL
        # First: an item that is in no place is found again, and one in two places would be delivered twice.
        state.position = offset + 1
        if is_done(offset, key, floor, done, borders):
            continue
        if claim != NULL:
            elsewhere.add(key, claim)
        else:
            fresh.append(record)
    elsewhere.end()


cdef class Claimed:
    """Items that wait for the end of another process's lease."""

    cdef object _waiting
    cdef dict _until

    def __init__(self, state):
        self._waiting = state.waiting
        self._until = {}

    cdef int add(self, key, PyObject* claim) except -1:
        expires_ms = <object>PyTuple_GET_ITEM(<object>claim, EXPIRES_MS)
        cdef PyObject* keys = PyDict_GetItemWithError(self._until, expires_ms)
        if keys == NULL:
            self._until[expires_ms] = [key]
        else:
            (<list>keys).append(key)
        return 0

    cdef int end(self) except -1:
        for expires_ms, keys in self._until.items():
            self._waiting.put_all_claimed(keys, expires_ms)
        return 0


cdef class Tables:
    """What names single items, besides those that are done."""

    cdef object _known, _leases
    cdef dict _retries, _unnoted, _claims, _waits
    cdef set _busy
    # Those that wait.
    cdef list _waited

    def __init__(self, known):
        self._waited = []
        self._known = known
        self._leases = known.leases
        self._retries, self._unnoted, self._claims, self._waits = known.retries, known.unnoted, known.claims, known._waits
        self._busy = known.busy

    cdef tuple all(self):
        return self._retries, self._unnoted, self._claims, self._busy, self._waits

    cdef Py_ssize_t size(self):
        return len(self._retries) + len(self._unnoted) + len(self._claims) + len(self._busy) + len(self._waits)

    cdef int forget(self, key) except -1:
        if key in self._retries:
            del self._retries[key]
        if key in self._unnoted:
            del self._unnoted[key]
        if key in self._claims:
            lease = lease_of(self._leases, key)
            if lease is not None:
                self._leases.end(lease)
            del self._claims[key]
        self._busy.discard(key)
        if key in self._waits:
            self._waited.append(key)
        return 0

    cdef int end(self) except -1:
        if self._waited:
            self._known.waiting.discard_all(self._waited)
        return 0


cdef bint is_done(int64_t offset, key, int64_t floor, set done, list borders) except -1:
    return offset < floor or key in done or (bool(borders) and bisect_right(borders, key) % 2 == 1)


cdef bint is_leased_by_other(leases, key, uint64_t owner) except -1:
    lease = lease_of(leases, key)
    return lease is not None and <uint64_t>lease.owner != owner


cdef object lease_of(leases, key):
    """``Leases.of``."""
    cdef PyObject* seconds
    cdef PyObject* group
    cdef PyObject* found
    cdef Py_ssize_t at = 0
    while PyDict_Next(leases, &at, &seconds, &group):
        found = PyDict_GetItemWithError(<object>group, key)
        if found != NULL:
            return <object>found
    return None


cdef inline int64_t field(PyObject* row, Py_ssize_t at) except? -1:
    return <object>PyTuple_GET_ITEM(<object>row, at)


cdef inline uint64_t big_endian(const uint8_t* data, int size) noexcept:
    cdef uint64_t number = 0
    cdef int at
    for at in range(size):
        number = number << 8 | data[at]
    return number
