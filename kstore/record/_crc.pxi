"""CRC-32C of small batches: with the processor's instruction if it has one, else with tables. Part of _codec.pyx and
_runs.pyx.

The package ``crc32c`` is faster from some KiB on, but a call of it costs more than a small batch takes.
"""

cdef enum:
    # From this size on the CRC is the package's, which reads several streams at once.
    LARGE_SIZE = 4096

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    #if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
    #include <nmmintrin.h>
    #define KSTORE_CRC_X86 1
    #elif defined(__ARM_FEATURE_CRC32) && !defined(__ARM_BIG_ENDIAN)
    #include <arm_acle.h>
    #endif

    /* By the number of bytes that follow within a word of eight: what a byte contributes to the CRC. */
    static uint32_t kstore_crc_tables[8][256];

    static void kstore_crc_prepare(void) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8; bit++)
                crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1u)));
            kstore_crc_tables[0][byte] = crc;
        }
        for (uint32_t byte = 0; byte < 256; byte++)
            for (int more = 1; more < 8; more++) {
                uint32_t crc = kstore_crc_tables[more - 1][byte];
                kstore_crc_tables[more][byte] = (crc >> 8) ^ kstore_crc_tables[0][crc & 0xFF];
            }
    }

    static uint32_t kstore_crc_by_table(const uint8_t *at, size_t size) {
        uint32_t crc = 0xFFFFFFFFu;
        while (size >= 8) {
            crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
            crc = kstore_crc_tables[7][crc & 0xFF] ^ kstore_crc_tables[6][(crc >> 8) & 0xFF]
                ^ kstore_crc_tables[5][(crc >> 16) & 0xFF] ^ kstore_crc_tables[4][crc >> 24]
                ^ kstore_crc_tables[3][at[4]] ^ kstore_crc_tables[2][at[5]]
                ^ kstore_crc_tables[1][at[6]] ^ kstore_crc_tables[0][at[7]];
            at += 8;
            size -= 8;
        }
        while (size--)
            crc = (crc >> 8) ^ kstore_crc_tables[0][(crc ^ *at++) & 0xFF];
        return ~crc;
    }

    #ifdef KSTORE_CRC_X86
    /* Compiled for this instruction, called only where the processor has it. */
    __attribute__((target("sse4.2")))
    static uint32_t kstore_crc_by_instruction(const uint8_t *at, size_t size) {
        uint64_t crc = 0xFFFFFFFFu, word;
        while (size >= 8) {
            memcpy(&word, at, 8);
            crc = _mm_crc32_u64(crc, word);
            at += 8;
            size -= 8;
        }
        while (size--)
            crc = _mm_crc32_u8((uint32_t)crc, *at++);
        return ~(uint32_t)crc;
    }
    static int kstore_crc_has_instruction(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("sse4.2");
    }
    #elif defined(__ARM_FEATURE_CRC32) && !defined(__ARM_BIG_ENDIAN)
    static uint32_t kstore_crc_by_instruction(const uint8_t *at, size_t size) {
        uint32_t crc = 0xFFFFFFFFu;
        uint64_t word;
        while (size >= 8) {
            memcpy(&word, at, 8);
            crc = __crc32cd(crc, word);
            at += 8;
            size -= 8;
        }
        while (size--)
            crc = __crc32cb(crc, *at++);
        return ~crc;
    }
    static int kstore_crc_has_instruction(void) { return 1; }
    #else
    #define kstore_crc_by_instruction kstore_crc_by_table
    static int kstore_crc_has_instruction(void) { return 0; }
    #endif
    """
    void kstore_crc_prepare() nogil
    bint kstore_crc_has_instruction() nogil
    uint32_t kstore_crc_by_table(const uint8_t* at, size_t size) nogil
    uint32_t kstore_crc_by_instruction(const uint8_t* at, size_t size) nogil

kstore_crc_prepare()
cdef bint HAS_INSTRUCTION = kstore_crc_has_instruction()


cdef inline uint32_t small_crc(const uint8_t* at, size_t size) noexcept nogil:
    return kstore_crc_by_instruction(at, size) if HAS_INSTRUCTION else kstore_crc_by_table(at, size)
