"""What recovery notes of a run: index entries, leader epochs, and what became of producers. Part of _runs.pyx.

Each function passes over the headers of batches that were checked, and checks their sizes once more on the way.
"""

from kstore.record.batch import SEQUENCE_COUNT as _SEQUENCE_COUNT

cdef enum:
    # How many of a producer's batches are remembered (rules.sequence.REMEMBERED_MAX).
    REMEMBERED_MAX = 5
    # Also no timestamp.
    NO_OFFSET = -1

cdef int64_t SEQUENCE_COUNT = _SEQUENCE_COUNT

IndexNotes = namedtuple(
    "IndexNotes", "entries first_timestamp max_timestamp offset_of_max_timestamp since_entry", module=__name__
)


cdef inline const uint8_t* next_head(const uint8_t* at, const uint8_t* stop, Head* head) except NULL:
    """Reads the header at ``at``; returns where its batch ends."""
    if unlikely(stop - at < HEADER_SIZE or not read_head(at, head) or head.size > stop - at):
        raise CorruptRecordError("a batch changed while it was read")
    return at + head.size


def index_notes(
    Run run not None,
    int64_t max_timestamp,
    int64_t offset_of_max_timestamp,
    int64_t since_entry,
    int64_t interval_bytes,
):
    """IndexNotes of a run's batches: which of them get an index entry (``SegmentTail.note``).

    ``entries`` is an ``array("q")`` of rows of four: the last offset of a batch, its position, and the segment's
    greatest timestamp up to it with the last offset of the batch that first had it. ``first_timestamp`` is the greatest
    one of the first batch. The other fields continue the arguments.

    Args:
        max_timestamp, offset_of_max_timestamp: of the segment so far.
        since_entry: bytes from the last entry, or the segment's start, to the run.
        interval_bytes: the next batch gets an entry once more bytes than these have passed.
    """
    cdef Head head
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(run.data) + run.start
    cdef const uint8_t* stop = <const uint8_t*>PyBytes_AS_STRING(run.data) + run.stop
    cdef const uint8_t* first = at
    cdef const uint8_t* following
    cdef int64_t timestamp, first_timestamp = -1
    cdef int64_t position = run.position + run.start
    cdef array.array entries = array.array("q")
    cdef long long row[4]
    while at < stop:
        following = next_head(at, stop, &head)
        timestamp = <int64_t>big_endian_64(at + 35)
        if timestamp > max_timestamp:
            max_timestamp = timestamp
            offset_of_max_timestamp = head.last_offset
        if at == first:
            first_timestamp = timestamp
        if since_entry > interval_bytes:
            row[0] = head.last_offset
            row[1] = position
            row[2] = max_timestamp
            row[3] = offset_of_max_timestamp
            array.extend_buffer(entries, <char*>row, 4)
            since_entry = 0
        since_entry += head.size
        position += head.size
        at = following
    return IndexNotes(entries, first_timestamp, max_timestamp, offset_of_max_timestamp, since_entry)


def epoch_starts(Run run not None, int64_t latest):
    """(leader epoch, base offset) of each batch whose epoch is above ``latest`` and those before it."""
    cdef Head head
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(run.data) + run.start
    cdef const uint8_t* stop = <const uint8_t*>PyBytes_AS_STRING(run.data) + run.stop
    cdef const uint8_t* following
    cdef int64_t epoch
    cdef list found = []
    while at < stop:
        following = next_head(at, stop, &head)
        epoch = <int32_t>big_endian_32(at + 12)
        if epoch > latest:
            latest = epoch
            found.append((epoch, head.base_offset))
        at = following
    return found


@cython.final
@cython.no_gc
cdef class ProducerNotes:
    """What is known of a producer at a place in a run (``rules.sequence.KnownProducer``)."""

    cdef int64_t producer_id
    cdef int64_t timestamp
    cdef int64_t transaction_offset
    # The last batches of this epoch, the newest in slot (count - 1) % REMEMBERED_MAX.
    cdef int64_t last_sequence[REMEMBERED_MAX]
    cdef int64_t last_offset[REMEMBERED_MAX]
    cdef int64_t offset_delta[REMEMBERED_MAX]
    cdef int64_t max_timestamp[REMEMBERED_MAX]
    cdef Py_ssize_t count
    cdef int32_t coordinator_epoch
    cdef int16_t epoch

    cdef void remember(self, int64_t sequence, int64_t offset, int64_t offset_delta, int64_t timestamp) noexcept:
        cdef Py_ssize_t slot = self.count % REMEMBERED_MAX
        self.last_sequence[slot] = sequence
        self.last_offset[slot] = offset
        self.offset_delta[slot] = offset_delta
        self.max_timestamp[slot] = timestamp
        self.count += 1

    cdef void enter(self, const uint8_t* batch) noexcept:
        """Comes to a batch: what is remembered of another epoch is forgotten."""
        cdef int16_t epoch = <int16_t>(<uint32_t>batch[51] << 8 | batch[52])
        if epoch != self.epoch:
            self.epoch = epoch
            self.count = 0
        self.timestamp = <int64_t>big_endian_64(batch + 35)

    cdef tuple known(self):
        cdef list batches = []
        cdef Py_ssize_t number, slot
        for number in range(max(self.count - REMEMBERED_MAX, 0), self.count):
            slot = number % REMEMBERED_MAX
            batches.append(
                (self.last_sequence[slot], self.last_offset[slot], self.offset_delta[slot], self.max_timestamp[slot])
            )
        return (
            self.producer_id, self.epoch, batches, self.timestamp, self.coordinator_epoch, self.transaction_offset
        )


cdef ProducerNotes producer_notes(dict changed, dict producers, int64_t producer_id):
    """The notes of a producer, which become part of ``changed``; at first what ``producers`` has."""
    cdef ProducerNotes notes = changed.get(producer_id)
    if notes is not None:
        return notes
    notes = ProducerNotes.__new__(ProducerNotes)
    notes.producer_id = producer_id
    known = producers.get(producer_id)
    if known is None:
        notes.epoch = notes.coordinator_epoch = -1
        notes.timestamp = notes.transaction_offset = NO_OFFSET
    else:
        _, notes.epoch, batches, notes.timestamp, notes.coordinator_epoch, notes.transaction_offset = known
        for sequence, offset, offset_delta, timestamp in batches:
            notes.remember(sequence, offset, offset_delta, timestamp)
    changed[producer_id] = notes
    return notes


cdef enum:
    NO_MARKER = -1
    ABORT = 0
    COMMIT = 1
    UNREADABLE = 2


cdef int read_marker(const uint8_t* batch, Head* head, int32_t* coordinator_epoch) noexcept nogil:
    """The marker in a control batch (``control.parse_end_transaction_marker`` of its first record)."""
    cdef Walk walk
    cdef RecordView record
    cdef int16_t kind
    if not begin_records(&walk, batch, head):
        return UNREADABLE
    if walk.count == 0:
        return NO_MARKER
    if not next_record(&walk, &record) or record.key_size < 4 or record.key[0] & 0x80:
        return UNREADABLE
    kind = <int16_t>(<uint32_t>record.key[2] << 8 | record.key[3])
    if kind != ABORT and kind != COMMIT:
        return NO_MARKER
    if record.value_size < 6 or record.value[0] & 0x80:
        return UNREADABLE
    coordinator_epoch[0] = <int32_t>big_endian_32(record.value + 2)
    return kind


cdef object NONE_OPEN = object()


cdef bint has_ended(dict changed, tuple transaction) except -1:
    """Whether a transaction has ended in the run, by the notes of its producers; it was open."""
    cdef ProducerNotes notes = changed.get(transaction[1])
    return notes is not None and notes.transaction_offset != <int64_t>transaction[0]


def follow_producers(
    Run run not None, dict producers not None, open_transactions not None, Py_ssize_t first=-1, Py_ssize_t last=-1
):
    """What becomes of producers in a run, by the rules of ``ProducerState.apply``.

    Args:
        producers: the KnownProducer of each id before the run.
        open_transactions: an iterator over the first offset and the producer id of each transaction that is open before
            the run, the oldest first. It is asked for as many as the run needs.
        first, last: places in the run's data, for the batches between them alone.

    Returns three lists: the fields of the Producers that change, in the order of their first batches; the fields of the
    AbortedTransactions that end; and the control batches whose marker cannot be read, which change nothing.
    """
    cdef Head head
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(run.data)
    cdef const uint8_t* at = data + run.start
    cdef const uint8_t* stop = data + run.stop
    cdef const uint8_t* following
    cdef ProducerNotes notes = None
    cdef int64_t producer_id, sequence, first_offset
    cdef int32_t coordinator_epoch = -1
    cdef int kind
    cdef dict changed = {}
    cdef list known = []
    cdef list aborted = []
    cdef list unreadable = []
    # The transactions that began in the run, in order; ``begun_at``: the first that is still open.
    cdef list begun = []
    cdef Py_ssize_t begun_at = 0
    # The oldest of the others that is still open.
    cdef object oldest = None
    if last >= 0:
        if not run.start <= first <= last <= run.stop:
            raise ValueError(f"places {first} to {last}, expected {run.start} to {run.stop}")
        at = data + first
        stop = data + last
    while at < stop:
        following = next_head(at, stop, &head)
        producer_id = <int64_t>big_endian_64(at + 43)
        kind = NO_MARKER
        if producer_id >= 0 and head.attributes & ATTRIBUTE_CONTROL:
            kind = read_marker(at, &head, &coordinator_epoch)
            if kind == UNREADABLE:
                unreadable.append(parse_v2(run.data, at - data))
        if producer_id < 0 or (head.attributes & ATTRIBUTE_CONTROL and kind not in (ABORT, COMMIT)):
            at = following
            continue
        if notes is None or notes.producer_id != producer_id:
            notes = producer_notes(changed, producers, producer_id)
        notes.enter(at)
        if kind == NO_MARKER:
            sequence = <int32_t>big_endian_32(at + 53)
            if sequence >= 0:
                sequence = (sequence + head.last_offset_delta) % SEQUENCE_COUNT
            notes.remember(sequence, head.last_offset, head.last_offset_delta, notes.timestamp)
            if head.attributes & ATTRIBUTE_TRANSACTIONAL and notes.transaction_offset == NO_OFFSET:
                notes.transaction_offset = head.base_offset
                begun.append((head.base_offset, producer_id))
        else:
            notes.coordinator_epoch = coordinator_epoch
            first_offset = notes.transaction_offset
            if first_offset != NO_OFFSET:
                notes.transaction_offset = NO_OFFSET
                if kind == ABORT:
                    if oldest is None:
                        oldest = next(open_transactions, NONE_OPEN)
                    while oldest is not NONE_OPEN and has_ended(changed, oldest):
                        oldest = next(open_transactions, NONE_OPEN)
                    while begun_at < PyList_GET_SIZE(begun) and has_ended(changed, begun[begun_at]):
                        begun_at += 1
                    still_open = oldest
                    if begun_at < PyList_GET_SIZE(begun) and (oldest is NONE_OPEN or begun[begun_at] < oldest):
                        still_open = begun[begun_at]
                    stable = head.last_offset + 1 if still_open is NONE_OPEN else still_open[0]
                    aborted.append((producer_id, first_offset, head.last_offset, stable))
        at = following
    for each in changed.values():
        known.append((<ProducerNotes>each).known())
    return known, aborted, unreadable
