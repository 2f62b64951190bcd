"""The records of batches that hold one of some texts; the others make no objects. Part of _runs.pyx."""

cdef enum:
    TEXT_COUNT_MAX = 4
    # How much of the data tells which bytes of a text are rare in it.
    SAMPLE_BYTES = 1 << 14

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    typedef uint8_t kstore_block __attribute__((vector_size(16)));

    /* A text to look for. Letters of ASCII are lower case and match either case if "folds". */
    typedef struct {
        const uint8_t *text;
        size_t size;
        int folds;
        /* The two positions in the text whose bytes are compared first, and what makes those bytes lower case. */
        size_t positions[2];
        uint8_t masks[2];
    } kstore_text;

    static int kstore_is_letter(uint8_t byte) {
        return (uint8_t)((byte | 0x20) - 'a') < 26;
    }

    static int kstore_text_is_at(const uint8_t *at, const kstore_text *text) {
        if (!text->folds)
            return memcmp(at, text->text, text->size) == 0;
        for (size_t i = 0; i < text->size; i++)
            if ((kstore_is_letter(at[i]) ? at[i] | 0x20 : at[i]) != text->text[i])
                return 0;
        return 1;
    }

    /* Chooses the two bytes of the text that are rarest in a sample of the data. */
    static void kstore_choose_bytes(kstore_text *text, const uint8_t *sample, size_t size) {
        size_t counts[256] = {0};
        for (size_t i = 0; i < size; i++)
            counts[sample[i]]++;
        if (text->folds)
            for (int letter = 'a'; letter <= 'z'; letter++)
                counts[letter] += counts[letter - 0x20];
        size_t first = 0, second = text->size > 1;
        for (size_t i = 1; i < text->size; i++)
            if (counts[text->text[i]] < counts[text->text[first]]) {
                second = first;
                first = i;
            } else if (i != second && counts[text->text[i]] < counts[text->text[second]])
                second = i;
        text->positions[0] = first;
        text->positions[1] = second;
        for (int i = 0; i < 2; i++)
            text->masks[i] = text->folds && kstore_is_letter(text->text[text->positions[i]]) ? 0x20 : 0;
    }

    static inline kstore_block kstore_load(const uint8_t *at) {
        kstore_block block;
        memcpy(&block, at, sizeof block);
        return block;
    }

    /* Where the text first begins at or after "at", all of it before "stop"; NULL if nowhere. */
    static const uint8_t *kstore_find(const uint8_t *at, const uint8_t *stop, const kstore_text *text) {
        if (stop - at < (ptrdiff_t)text->size)
            return NULL;
        const uint8_t *last = stop - text->size;
        const size_t one = text->positions[0], two = text->positions[1];
        kstore_block bytes[2], masks[2], found[4], any;
        for (int i = 0; i < 2; i++) {
            memset(&bytes[i], text->text[text->positions[i]], sizeof bytes[i]);
            memset(&masks[i], text->masks[i], sizeof masks[i]);
        }
        for (; last - at >= 63; at += 64) {
            for (int i = 0; i < 4; i++)
                found[i] = (kstore_block)((kstore_load(at + 16 * i + one) | masks[0]) == bytes[0])
                    & (kstore_block)((kstore_load(at + 16 * i + two) | masks[1]) == bytes[1]);
            any = (found[0] | found[1]) | (found[2] | found[3]);
            uint64_t words[2];
            memcpy(words, &any, sizeof words);
            if (!(words[0] | words[1]))
                continue;
            uint8_t flags[64];
            memcpy(flags, found, sizeof flags);
            for (int i = 0; i < 64; i++)
                if (flags[i] && kstore_text_is_at(at + i, text))
                    return at + i;
        }
        for (; at <= last; at++)
            if ((at[one] | text->masks[0]) == text->text[one] && kstore_text_is_at(at, text))
                return at;
        return NULL;
    }
    """
    ctypedef struct kstore_text:
        const uint8_t* text
        size_t size
        bint folds
    void kstore_choose_bytes(kstore_text* text, const uint8_t* sample, size_t size) nogil
    const uint8_t* kstore_find(const uint8_t* at, const uint8_t* stop, const kstore_text* text) nogil


@cython.final
cdef class Texts:
    """Up to four texts, none of them empty, of which one is looked for in keys, values or headers. For one thread.

    Args:
        texts: bytes.
        folds: ASCII letters match either case.
        keys, values, headers: where to look.
    """

    cdef tuple texts
    cdef kstore_text wanted[TEXT_COUNT_MAX]
    cdef int count
    cdef bint in_keys
    cdef bint in_values
    cdef bint in_headers
    cdef bint is_prepared

    def __cinit__(self, texts, bint folds=False, bint keys=True, bint values=True, bint headers=True):
        cdef int number
        cdef list kept = []
        for text in texts:
            kept.append(bytes(text).lower() if folds else bytes(text))
        self.texts = tuple(kept)
        if not 0 < len(self.texts) <= TEXT_COUNT_MAX or not all(self.texts):
            raise ValueError(f"texts are {self.texts!r:.80}, expected 1 to {TEXT_COUNT_MAX}, none of them empty")
        self.count = len(self.texts)
        for number in range(self.count):
            self.wanted[number].text = <const uint8_t*>PyBytes_AS_STRING(self.texts[number])
            self.wanted[number].size = PyBytes_GET_SIZE(self.texts[number])
            self.wanted[number].folds = folds
        self.in_keys = keys
        self.in_values = values
        self.in_headers = headers

    cdef void prepare(self, const uint8_t* at, const uint8_t* stop) noexcept:
        """Looks at a sample of the data, once."""
        cdef int number
        if not self.is_prepared:
            self.is_prepared = True
            for number in range(self.count):
                kstore_choose_bytes(&self.wanted[number], at, min(stop - at, <Py_ssize_t>SAMPLE_BYTES))

    def find(self, bytes data not None, Py_ssize_t start=0, Py_ssize_t stop=PY_SSIZE_T_MAX):
        """The first position of one of them in bytes ``start`` to ``stop`` of ``data``, whatever they mean; -1 if none."""
        cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef const uint8_t* found
        cdef Py_ssize_t position = -1
        cdef int number
        stop = min(stop, PyBytes_GET_SIZE(data))
        if not 0 <= start <= stop:
            return -1
        self.prepare(at + start, at + stop)
        for number in range(self.count):
            found = kstore_find(at + start, at + stop, &self.wanted[number])
            if found != NULL and (position < 0 or found - at < position):
                position = found - at
        return position

    def records_of_run(
        self,
        Run run not None,
        int64_t first_offset,
        int64_t stop_offset,
        array.array tally not None,
        array.array aborted=None,
    ):
        """As ``Run.records``, without the records that hold none of them; the tally leaves out their batches."""
        cdef FoundRecords cursor = FoundRecords.__new__(FoundRecords)
        cursor.begin(run, first_offset, stop_offset, tally, aborted)
        cursor.look_for(self)
        return cursor

    def records_of_payload(
        self,
        bytes data not None,
        Py_ssize_t start,
        Py_ssize_t stop,
        int32_t count,
        int64_t base_offset,
        int64_t base_timestamp,
        int32_t last_offset_delta,
        bint is_append_time,
        int64_t append_time,
        int32_t leader_epoch,
        int64_t first_offset,
        int64_t stop_offset,
    ):
        """The records of one batch, as ``RecordCursor`` gives them, without those that hold none of them.

        Raises CorruptRecordError, for a batch that holds one of them in its bytes, before the iterator exists.
        """
        cdef FoundRecords cursor = FoundRecords.__new__(FoundRecords)
        if not 0 <= start <= stop <= PyBytes_GET_SIZE(data):
            raise ValueError(f"bytes {start} to {stop}, expected some of the {PyBytes_GET_SIZE(data)} there are")
        cursor.data = data
        cursor.at = cursor.stop = <const uint8_t*>PyBytes_AS_STRING(data) + stop
        cursor.next_offset = max(first_offset, base_offset)
        if self.find(data, start, stop) >= 0:
            check_records(data, start, stop, count, last_offset_delta)
            cursor.walk.buffer = <const uint8_t*>PyBytes_AS_STRING(data)
            cursor.walk.at = cursor.walk.buffer + start
            cursor.walk.stop = cursor.stop
            cursor.walk.count = count
            cursor.walk.previous_delta = -1
            cursor.walk.last_offset_delta = last_offset_delta
        cursor.base_offset = base_offset
        cursor.first_delta = first_offset - base_offset if first_offset > base_offset else 0
        cursor.stop_delta = stop_offset - base_offset if stop_offset > base_offset else 0
        cursor.leader_epoch = leader_epoch
        cursor.base_timestamp = base_timestamp
        cursor.append_time = append_time
        cursor.timestamp_type = LOG_APPEND_TIME if is_append_time else 0
        cursor.look_for(self)
        return cursor


@cython.final
@cython.no_gc
cdef class FoundRecords(RunCursor):
    """An iterator over the records that hold one of some Texts. Not thread-safe."""

    cdef Texts texts
    # By text: where it occurs next, of what was searched so far; NULL if nowhere.
    cdef const uint8_t* hits[TEXT_COUNT_MAX]

    cdef int look_for(self, Texts texts) except -1:
        cdef int number
        self.texts = texts
        texts.prepare(self.at, self.stop)
        for number in range(texts.count):
            self.hits[number] = self.walk.at if self.walk.count else self.at
            # One that ends where the search begins: it is looked for again.
            self.hits[number] -= 1
        return 0

    cdef inline const uint8_t* hit(self, int number, const uint8_t* at) noexcept:
        """Where a text next begins, at or after ``at``, which never goes back."""
        if self.hits[number] != NULL and self.hits[number] < at:
            self.hits[number] = kstore_find(at, self.stop, &self.texts.wanted[number])
        return self.hits[number]

    cdef bint occurs(self, const uint8_t* start, const uint8_t* stop) noexcept:
        """Whether one of the texts is in these bytes, which never go back."""
        cdef const uint8_t* found
        cdef int number
        for number in range(self.texts.count):
            found = self.hit(number, start)
            if found != NULL and found < stop and stop - found >= <Py_ssize_t>self.texts.wanted[number].size:
                return True
        return False

    cdef bint is_wanted(self, RecordView* view) noexcept:
        if self.texts.in_keys and view.key_size > 0 and self.occurs(view.key, view.key + view.key_size):
            return True
        if self.texts.in_values and view.value_size > 0 and self.occurs(view.value, view.value + view.value_size):
            return True
        # Its sizes may look like the text: then a record is given that does not hold it.
        return self.texts.in_headers and view.header_count > 0 and self.occurs(view.headers, view.stop)

    cdef int enter_batch(self) except -1:
        """Comes to the next batch that holds a text in its bytes."""
        cdef const uint8_t* next_hit = NULL
        cdef const uint8_t* found
        cdef Head head
        cdef int number
        for number in range(self.texts.count):
            found = self.hit(number, self.at)
            if found != NULL and (next_hit == NULL or found < next_hit):
                next_hit = found
        if next_hit == NULL:
            self.finish()
            return 0
        while (
            self.stop - self.at >= HEADER_SIZE
            and read_head(self.at, &head)
            and head.size <= next_hit - self.at
        ):
            self.at += head.size
        return RunCursor.enter_batch(self)

    def __next__(self):
        cdef RecordView view
        cdef Record record
        while self.next_view(&view):
            if not self.is_wanted(&view):
                self.is_making = False
                continue
            record = make_record(self, &view, None)
            self.give(record.offset)
            return record
        raise StopIteration
