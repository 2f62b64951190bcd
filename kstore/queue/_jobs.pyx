# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""The loops of a queue over the items of one call: records, jobs and their leases. No I/O here.

``leases`` are groups by length: ``{seconds: {offset: job}}``, as ``Leases`` has them. Groups in another order than that of
their deadlines, which are subclasses of ``dict``, are left to it.

Signals are served between the byte codes of Python functions, never in here: a call happens as a whole, or its docstring
says what a refused allocation leaves.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_CheckExact, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t

from kstore.record._codec cimport Record

cdef extern from "Python.h":
    # Borrowed references.
    PyObject* PyDict_GetItemWithError(object table, object key) except? NULL
    bint PyDict_CheckExact(object o)
    int PyDict_Next(object table, Py_ssize_t* at, PyObject** key, PyObject** value)

cdef enum:
    CREATE_TIME = 0
    # The sizes of the head of a group of events, and of a row in it: see ``events``.
    HEAD_SIZE = 5
    ROW_SIZE = 12
    CLAIM_SIZE = 36

# The most items of one row.
cdef int64_t COUNT_MAX = 0xFFFFFFFF
# A dict keeps the places of what was removed until an insertion moves it, and each look for its first entry passes all of
# them. Where there are this many, the group is copied: so a look costs the same however many leases have ended.
cdef Py_ssize_t PASSED_MAX = 1024


cdef class LeasedRecord:
    """The fields of a ``Job``, which says what they mean."""

    cdef readonly object _queue
    cdef readonly Record record
    cdef readonly object offset
    cdef readonly object delivery_count
    cdef public object seconds
    cdef public object deadline
    cdef readonly object thread
    cdef public object owner
    cdef public bint is_open

    def __init__(self, queue, Record record not None, delivery_count, seconds, deadline, thread):
        self.fill(queue, record, delivery_count, seconds, deadline, thread)

    cdef int fill(self, queue, Record record, delivery_count, seconds, deadline, thread) except -1:
        self._queue = queue
        self.record = record
        self.offset = record.offset
        self.delivery_count = delivery_count
        self.seconds = seconds
        self.deadline = deadline
        self.thread = thread
        self.owner = 0
        self.is_open = True
        return 0


def made_records(int64_t first_offset, int64_t timestamp, keys, values):
    """The records that an append of these values and keys, lists or tuples, has made; None if some are not bytes.

    ``keys`` may be None. Raises: ValueError if their lengths differ.
    """
    cdef Py_ssize_t at, count = len(values)
    cdef Record record
    cdef list made = []
    if keys is not None and len(keys) != count:
        raise ValueError(f"{len(keys)} keys for {count} values")
    for at in range(count):
        value = values[at]
        key = None if keys is None else keys[at]
        if not ((value is None or PyBytes_CheckExact(value)) and (key is None or PyBytes_CheckExact(key))):
            return None
        record = Record.__new__(Record)
        record.offset = first_offset + at
        record.timestamp = timestamp
        record.timestamp_type_index = CREATE_TIME
        record.key = <bytes>key
        record.value = <bytes>value
        record.stored_headers = ()
        record.leader_epoch = -1
        made.append(record)
    return made


def new_jobs(type job_type not None, queue, records, seconds, deadline, thread):
    """A job for each of ``records``, which are delivered for the first time."""
    cdef LeasedRecord job
    cdef list made = []
    for record in records:
        job = <LeasedRecord?>job_type.__new__(job_type)
        job.fill(queue, <Record?>record, 1, seconds, deadline, thread)
        made.append(job)
    return made


def lease_first(type job_type not None, queue, fresh, leases, seconds, now, thread):
    """Leases the first item of ``fresh``, wholly or not at all; None if ``fresh`` is empty or a lease may be over."""
    cdef LeasedRecord job
    cdef PyObject* found
    cdef PyObject* key
    cdef Py_ssize_t group_at = 0
    if not fresh:
        return None
    while PyDict_Next(leases, &group_at, &key, &found):
        if not PyDict_CheckExact(<object>found):
            return None
        first = first_of(leases, <object>key, <object>found)
        if first is not None and (<LeasedRecord?>first).deadline <= now:
            return None
    found = PyDict_GetItemWithError(leases, seconds)
    if found == NULL:
        leases[seconds] = group = {}
    else:
        group = <object>found
    job = <LeasedRecord?>job_type.__new__(job_type)
    job.fill(queue, <Record?>fresh[0], 1, seconds, now + seconds, thread)
    (<dict>group)[job.offset] = job
    fresh.popleft()
    return job


def lease_all(dict group not None, jobs):
    """Adds leases of the group's length that begin now; a refused allocation may leave some of them."""
    for job in jobs:
        group[job.offset] = job


def claim_values(bytes kind not None, list jobs not None, owner, now_ms, expires_ms, Py_ssize_t row_count_max):
    """A claim of each of ``jobs``, in groups of events of ``kind``, a byte."""
    cdef LeasedRecord job
    cdef Py_ssize_t at = 0, end = len(jobs), count
    cdef uint64_t owner_number = owner
    cdef int64_t now_number = now_ms, expires_number = expires_ms, deliveries
    cdef uint8_t* data
    cdef list groups = []
    cdef bytearray rows
    if len(kind) != 1 or row_count_max < 1:
        raise ValueError(f"a group of up to {row_count_max} events of kind {kind!r}")
    while at < end:
        count = min(end - at, row_count_max)
        rows = bytearray(HEAD_SIZE + CLAIM_SIZE * count)
        data = <uint8_t*>PyByteArray_AS_STRING(rows)
        data[0] = <uint8_t>kind[0]
        put_big_endian(data + 1, count, 4)
        data += HEAD_SIZE
        for _ in range(count):
            job = <LeasedRecord?>jobs[at]
            deliveries = job.delivery_count
            if not 0 <= deliveries <= COUNT_MAX:
                raise OverflowError(f"{deliveries} deliveries, expected up to {COUNT_MAX}")
            put_big_endian(data, <uint64_t>job.record.offset, 8)
            put_big_endian(data + 8, <uint64_t>deliveries, 4)
            put_big_endian(data + 12, owner_number, 8)
            put_big_endian(data + 20, <uint64_t>now_number, 8)
            put_big_endian(data + 28, <uint64_t>expires_number, 8)
            data += CLAIM_SIZE
            at += 1
        groups.append(bytes(rows))
    return groups


def owned_jobs(list jobs not None, dict claims not None, owner):
    """Those of ``jobs`` that ``claims`` says ``owner`` has; it is noted in them."""
    cdef LeasedRecord job
    cdef PyObject* claim
    cdef list owned = []
    for each in jobs:
        job = <LeasedRecord?>each
        claim = PyDict_GetItemWithError(claims, job.offset)
        if claim != NULL and (<object>claim).owner == owner:
            job.owner = owner
            owned.append(job)
    return owned


cdef object first_of(leases, seconds, group):
    """The lease of ``group`` that ends first, or None."""
    cdef PyObject* key
    cdef PyObject* value
    cdef Py_ssize_t at = 0
    cdef dict copy
    if not PyDict_CheckExact(group):
        return next(iter(group.values()), None)
    # An empty one too may have many places of what was removed.
    if not group or not PyDict_Next(group, &at, &key, &value):
        return None
    first = <object>value
    if at > PASSED_MAX:
        copy = {}
        copy.update(group)
        leases[seconds] = copy
    return first


cdef list over_groups(leases, now):
    """The groups whose first lease is over."""
    cdef list found = []
    for seconds, group in list(leases.items()):
        first = first_of(leases, seconds, group)
        if first is not None and first.deadline <= now:
            found.append(leases[seconds])
    return found


def first_leases(leases):
    """From each group the lease that ends first."""
    cdef list found = []
    for seconds, group in list(leases.items()):
        first = first_of(leases, seconds, group)
        if first is not None:
            found.append(first)
    return found


def over_leases(leases, now, Py_ssize_t count_max):
    """The leases whose deadline has passed at ``now``, group by group; at most ``count_max``."""
    cdef list found = []
    for group in over_groups(leases, now):
        for lease in group.values():
            # If a lease still runs, so do all after it.
            if len(found) == count_max or lease.deadline > now:
                break
            found.append(lease)
    return found


def end_over(leases, list over not None):
    """Ends the leases that ``over_leases`` has just found."""
    for lease in over:
        group = leases.get(lease.seconds)
        if group is not None and PyDict_CheckExact(group) and group.get(lease.offset) is lease:
            del group[lease.offset]
            if not group and len(leases) > 1:
                del leases[lease.seconds]
        else:
            leases.end(lease)


def count_over(leases, now):
    """How many leases have a deadline that has passed at ``now``."""
    cdef Py_ssize_t count = 0
    for group in over_groups(leases, now):
        for lease in group.values():
            if lease.deadline > now:
                break
            count += 1
    return count


cdef dict group_of(leases, LeasedRecord job):
    """The group that has the job, or None."""
    cdef PyObject* group = PyDict_GetItemWithError(leases, job.seconds)
    cdef PyObject* found
    if group == NULL or not PyDict_CheckExact(<object>group):
        return None
    found = PyDict_GetItemWithError(<object>group, job.offset)
    return <dict>group if found == <PyObject*>job else None


def held_offsets(leases, list jobs not None):
    """The offsets of ``jobs``, increasing; None if one is not open, not leased, or there twice."""
    cdef LeasedRecord job
    cdef int64_t offset, last = -1
    cdef bint is_sorted = True
    cdef list offsets = []
    for each in jobs:
        job = <LeasedRecord?>each
        if not job.is_open or group_of(leases, job) is None:
            return None
        offset = job.record.offset
        is_sorted &= offset > last
        last = offset
        offsets.append(job.offset)
    if is_sorted:
        return offsets
    return sorted(offsets) if len(set(offsets)) == len(offsets) else None


def done_if_held(leases, LeasedRecord job not None, bytes kind not None):
    """What ``encode_runs`` makes of the job's offset, if the job is open and leased as ``held_offsets`` wants it; else
    None."""
    cdef uint8_t data[HEAD_SIZE + ROW_SIZE]
    if not job.is_open or group_of(leases, job) is None:
        return None
    data[0] = <uint8_t>kind[0]
    put_big_endian(data + 1, 1, 4)
    put_big_endian(data + HEAD_SIZE, <uint64_t>job.record.offset, 8)
    put_big_endian(data + HEAD_SIZE + 8, 1, 4)
    return PyBytes_FromStringAndSize(<char*>data, HEAD_SIZE + ROW_SIZE)


def end_all(leases, list jobs not None):
    """Ends the leases of ``jobs``, of which ``held_offsets`` has just found the offsets. It allocates nothing."""
    for job in jobs:
        end_lease(leases, <LeasedRecord?>job)


def end_one(leases, LeasedRecord job not None):
    """``end_all`` of one job."""
    end_lease(leases, job)


cdef int end_lease(leases, LeasedRecord job) except -1:
    cdef dict group = group_of(leases, job)
    if group is not None:
        del group[job.offset]
        if not group and len(leases) > 1:
            del leases[job.seconds]
    return 0


def close_all(list jobs not None):
    """Notes that ``jobs`` were acked."""
    for job in jobs:
        (<LeasedRecord?>job).is_open = False


def encode_runs(bytes kind not None, list offsets not None, Py_ssize_t row_count_max):
    """Increasing ``offsets`` as runs in groups of events of ``kind``, a byte whose rows are (first int64, count uint32)."""
    cdef int64_t first, count, offset
    cdef Py_ssize_t at = 0, end = len(offsets), row_count
    cdef uint8_t* data
    cdef list groups = []
    cdef bytearray rows
    if len(kind) != 1 or row_count_max < 1:
        raise ValueError(f"a group of up to {row_count_max} events of kind {kind!r}")
    while at < end:
        # Each run takes one offset at least.
        rows = bytearray(HEAD_SIZE + ROW_SIZE * min(end - at, row_count_max))
        data = <uint8_t*>PyByteArray_AS_STRING(rows) + HEAD_SIZE
        row_count = 0
        while at < end and row_count < row_count_max:
            first = offsets[at]
            count = 1
            at += 1
            while at < end and count < COUNT_MAX:
                offset = offsets[at]
                if offset != first + count:
                    break
                count += 1
                at += 1
            put_big_endian(data, <uint64_t>first, 8)
            put_big_endian(data + 8, <uint64_t>count, 4)
            data += ROW_SIZE
            row_count += 1
        data = <uint8_t*>PyByteArray_AS_STRING(rows)
        data[0] = <uint8_t>kind[0]
        put_big_endian(data + 1, <uint64_t>row_count, 4)
        groups.append(PyBytes_FromStringAndSize(<char*>data, HEAD_SIZE + ROW_SIZE * row_count))
    return groups


cdef inline void put_big_endian(uint8_t* data, uint64_t number, int size) noexcept:
    cdef int at
    for at in range(size - 1, -1, -1):
        data[at] = <uint8_t>(number & 0xFF)
        number >>= 8
