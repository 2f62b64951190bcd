# cython: language_level=3
# cython: auto_pickle=False, binding=False
"""What each append reads and changes of a log, and the one place that shows its readers new ends."""

from kstore.files._direct cimport has_failed_sync

from kstore.errors import PoisonedError, StorageError, SyncFailedError


cdef class LogFields:
    """The fields of ``LogFiles``, which describes them, that each append needs."""

    @property
    def tail(self):
        return self.open_tail

    @tail.setter
    def tail(self, tail):
        self.numbers = None if tail is None else tail.numbers
        self.open_tail = tail

    def publish(self, ends not None, *, bint cuts=False):
        """Shows ``ends`` to readers, by one store; with the turn.

        Args:
            cuts: the files are about to be cut, or were cut. Readers see the counts and ``ends`` change in one step,
                because this is compiled.
        """
        self.truncation_count += cuts
        self.cut_count += cuts
        publish(self, ends)

    def count_swap(self):
        """Counts that segments are about to be replaced by a compacted one: see ``truncation_count``."""
        self.truncation_count += 1

    def poison(self, error not None):
        """No more writes, no second sync, and reads up to the durable end only.

        The first step comes before any signal is served, because this is compiled.
        """
        if self.poisoned is None:
            self.poisoned = error
            if not isinstance(error, Exception):
                self.poisoned = StorageError(f"interrupted: {error!r}")
        self.end_reads()

    def note_failure(self, error not None):
        """Poisons the log if a failed append leaves unknown what is on disk. Its first step: see ``poison``.

        An interrupt, or a lack of memory, may have replaced the error of a sync; the file and the tail say so.
        """
        tail = self.open_tail
        if (
            isinstance(error, (SyncFailedError, PoisonedError))
            or (tail is not None and (tail.is_doubtful or has_failed_sync(tail.open_file)))
        ):
            self.poison(error)
