// Codes into a little-endian bit stream. Four vectors of codes are joined at once: first to bytes, then, where a code has
// fewer bits, neighbours to pairs, fours and eights, all in registers; eight codes fill whole bytes.
#pragma once

#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace packing {

using numbers::Bits, numbers::vector, numbers::vector_bytes;
using vectors::broadcast, vectors::read, vectors::write;

constexpr i64 joined = 4 * vector;  // codes that are joined at once: as bytes they fill one register

namespace {  // of this file alone

using Bytes = u8 __attribute__((vector_size(vector_bytes)));
using SignedBytes = signed char __attribute__((vector_size(vector_bytes)));
using Quarters = u8 __attribute__((vector_size(vector_bytes / 4)));
using Words = u16 __attribute__((vector_size(vector_bytes)));
using SignedWords = short __attribute__((vector_size(vector_bytes)));
using Longs = i64 __attribute__((vector_size(vector_bytes)));

#if defined(__AVX2__)

// Eight codes of b bits lie in the first b bytes of 8: which byte goes where, so that nothing is between them. Two codes of four bits
// are a byte of 16 bits. Shuffles of VBMI close the whole register, older ones each 16 bytes by themselves.
struct Places {
    alignas(64) u8 of_width[8][vector_bytes];
};

#if defined(__AVX512VBMI__)
constexpr int closed_bytes = vector_bytes;
#else
constexpr int closed_bytes = 16;
#endif

constexpr Places places_of_bytes() {
    Places p{};
    for (int bits = 1; bits < 8; ++bits)
        for (int i = 0; i < vector_bytes; ++i) {
            const int within = i % closed_bytes;
            // Bytes beyond the codes: of no importance, but a shuffle may not read outside.
            const int from = bits == 4 ? 2 * within : within / bits * 8 + within % bits;
            p.of_width[bits][i] = static_cast<u8>(within < closed_bytes / 8 * bits ? from : 0);
        }
    return p;
}

constexpr Places places = places_of_bytes();

#else

// As many vectors as fill one with narrower lanes: of each number the bits from `drop` on.
template <class Lanes, class Lane, int drop>
inline Lanes narrowed(const Bits* c) {
    Lanes lanes{};
    for (i64 i = 0; i < i64{sizeof lanes / sizeof(Lane)}; ++i) lanes[i] = static_cast<Lane>(c[i / vector][i % vector] >> drop);
    return lanes;
}

#endif

// Four vectors as bytes: numbers of at most 15 bits, which saturate at 255. Packing works within 16 bytes, so that one permutation of
// fours puts the bytes in order: four instructions for four vectors, where narrowing takes two for each. VBMI takes the lowest byte
// of each number, and puts it in its place.
#if defined(__AVX512VBMI__)
inline Bytes bytes_at(const Bits* c, u8 byte) {
    // The places of that byte in two vectors, once for each half of the result.
    alignas(64) u8 taken[64];
    for (u8 i = 0; i < 64; ++i) taken[i] = static_cast<u8>(4 * (i % 32) + byte);
    const __m512i order = _mm512_load_si512(taken);
    const __m512i low = _mm512_permutex2var_epi8((__m512i)c[0], order, (__m512i)c[1]), high = _mm512_permutex2var_epi8((__m512i)c[2], order, (__m512i)c[3]);
    return (Bytes)_mm512_mask_blend_epi64(0xf0, low, high);
}
inline Bytes packed_bytes(const Bits* c) { return bytes_at(c, 0); }
inline Bytes packed_signs(const Bits* x) { return bytes_at(x, 3); }
inline Bytes in_order(Bytes b) { return b; }
#elif defined(__AVX512F__)
inline Bytes packed_bytes(const Bits* c) {
    const __m512i low = _mm512_packs_epi32((__m512i)c[0], (__m512i)c[1]), high = _mm512_packs_epi32((__m512i)c[2], (__m512i)c[3]);
    return (Bytes)_mm512_packus_epi16(low, high);
}
inline Bytes packed_signs(const Bits* x) {
    const __m512i low = _mm512_packs_epi32((__m512i)x[0], (__m512i)x[1]), high = _mm512_packs_epi32((__m512i)x[2], (__m512i)x[3]);
    return (Bytes)_mm512_packs_epi16(low, high);
}
inline Bytes in_order(Bytes b) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return (Bytes)_mm512_permutexvar_epi32(order, (__m512i)b);
}
#elif defined(__AVX2__)
inline Bytes packed_bytes(const Bits* c) {
    const __m256i low = _mm256_packs_epi32((__m256i)c[0], (__m256i)c[1]), high = _mm256_packs_epi32((__m256i)c[2], (__m256i)c[3]);
    return (Bytes)_mm256_packus_epi16(low, high);
}
inline Bytes packed_signs(const Bits* x) {
    const __m256i low = _mm256_packs_epi32((__m256i)x[0], (__m256i)x[1]), high = _mm256_packs_epi32((__m256i)x[2], (__m256i)x[3]);
    return (Bytes)_mm256_packs_epi16(low, high);
}
inline Bytes in_order(Bytes b) { return (Bytes)_mm256_permutevar8x32_epi32((__m256i)b, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)); }
#else
inline Bytes packed_bytes(const Bits* c) { return narrowed<Bytes, u8, 0>(c); }
inline Bytes packed_signs(const Bits* x) { return narrowed<Bytes, u8, 24>(x); }
inline Bytes in_order(Bytes b) { return b; }
#endif

// Two vectors of numbers below 2^16 as words; of AVX-512 their lower words, whatever is above.
#if defined(__AVX512F__)
inline Words words_at(const Bits* c, u16 word) {
    // The places of that word in both vectors.
    alignas(64) u16 taken[32];
    for (u16 i = 0; i < 32; ++i) taken[i] = static_cast<u16>(2 * i + word);
    return (Words)_mm512_permutex2var_epi16((__m512i)c[0], _mm512_load_si512(taken), (__m512i)c[1]);
}
inline Words packed_words(const Bits* c) { return words_at(c, 0); }
inline Words words_of_signs(const Bits* x) { return words_at(x, 1); }
#elif defined(__AVX2__)
// Two instructions, where narrowing takes three for each; packing works within 16 bytes.
inline Words packed_words(const Bits* c) {
    return (Words)_mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)c[0], (__m256i)c[1]), 0xd8);
}
inline Words words_of_signs(const Bits* x) {
    return (Words)_mm256_permute4x64_epi64(_mm256_packs_epi32((__m256i)x[0], (__m256i)x[1]), 0xd8);
}
#else
inline Words packed_words(const Bits* c) { return narrowed<Words, u16, 0>(c); }
inline Words words_of_signs(const Bits* x) { return narrowed<Words, u16, 16>(x); }
#endif

}  // namespace

// What turns magnitudes into codes, in each byte or word.
template <class Lanes>
struct Coding {
    Lanes above, below;      // the limits above and below zero
    Lanes sign_bit, in_use;  // of a code
};

namespace {  // of this file alone

template <class Lanes, class Lane>
inline Coding<Lanes> coding_of(i32 bits, i32 above, i32 below) {
    // As a lane of its own type first: sums of vectors take no wider number.
    const Lane of_above = static_cast<Lane>(above), of_below = static_cast<Lane>(below);
    const Lane sign_bit = static_cast<Lane>(1 << (bits - 1)), in_use = static_cast<Lane>((1 << bits) - 1);
    return {Lanes{} + of_above, Lanes{} + of_below, Lanes{} + sign_bit, Lanes{} + in_use};
}

}  // namespace

// What joins codes of one width; of a loop, made once before it.
struct Joining {
    i32 bits;
    Sign sign;           // of magnitudes that are joined with signs
    bool minus_zero;     // whether a magnitude of zero keeps its sign
    bool symmetric;      // whether the limits of both signs are one
    Coding<Bytes> bytes;  // of at most eight bits
    Coding<Words> words;  // of sixteen
#if defined(__AVX2__)
    Bits pairs, fours;  // 1 and 2^b beside each other in 16 bits, 1 and 2^2b in 32: products with them, added, join two
    Bits up, down;      // shifts that push the lower four codes of 64 bits against the upper four, and both down
    Bytes places;
#endif
};

// For 1 to 8 bits, or 16. Magnitudes beyond the limits above and below zero are joined as those.
inline Joining joining_of(i32 bits, Sign sign, bool minus_zero, i32 above, i32 below) {
    Joining j{};
    j.bits = bits, j.sign = sign, j.minus_zero = minus_zero, j.symmetric = above == below;
    // Only that of its width is made: codes of other widths are not joined.
    if (bits <= 8) j.bytes = coding_of<Bytes, u8>(bits, above, below);
    if (bits == 16) j.words = coding_of<Words, u16>(bits, above, below);
#if defined(__AVX2__)
    if (bits < 8) {
        j.pairs = broadcast(static_cast<i32>(0x10001u * (1u | 1u << (8 + bits))));
        j.fours = broadcast(1 | 1 << (16 + 2 * bits));
        j.up = j.down = (Bits)(Longs{} + (32 - 4 * bits));  // lanes set one by one would pass through memory
        j.places = read<Bytes>(places.of_width[bits]);
    }
#endif
    return j;
}

// For codes that are there.
inline Joining joining_of(i32 bits) { return joining_of(bits, Sign::none, false, -1, -1); }

namespace {  // of this file alone

// From bytes to codes without a gap, at `out`; bytes up to `joined` from there on may be overwritten.
inline void close_gaps(const Joining& j, Bytes codes, u8* out) {
#if defined(__AVX512F__)
    // Products of unsigned by signed bytes: 2^7 is unsigned, and a code of at most seven bits is not negative. Sums stay
    // below 2^14, so that nothing saturates.
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)j.pairs, (__m512i)codes);
    if (j.bits == 4) {
#if defined(__AVX512VBMI__)
        write(out, _mm512_permutexvar_epi8((__m512i)j.places, pairs));
#else
        write(out, _mm512_cvtepi16_epi8(pairs));
#endif
        return;
    }
    const __m512i fours = _mm512_madd_epi16(pairs, (__m512i)j.fours);
    const __m512i eights = _mm512_srlv_epi64(_mm512_sllv_epi32(fours, (__m512i)j.up), (__m512i)j.down);
#if defined(__AVX512VBMI__)
    write(out, _mm512_permutexvar_epi8((__m512i)j.places, eights));
#else
    const __m512i closed = _mm512_shuffle_epi8(eights, (__m512i)j.places);
    // In order: each store covers what the one before has written too much.
    write(out, _mm512_castsi512_si128(closed));
    write(out + 2 * j.bits, _mm512_extracti32x4_epi32(closed, 1));
    write(out + 4 * j.bits, _mm512_extracti32x4_epi32(closed, 2));
    write(out + 6 * j.bits, _mm512_extracti32x4_epi32(closed, 3));
#endif
#elif defined(__AVX2__)
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)j.pairs, (__m256i)codes);
    if (j.bits == 4) {
        const __m256i closed = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0x08);
        write(out, _mm256_castsi256_si128(closed));
        return;
    }
    const __m256i fours = _mm256_madd_epi16(pairs, (__m256i)j.fours);
    const __m256i eights = _mm256_srlv_epi64(_mm256_sllv_epi32(fours, (__m256i)j.up), (__m256i)j.down);
    const __m256i closed = _mm256_shuffle_epi8(eights, (__m256i)j.places);
    write(out, _mm256_castsi256_si128(closed));
    write(out + 2 * j.bits, _mm256_extracti128_si256(closed, 1));
#else
    // The same three steps in 64-bit words: the upper half moves down by the bits that are free.
    const u64 bytes = 0x00ff00ff00ff00ffu, halves = 0x0000ffff0000ffffu, low = 0xffffffffu;
    u64 words[vector_bytes / 8];
    __builtin_memcpy(words, &codes, sizeof words);
    for (u64 w : words) {
        w = (w & bytes) | ((w >> (8 - j.bits)) & (bytes << j.bits));
        w = (w & halves) | ((w >> 2 * (8 - j.bits)) & (halves << 2 * j.bits));
        w = (w & low) | ((w >> 4 * (8 - j.bits)) & (low << 4 * j.bits));
        write(out, w);
        out += j.bits;
    }
#endif
}

}  // namespace

namespace {  // of this file alone

// The codes of magnitudes, given lanes with the signs of the inputs: a fraction of the instructions that 32-bit numbers take.
template <class Signed, class Lanes>
inline Lanes with_signs(const Joining& j, const Coding<Lanes>& coding, Lanes magnitudes, Lanes signs) {
    const auto negative = (Signed)signs < 0;
    const Lanes limit = j.symmetric ? coding.above : negative ? coding.below : coding.above;
    const Lanes c = magnitudes < limit ? magnitudes : limit;
    if (j.sign == Sign::none) return c;
    // Counted without signs, in which 128 does not overflow.
    if (j.sign == Sign::twos_complement) return (negative ? Lanes{} - c : c) & coding.in_use;
    if (j.minus_zero) return negative ? c | coding.sign_bit : c;
    return (Lanes)(c != 0) & (Lanes)negative ? c | coding.sign_bit : c;
}

}  // namespace

// Writes the codes of four vectors, each of no more than j.bits bits, to `out`, where bytes up to joined_bytes(j) may be
// overwritten. `x`: null, or numbers whose signs the codes take, which are magnitudes then.
inline i64 joined_bytes(const Joining& j) { return j.bits == 16 ? 2 * joined : joined; }

// Inlined, so that four vectors stay in registers.
__attribute__((always_inline)) inline void join(const Joining& j, const Bits* c, const Bits* x, u8* out) {
    if (j.bits == 16) {
#pragma GCC unroll 4
        for (i64 v = 0; v < 4; v += 2) {
            const Words words = packed_words(c + v);
            write(out + 2 * v * vector, x ? with_signs<SignedWords>(j, j.words, words, words_of_signs(x + v)) : words);
        }
        return;
    }
    const Bytes magnitudes = packed_bytes(c);
    const Bytes codes = in_order(x ? with_signs<SignedBytes>(j, j.bytes, magnitudes, packed_signs(x)) : magnitudes);
    if (j.bits == 8)
        write(out, codes);
    else
        close_gaps(j, codes, out);
}

namespace {  // of this file alone

// The same for the first n of them, which fill whole bytes, and not a byte beyond.
inline void join_exactly(const Joining& j, const Bits* c, i64 n, u8* out) {
    u8 bytes[2 * joined];
    join(j, c, nullptr, bytes);
    __builtin_memcpy(out, bytes, static_cast<u64>(n * j.bits / 8));
}

}  // namespace

// Codes one by one into a little-endian bit stream from bit `start` on. The bits of its first byte that belong to earlier
// codes are kept; the spare bits of the last byte become zero. Nothing beyond that byte is written: it may be another
// thread's.
inline void pack_each(const i32* __restrict codes, i64 n, i32 bits, u8* __restrict line, i64 start) {
    u8* out = line + start / 8;
    const u64 mask = bits == 32 ? 0xffffffffu : (1u << bits) - 1;
    // Bits of the byte that is being filled, and how many: those of earlier codes are read back first.
    i32 pending = static_cast<i32>(start % 8);
    u64 word = pending ? *out & ((1u << pending) - 1) : 0;
    for (i64 i = 0; i < n; ++i) {
        word |= (static_cast<u64>(static_cast<u32>(codes[i])) & mask) << pending;
        pending += bits;
        // At most 7 bits wait before a code of at most 32: the word never overflows.
        for (; pending >= 8; pending -= 8, word >>= 8) *out++ = static_cast<u8>(word);
    }
    if (pending > 0) *out = static_cast<u8>(word);
}

// Whether codes of so many bits are joined in registers.
inline bool is_joined(i32 bits) { return bits < 8 || bits == 16; }

// n codes, one in each number, into a bit stream as pack_each does, from code number `first` on. `j`: that of codes without
// signs, made once for all calls.
inline void pack(const Joining& j, const i32* __restrict codes, i64 n, u8* __restrict line, i64 first) {
    const i32 bits = j.bits;
    const i64 start = first * bits;
    u8* __restrict out = line + start / 8;
    i64 i = 0;
    if (bits == 32) {
        __builtin_memcpy(out, codes, static_cast<u64>(n) * 4);
        return;
    }
    if (start % 8 == 0 && bits == 8) {
        for (; i + vector <= n; i += vector) write(out + i, __builtin_convertvector(read<Bits>(codes + i), Quarters));
        for (; i < n; ++i) out[i] = static_cast<u8>(codes[i]);
        return;
    }
    if (start % 8 == 0 && is_joined(bits)) {
        const Bits mask = broadcast((1 << bits) - 1);
        for (; i + joined <= n; i += joined, out += joined * bits / 8) {
            Bits c[4];
            for (i64 v = 0; v < 4; ++v) c[v] = read<Bits>(codes + i + v * vector) & mask;
            // The next codes cover what is too much; the last ones are followed by bytes of others.
            if ((n - i - joined) * bits / 8 >= joined_bytes(j))
                join(j, c, nullptr, out);
            else
                join_exactly(j, c, joined, out);
        }
        // Fewer that fill whole bytes: the rest of the vectors is zeros.
        const i64 rest = (n - i) / 8 * 8;
        if (rest > 0) {
            Bits c[4]{};
            __builtin_memcpy(&c, codes + i, static_cast<u64>(rest) * sizeof(i32));
            for (i64 v = 0; v < 4; ++v) c[v] &= mask;
            join_exactly(j, c, rest, out);
            i += rest;
        }
    }
    // What does not fill eight codes, or does not start on a byte.
    pack_each(codes + i, n - i, bits, line, start + i * bits);
}

// The same for codes of `bits` bits.
inline void pack(const i32* __restrict codes, i64 n, i32 bits, u8* __restrict line, i64 first) {
    pack(joining_of(bits), codes, n, line, first);
}

}  // namespace packing
