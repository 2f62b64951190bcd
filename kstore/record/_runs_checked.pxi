"""Batches that a lookup has checked: the next one reads and checks a piece of them. Part of _runs.pyx.

A piece holds whole records. Its CRC-32C is that of the batch up to the end of the piece: a lookup continues from the CRC
of the piece before it, so that the batch is checked and divided in one pass over its bytes.
"""

cdef enum:
    # A piece has at most this many bytes; a larger record is a piece of its own. The CRC's largest lanes read this
    # much at once, with little left.
    PIECE_BYTES = 3 * 5120 + 192
    # A smaller batch is read and checked whole in about the time that its header and a piece of it take.
    DIVIDED_BYTES_MIN = 1 << 15
    # A compressed batch of up to this size is read and checked whole, though its records are in memory.
    COMPRESSED_BYTES_CHECKED = 1 << 16
    # What a batch takes in memory, with its place in a dictionary, without pieces and records.
    CHECKED_BYTES = 512

cdef struct Piece:
    # Where it begins, in the batch or in the decompressed records, and the offset delta of its first record.
    uint32_t start
    int32_t first_delta
    # That of the batch from CRC_START up to the end of the piece.
    uint32_t crc


cdef bint pass_records_to(Walk* walk, const uint8_t* limit, bint with_all) noexcept nogil:
    """Passes the records that end at or before ``limit``; False if one of them cannot be right.

    ``with_all``: checks all fields of each. Otherwise only sizes: no offset may be missing.
    """
    cdef RecordView record
    cdef Place before
    if not with_all:
        return pass_sizes(walk, walk.count, limit)
    while walk.index < walk.count:
        note_place(&before, walk)
        if unlikely(not next_record(walk, &record)):
            return False
        if walk.at > limit:
            step_back(walk, &before)
            return True
    return True


cdef Py_ssize_t divide(Walk* walk, Piece* pieces, Py_ssize_t count_max, uint32_t* crc, bint with_all) noexcept nogil:
    """Divides the records of ``walk`` into pieces; returns how many, or 0 if the records cannot be right.

    ``crc`` is that of the bytes before the records, and then of all; NULL if it is not needed.
    """
    cdef RecordView record
    cdef const uint8_t* start
    cdef Piece* piece
    cdef Place before
    cdef Py_ssize_t count = 0
    while walk.index < walk.count:
        if unlikely(count == count_max):
            return 0
        piece = &pieces[count]
        start = walk.at
        piece.start = <uint32_t>(start - walk.buffer)
        piece.first_delta = walk.index
        if with_all:
            note_place(&before, walk)
            if unlikely(not next_record(walk, &record)):
                return 0
            piece.first_delta = record.offset_delta
            step_back(walk, &before)
        if unlikely(not pass_records_to(walk, start + min(<Py_ssize_t>PIECE_BYTES, walk.stop - start), with_all)):
            return 0
        if walk.at == start:
            # One record, which is larger. Its size is checked, or all of it.
            if unlikely(not (next_record(walk, &record) if with_all else pass_sizes(walk, walk.index + 1, walk.stop))):
                return 0
        if crc != NULL:
            crc[0] = piece.crc = small_crc(start, walk.at - start, crc[0])
        count += 1
    return count if walk.at == walk.stop else 0


@cython.final
@cython.no_gc
cdef class CheckedBatch:
    """What is known of a batch whose CRC was right: its header, and where its pieces are. Immutable.

    The records of a compressed batch are kept. ``position`` is the batch's in its file.
    """

    cdef readonly Py_ssize_t position
    cdef readonly Py_ssize_t size
    cdef readonly int64_t base_offset
    cdef readonly int64_t last_offset
    cdef readonly Py_ssize_t memory_bytes
    # (contents, place), by which it is found.
    cdef tuple key
    cdef uint8_t header[HEADER_SIZE]
    cdef uint32_t header_crc
    cdef Piece* pieces
    cdef Py_ssize_t piece_count
    # None unless the batch is compressed.
    cdef bytes payload
    # Where it is kept, NULL if it is not; and its neighbours in the order of use, which the cache holds.
    cdef PyObject* home
    cdef PyObject* newer
    cdef PyObject* older

    def __dealloc__(self):
        PyMem_RawFree(self.pieces)

    @property
    def piece_sizes(self):
        """The bytes of each piece."""
        cdef list sizes = [None] * self.piece_count
        for number in range(self.piece_count):
            sizes[number] = self.stop_of(number) - self.pieces[number].start
        return tuple(sizes)

    cdef inline uint32_t stop_of(self, Py_ssize_t number) noexcept:
        """Where a piece ends."""
        if number + 1 < self.piece_count:
            return self.pieces[number + 1].start
        return <uint32_t>(self.size if self.payload is None else PyBytes_GET_SIZE(self.payload))

    cdef inline Py_ssize_t piece_of(self, int64_t delta) noexcept:
        """The piece that holds offset delta ``delta``, if there is such a record; -1 if it is below the first one."""
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.piece_count
        cdef Py_ssize_t middle
        while low < high:
            middle = (low + high) // 2
            if self.pieces[middle].first_delta <= delta:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def record(self, source, int64_t target, array.array tally not None, bytes head not None=b"", Py_ssize_t at_head=0):
        """The Record with offset ``target``, read from ``source``; None if it does not exist. ``tally`` as in
        ``record_at``.

        ``head``, unless empty, was just read, and has the header at byte ``at_head``.
        Raises: CorruptRecordError if the bytes are not those that were checked; what ``source.pread`` raises.
        """
        cdef Py_ssize_t number = self.piece_of(target - self.base_offset)
        cdef bytes data
        cdef const uint8_t* at
        cdef Py_ssize_t size
        cdef bint has_head = PyBytes_GET_SIZE(head) > 0
        if not self.base_offset <= target <= self.last_offset:
            # Another one is there.
            raise changed()
        if number < 0:
            return None
        if self.payload is not None:
            if self.size <= COMPRESSED_BYTES_CHECKED:
                return self.record_in(source.pread(self.size, self.position), 0, target, tally)
            self.compare(head if has_head else source.pread(HEADER_SIZE, self.position), at_head)
            return self.kept_record(target, tally)
        size = self.stop_of(number) - self.pieces[number].start
        if number == 0 and not has_head:
            data = source.pread(HEADER_SIZE + size, self.position)
            self.compare(data, 0)
            if PyBytes_GET_SIZE(data) != HEADER_SIZE + size:
                raise changed()
            at = <const uint8_t*>PyBytes_AS_STRING(data) + HEADER_SIZE
        else:
            self.compare(head if has_head else source.pread(HEADER_SIZE, self.position), at_head)
            data = source.pread(size, self.position + self.pieces[number].start)
            if PyBytes_GET_SIZE(data) != size:
                raise changed()
            at = <const uint8_t*>PyBytes_AS_STRING(data)
        if small_crc(at, size, self.pieces[number - 1].crc if number else self.header_crc) != self.pieces[number].crc:
            raise changed()
        return self.record_of(at, number, target, tally)

    cdef uint32_t crc_by_package(self, view) except? 0:
        """The CRC of all pieces of the batch in ``view``, each computed by the package."""
        cdef Py_ssize_t number
        cdef uint32_t crc = self.header_crc
        for number in range(self.piece_count):
            crc = batch_crc(view[self.pieces[number].start : self.stop_of(number)], crc)
            self.pieces[number].crc = crc
        return crc

    cdef int compare(self, bytes data, Py_ssize_t at) except -1:
        """Raises: CorruptRecordError unless the header is at byte ``at`` of ``data``."""
        if data is None or not 0 <= at <= PyBytes_GET_SIZE(data) - HEADER_SIZE:
            raise changed()
        if memcmp(PyBytes_AS_STRING(data) + at, self.header, HEADER_SIZE) != 0:
            raise changed()
        return 0

    def record_in(self, bytes data not None, Py_ssize_t at, int64_t target, array.array tally not None):
        """``record`` of a compressed batch that is at byte ``at`` of ``data``. Raises: CorruptRecordError."""
        self.compare(data, at)
        if PyBytes_GET_SIZE(data) - at < self.size or not has_right_crc(data, at, self.size):
            raise changed()
        return self.kept_record(target, tally)

    def kept_record(self, int64_t target, array.array tally not None):
        """``record`` of a compressed batch, without a look at the file."""
        cdef Py_ssize_t number = self.piece_of(target - self.base_offset)
        if self.payload is None:
            raise ValueError("the records of a batch that is not compressed are not kept")
        if not self.base_offset <= target <= self.last_offset:
            raise changed()
        if number < 0:
            return None
        return self.record_of(
            <const uint8_t*>PyBytes_AS_STRING(self.payload) + self.pieces[number].start, number, target, tally
        )

    cdef Record record_of(self, const uint8_t* at, Py_ssize_t number, int64_t target, array.array tally):
        """The record in piece ``number``, which begins at ``at``, in memory that the caller holds."""
        cdef Head head
        cdef Walk walk
        read_head(self.header, &head)
        walk.buffer = walk.at = at
        walk.stop = at + (self.stop_of(number) - self.pieces[number].start)
        walk.count = head.record_count
        walk.last_offset_delta = head.last_offset_delta
        # Where no offset is missing, index and offset delta are the same.
        walk.index = self.pieces[number].first_delta if walk.count > walk.last_offset_delta else 0
        walk.previous_delta = self.pieces[number].first_delta - 1
        return record_of_walk(&walk, target, self.header, &head, tally)


cdef object changed():
    return CorruptRecordError("the batch is not the one that was checked")


cdef CheckedBatch described(bytes data, Py_ssize_t at, Head* head, Walk* walk, bytes payload, bint by_package):
    """The batch at byte ``at`` of ``data``, whose records ``walk`` begins; None if they cannot be right.

    ``payload``: the records of a compressed batch. Without it the CRC is checked too; ``by_package``: not here.
    """
    cdef const uint8_t* batch = <const uint8_t*>PyBytes_AS_STRING(data) + at
    cdef CheckedBatch checked
    cdef Piece* pieces
    cdef Py_ssize_t count
    cdef Py_ssize_t size = walk.stop - walk.at
    # Two pieces that follow each other hold more bytes than a piece may have.
    cdef Py_ssize_t count_max = 2 * (size // PIECE_BYTES) + 2
    cdef bint with_all = payload is not None or walk.count <= walk.last_offset_delta
    cdef uint32_t crc = small_crc(batch + CRC_START, HEADER_SIZE - CRC_START)
    cdef uint32_t header_crc = crc
    cdef uint32_t* crc_at = &crc if payload is None and not by_package else NULL
    pieces = <Piece*>PyMem_RawMalloc(count_max * sizeof(Piece))
    if pieces == NULL:
        return None
    if size >= SIZE_WITHOUT_GIL:
        with nogil:
            count = divide(walk, pieces, count_max, crc_at, with_all)
    else:
        count = divide(walk, pieces, count_max, crc_at, with_all)
    checked = CheckedBatch.__new__(CheckedBatch)
    checked.pieces = pieces
    checked.piece_count = count
    if count:
        pieces = <Piece*>PyMem_RawRealloc(pieces, count * sizeof(Piece))
        if pieces != NULL:
            checked.pieces = pieces
    memcpy(checked.header, batch, HEADER_SIZE)
    checked.header_crc = header_crc
    checked.size = head.size
    checked.base_offset = head.base_offset
    checked.last_offset = head.last_offset
    checked.payload = payload
    checked.memory_bytes = CHECKED_BYTES + count * <Py_ssize_t>sizeof(Piece)
    if payload is not None:
        checked.memory_bytes += PyBytes_GET_SIZE(payload)
    elif by_package:
        crc = checked.crc_by_package(memoryview(data)[at : at + head.size])
    if not count or payload is None and crc != big_endian_32(batch + 17):
        return None
    return checked


@cython.final
@cython.no_gc
cdef class CheckedMemory:
    """Keeps what was used last of the checked batches of several logs, in ``size_max`` bytes. Thread-safe.

    The interpreter's lock is held from the first step of a change to the last, and nothing in between runs other code.
    """

    cdef readonly Py_ssize_t size_max
    cdef readonly Py_ssize_t size
    # A batch in this order belongs to its home's dictionary, which keeps it alive.
    cdef PyObject* newest
    cdef PyObject* oldest
    cdef bint by_package

    def __cinit__(self, Py_ssize_t size_max, bint has_instruction=True):
        """``has_instruction``: if the processor has one for CRCs, it is used."""
        self.size_max = size_max
        self.by_package = not (has_instruction and HAS_INSTRUCTION)

    cdef void link(self, CheckedBatch checked) noexcept:
        """Makes it the one that was used last."""
        checked.newer = NULL
        checked.older = self.newest
        if self.newest != NULL:
            (<CheckedBatch>self.newest).newer = <PyObject*>checked
        else:
            self.oldest = <PyObject*>checked
        self.newest = <PyObject*>checked

    cdef void unlink(self, CheckedBatch checked) noexcept:
        if checked.newer != NULL:
            (<CheckedBatch>checked.newer).older = checked.older
        else:
            self.newest = checked.older
        if checked.older != NULL:
            (<CheckedBatch>checked.older).newer = checked.newer
        else:
            self.oldest = checked.newer
        checked.newer = checked.older = NULL

    def check(self):
        """Asserts the invariants."""
        cdef PyObject* at = self.oldest
        cdef PyObject* before = NULL
        cdef CheckedBatch checked
        cdef Py_ssize_t size = 0
        while at != NULL:
            checked = <CheckedBatch>at
            assert checked.older == before
            assert (<CheckedBatches>checked.home).batches[checked.key] is checked
            size += checked.memory_bytes
            before, at = at, checked.newer
        assert before == self.newest
        assert size == self.size <= self.size_max


@cython.final
@cython.no_gc
cdef class CheckedBatches:
    """The checked batches of one log, by what stands for the contents of a file and a place in it. Thread-safe.

    What a place is the caller decides: a position, or any other number that leads to one batch at a time.
    """

    cdef CheckedMemory memory
    cdef dict batches
    cdef bint is_closed

    def __cinit__(self, CheckedMemory memory not None):
        self.memory = memory
        self.batches = {}

    def __dealloc__(self):
        self.forget_all()

    def __len__(self):
        return len(self.batches)

    def find(self, contents, Py_ssize_t place):
        """The CheckedBatch that was kept with these, or None."""
        cdef CheckedBatch checked = self.batches.get((contents, place))
        if checked is not None and checked.home != NULL:
            self.memory.unlink(checked)
            self.memory.link(checked)
        return checked

    def drop(self, CheckedBatch checked not None):
        """Forgets a batch that is no longer what it was."""
        if checked.home != NULL:
            (<CheckedBatches>checked.home).take_out(checked)

    cdef int take_out(self, CheckedBatch checked) except -1:
        self.memory.unlink(checked)
        self.memory.size -= checked.memory_bytes
        checked.home = NULL
        # The last step: it may free what it holds.
        del self.batches[checked.key]
        return 0

    cdef int keep(self, CheckedBatch checked, object contents, Py_ssize_t place, Py_ssize_t position) except -1:
        """Keeps a batch, unless it would take most of the memory."""
        cdef CheckedBatch before
        checked.position = position
        checked.key = (contents, place)
        if self.is_closed or checked.memory_bytes > self.memory.size_max // 2:
            return 0
        before = self.batches.get(checked.key)
        if before is not None:
            self.take_out(before)
        self.batches[checked.key] = checked
        checked.home = <PyObject*>self
        self.memory.link(checked)
        self.memory.size += checked.memory_bytes
        while self.memory.size > self.memory.size_max:
            before = <CheckedBatch>self.memory.oldest
            (<CheckedBatches>before.home).take_out(before)
        return 0

    def close(self):
        """Forgets all of them, and keeps no other."""
        self.is_closed = True
        self.forget_all()

    cdef int forget_all(self) except -1:
        cdef CheckedBatch checked
        for checked in self.batches.values():
            self.memory.unlink(checked)
            self.memory.size -= checked.memory_bytes
            checked.home = NULL
        self.batches.clear()
        return 0

    def record_at(
        self,
        bytes data not None,
        Py_ssize_t at,
        int64_t target,
        array.array tally not None,
        contents,
        Py_ssize_t place,
        Py_ssize_t position,
    ):
        """As the function of that name; a batch that is not small is kept. It begins at ``position`` of its file."""
        cdef Head head
        cdef Walk walk
        cdef CheckedBatch checked = None
        cdef const uint8_t* batch
        cdef Py_ssize_t number
        if not is_plain_batch(data, at, target, &head):
            return None
        if head.size >= DIVIDED_BYTES_MIN:
            batch = <const uint8_t*>PyBytes_AS_STRING(data) + at
            if begin_records(&walk, batch, &head):
                checked = described(data, at, &head, &walk, None, self.memory.by_package)
        if checked is None:
            # Small, damaged, or one whose records do not fit together.
            return record_of_plain(data, at, target, &head, tally)
        self.keep(checked, contents, place, position)
        number = checked.piece_of(target - head.base_offset)
        return checked.record_of(batch + checked.pieces[number].start, number, target, tally) if number >= 0 else None

    def keep_payload(
        self,
        bytes data not None,
        Py_ssize_t at,
        bytes payload not None,
        contents,
        Py_ssize_t place,
        Py_ssize_t position,
    ):
        """Keeps a compressed batch, whose CRC is right and whose records are ``payload``, as ``record_at`` does.

        Returns the CheckedBatch, whether it is kept or not; None if the records cannot be right.
        """
        cdef Head head
        cdef Walk walk
        cdef CheckedBatch checked
        cdef Py_ssize_t size = PyBytes_GET_SIZE(payload)
        cdef const uint8_t* batch
        if not 0 <= at <= PyBytes_GET_SIZE(data) - HEADER_SIZE:
            raise ValueError(f"no header at byte {at} of {len(data)}")
        batch = <const uint8_t*>PyBytes_AS_STRING(data) + at
        if not read_head(batch, &head) or head.record_count > size // RECORD_SIZE_MIN:
            return None
        begin_records(&walk, batch, &head)
        walk.buffer = walk.at = <const uint8_t*>PyBytes_AS_STRING(payload)
        walk.stop = walk.at + size
        checked = described(data, at, &head, &walk, payload, False)
        if checked is not None:
            self.keep(checked, contents, place, position)
        return checked


forbid_new(CheckedBatch)
