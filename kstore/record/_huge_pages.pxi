"""Large memory in huge pages, if the system has them. For modules that allocate much at once."""

cdef extern from *:
    """
    #include <stdint.h>
    #include <sys/mman.h>

    /* Faults for each 4 KiB of fresh memory take longer than filling it, and slow down whatever else the process does. */
    static void kstore_advise_huge(void *data, size_t size) {
    #ifdef MADV_HUGEPAGE
        const uintptr_t huge = (uintptr_t)2 << 20;
        uintptr_t start = ((uintptr_t)data + huge - 1) & ~(huge - 1), stop = ((uintptr_t)data + size) & ~(huge - 1);
        if (start < stop)
            madvise((void *)start, stop - start, MADV_HUGEPAGE);
    #endif
    }
    """
    void kstore_advise_huge(void* data, size_t size) nogil
