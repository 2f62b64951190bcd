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
    /* Compiled for this instruction, called only where the processor has it. */
    #define KSTORE_CRC_TARGET __attribute__((target("sse4.2")))
    #define KSTORE_CRC_WORD _mm_crc32_u64
    #define KSTORE_CRC_BYTE _mm_crc32_u8
    static int kstore_crc_has_instruction(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("sse4.2");
    }
    #elif defined(__ARM_FEATURE_CRC32) && !defined(__ARM_BIG_ENDIAN)
    #include <arm_acle.h>
    #define KSTORE_CRC_TARGET
    #define KSTORE_CRC_WORD __crc32cd
    #define KSTORE_CRC_BYTE __crc32cb
    static int kstore_crc_has_instruction(void) { return 1; }
    #else
    static int kstore_crc_has_instruction(void) { return 0; }
    #endif

    /* By the number of bytes that follow within a word of eight: what a byte contributes to the CRC. */
    static uint32_t kstore_crc_tables[8][256];

    /* The instruction takes three cycles, but one may start in each: so three lanes of ``size`` bytes, side by side,
       are read at a time. ``shift`` is what ``size`` zero bytes make of a CRC, by its four bytes: it joins the lanes.
       The first lanes suit pieces of large batches, the next ones batches of some KiB, the last ones what is left.
       Sizes are multiples of 64. */
    #define KSTORE_CRC_LANES 4
    static struct {
        size_t size;
        uint32_t shift[4][256];
    } kstore_crc_lanes[KSTORE_CRC_LANES] = {{5120}, {1344}, {320}, {64}};

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
        for (int lanes = 0; lanes < KSTORE_CRC_LANES; lanes++)
            for (int bit = 0; bit < 32; bit++) {
                uint32_t crc = 1u << bit;
                for (size_t left = kstore_crc_lanes[lanes].size; left > 0; left--)
                    crc = (crc >> 8) ^ kstore_crc_tables[0][crc & 0xFF];
                for (uint32_t byte = 0; byte < 256; byte++)
                    if (byte >> bit % 8 & 1)
                        kstore_crc_lanes[lanes].shift[bit / 8][byte] ^= crc;
            }
    }

    static uint32_t kstore_crc_by_table(uint32_t crc, const uint8_t *at, size_t size) {
        crc = ~crc;
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

    #ifdef KSTORE_CRC_WORD
    static inline uint64_t kstore_crc_word(const uint8_t *at) {
        uint64_t word;
        memcpy(&word, at, 8);
        return word;
    }
    static inline uint32_t kstore_crc_shifted(uint32_t (*shift)[256], uint32_t crc) {
        return shift[0][crc & 0xFF] ^ shift[1][(crc >> 8) & 0xFF] ^ shift[2][(crc >> 16) & 0xFF] ^ shift[3][crc >> 24];
    }
    KSTORE_CRC_TARGET
    static uint32_t kstore_crc_by_instruction(uint32_t crc, const uint8_t *at, size_t size) {
        crc = ~crc;
        for (int lanes = 0; lanes < KSTORE_CRC_LANES; lanes++) {
            const size_t lane = kstore_crc_lanes[lanes].size;
            uint32_t (*shift)[256] = kstore_crc_lanes[lanes].shift;
            for (; size >= 3 * lane; at += 3 * lane, size -= 3 * lane) {
                uint64_t first = crc, second = 0, third = 0;
                for (size_t done = 0; done < lane; done += 64) {
                    /* What is read next, at the pace of this: the processor foresees no jump from lanes to lanes. */
                    for (int line = 0; line < 3; line++)
                        __builtin_prefetch(at + 3 * (lane + done) + 64 * line);
                    for (size_t word = done; word < done + 64; word += 8) {
                        first = KSTORE_CRC_WORD((uint32_t)first, kstore_crc_word(at + word));
                        second = KSTORE_CRC_WORD((uint32_t)second, kstore_crc_word(at + lane + word));
                        third = KSTORE_CRC_WORD((uint32_t)third, kstore_crc_word(at + 2 * lane + word));
                    }
                }
                crc = kstore_crc_shifted(shift, (uint32_t)first) ^ (uint32_t)second;
                crc = kstore_crc_shifted(shift, crc) ^ (uint32_t)third;
            }
        }
        for (; size >= 8; at += 8, size -= 8)
            crc = (uint32_t)KSTORE_CRC_WORD(crc, kstore_crc_word(at));
        while (size--)
            crc = KSTORE_CRC_BYTE(crc, *at++);
        return ~crc;
    }
    #else
    #define kstore_crc_by_instruction kstore_crc_by_table
    #endif
    """
    void kstore_crc_prepare() nogil
    bint kstore_crc_has_instruction() nogil
    uint32_t kstore_crc_by_table(uint32_t crc, const uint8_t* at, size_t size) nogil
    uint32_t kstore_crc_by_instruction(uint32_t crc, const uint8_t* at, size_t size) nogil

kstore_crc_prepare()
cdef bint HAS_INSTRUCTION = kstore_crc_has_instruction()


cdef inline uint32_t small_crc(const uint8_t* at, size_t size, uint32_t crc=0) noexcept nogil:
    """``crc`` is that of the bytes before."""
    return kstore_crc_by_instruction(crc, at, size) if HAS_INSTRUCTION else kstore_crc_by_table(crc, at, size)
