// Between memory and the small buffers in which the work is done.
#pragma once

#include "kernels/values/numbers.inc.hpp"

namespace memory {

using numbers::from_bf16, numbers::from_f16, numbers::least, numbers::tile, numbers::to_bf16, numbers::to_f16;

namespace {  // of this file alone

inline i64 size_of(Real type) { return type == Real::f32 ? 4 : 2; }

}  // namespace

// The address of value i of an array of either type.
inline const void* at(const void* p, Real type, i64 i) { return static_cast<const u8*>(p) + i * size_of(type); }
inline void* at(void* p, Real type, i64 i) { return static_cast<u8*>(p) + i * size_of(type); }

// n values, `step` apart, as float32.
inline void load(const void* in, Real type, i64 step, i64 n, float* __restrict out) {
    const u16* h = static_cast<const u16*>(in);
    const float* f = static_cast<const float*>(in);
    // Values side by side become vectors: one loop for each type, with no test inside.
    if (step == 1) {
        if (type == Real::f32)
            __builtin_memcpy(out, f, static_cast<u64>(n) * sizeof(float));
        else if (type == Real::bf16)
            for (i64 i = 0; i < n; ++i) out[i] = from_bf16(h[i]);
        else
            for (i64 i = 0; i < n; ++i) out[i] = from_f16(h[i]);
        return;
    }
    for (i64 i = 0; i < n; ++i)
        out[i] = type == Real::f32 ? f[i * step] : type == Real::bf16 ? from_bf16(h[i * step]) : from_f16(h[i * step]);
}

// The way back: n float32 to the type of the array, `step` apart, rounded to nearest even.
inline void store(void* out, Real type, i64 step, i64 n, const float* __restrict in) {
    u16* h = static_cast<u16*>(out);
    float* f = static_cast<float*>(out);
    if (step == 1) {
        if (type == Real::f32) {
            __builtin_memcpy(f, in, static_cast<u64>(n) * sizeof(float));
        } else if (type == Real::bf16) {
            for (i64 i = 0; i < n; ++i) h[i] = to_bf16(in[i]);
        } else {
            for (i64 i = 0; i < n; ++i) h[i] = to_f16(in[i]);
        }
        return;
    }
    for (i64 i = 0; i < n; ++i) {
        if (type == Real::f32)
            f[i * step] = in[i];
        else
            h[i * step] = type == Real::bf16 ? to_bf16(in[i]) : to_f16(in[i]);
    }
}

namespace {  // of this file alone

// Eight codes of `bits` bits, at most 8, in the low bits of one word, from one in each byte: neighbours join in three
// steps, each in all words at once.
inline void join_eights(u64* words, i64 eights, i32 bits) {
    const u64 bytes = 0x00ff00ff00ff00ffu, halves = 0x0000ffff0000ffffu, low = 0xffffffffu;
    for (i64 j = 0; j < eights; ++j) {
        // From 8 x 1 to 4 x 2 codes, to 2 x 4, to 8: at each step the upper half moves down by the bits that are free.
        u64 w = words[j];
        w = (w & bytes) | ((w >> (8 - bits)) & (bytes << bits));
        w = (w & halves) | ((w >> 2 * (8 - bits)) & (halves << 2 * bits));
        words[j] = (w & low) | ((w >> 4 * (8 - bits)) & (low << 4 * bits));
    }
}

// The way back: 8 codes of one word apart in three steps, each a loop over twice as many and half as wide integers.
// Within a loop all lanes are shifted alike.
inline void split_eights(const u64* __restrict words, i64 eights, i32 bits, i32* __restrict codes) {
    alignas(64) i32 pairs[tile / 2];
    alignas(64) u32 fours[tile / 4];
    const u32 mask = (1u << bits) - 1, mask2 = (1u << 2 * bits) - 1;
    for (i64 j = 0; j < eights; ++j) {
        fours[2 * j] = static_cast<u32>(words[j]) & static_cast<u32>((u64{1} << 4 * bits) - 1);
        fours[2 * j + 1] = static_cast<u32>(words[j] >> 4 * bits);
    }
    for (i64 j = 0; j < 2 * eights; ++j) {
        pairs[2 * j] = static_cast<i32>(fours[j] & mask2);
        pairs[2 * j + 1] = static_cast<i32>(fours[j] >> 2 * bits);
    }
    for (i64 j = 0; j < 4 * eights; ++j) {
        codes[2 * j] = pairs[j] & static_cast<i32>(mask);
        codes[2 * j + 1] = pairs[j] >> bits;
    }
}

}  // namespace

// Codes one by one into a little-endian bit stream from bit `start` on. The bits of its first byte that belong to earlier
// codes are kept; the spare bits of the last byte become zero. Nothing beyond that byte is written: it may be another
// thread's.
template <class Code>
inline void pack_each(const Code* __restrict codes, i64 n, i32 bits, u8* __restrict line, i64 start) {
    u8* out = line + start / 8;
    // How many bits of the first byte belong to earlier codes: they are read back.
    // Bits of the byte that is being filled, and how many: those of earlier codes are read back first.
    i32 pending = static_cast<i32>(start % 8);
    u64 word = pending ? *out & ((1u << pending) - 1) : 0;
    for (i64 i = 0; i < n; ++i) {
        word |= static_cast<u64>(static_cast<u32>(codes[i])) << pending;
        pending += bits;
        // At most 7 bits wait before a code of at most 32: the word never overflows.
        for (; pending >= 8; pending -= 8, word >>= 8) *out++ = static_cast<u8>(word);
    }
    if (pending > 0) *out = static_cast<u8>(word);
}

// n codes, at most a tile, of `bits` bits each into a bit stream as pack_each does, from code number `first` on.
inline void pack(const u8* __restrict codes, i64 n, i32 bits, u8* __restrict line, i64 first) {
    const i64 start = first * bits;
    u8* __restrict out = line + start / 8;
    i64 done = 0;
    // Whole bytes: a copy.
    if (start % 8 == 0 && bits == 8) {
        __builtin_memcpy(out, codes, static_cast<u64>(n));
        return;
    }
    if (start % 8 == 0 && bits == 4) {
        // Two codes lie in the bytes of one 16-bit number: one shift joins them.
        alignas(64) u16 pairs[tile / 2];
        __builtin_memcpy(pairs, codes, static_cast<u64>(n));
        for (i64 j = 0; j < n / 2; ++j) out[j] = static_cast<u8>(pairs[j] | pairs[j] >> 4);
        done = n / 2 * 2;
    } else if (start % 8 == 0) {
        // Any other width: eight codes fill `bits` bytes.
        const i64 eights = n / 8, bytes = eights * bits;
        alignas(64) u64 words[tile / 8];
        __builtin_memcpy(words, codes, static_cast<u64>(8 * eights));
        join_eights(words, eights, bits);
        i64 j = 0;  // more is written than the bytes that count, the next word covers the rest
#if defined(__AVX512BW__)
        // Two words in one register: a byte shuffle closes the gap between them, so that 16 bytes hold 2 x `bits` bytes
        // that count.
        alignas(16) u8 places[16] = {};
        for (i32 k = 0; k < 2 * bits; ++k) places[k] = static_cast<u8>(k / bits * 8 + k % bits);
        const __m128i joined = _mm_load_si128(reinterpret_cast<const __m128i*>(places));
        for (; j * bits + 16 <= bytes; j += 2) {
            const __m128i two = _mm_load_si128(reinterpret_cast<const __m128i*>(words + j));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(out + j * bits), _mm_shuffle_epi8(two, joined));
        }
#endif
        for (; j * bits + 8 <= bytes; ++j) __builtin_memcpy(out + j * bits, words + j, 8);
        for (; j < eights; ++j)
            // The last words go byte by byte: nothing beyond their bytes may be written.
            for (i32 k = 0; k < bits; ++k) out[j * bits + k] = static_cast<u8>(words[j] >> 8 * k);
        done = 8 * eights;
    }
    // What does not fill eight codes, or does not start on a byte.
    pack_each(codes + done, n - done, bits, line, start + done * bits);
}

namespace {  // of this file alone

// The low bytes of n codes; `out` has room for a whole tile.
inline void low_bytes(const i32* __restrict codes, i64 n, u8* __restrict out) {
    i64 i = 0;
#if defined(__AVX512BW__)
    // Two instructions join four vectors where the one that narrows a vector takes as long for each.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), low = _mm512_set1_epi32(255);
    for (; i + 64 <= n; i += 64) {
        __m512i v[4];
        for (i64 j = 0; j < 4; ++j) v[j] = _mm512_and_si512(_mm512_loadu_si512(codes + i + 16 * j), low);
        const __m512i bytes = _mm512_packus_epi16(_mm512_packus_epi32(v[0], v[1]), _mm512_packus_epi32(v[2], v[3]));
        _mm512_storeu_si512(out + i, _mm512_permutexvar_epi32(order, bytes));
    }
#endif
    for (; i < n; ++i) out[i] = static_cast<u8>(codes[i]);
}

}  // namespace

// The same for codes of up to 32 bits, one in each 32-bit number.
inline void pack(const i32* __restrict codes, i64 n, i32 bits, u8* __restrict line, i64 first) {
    const i64 start = first * bits;
    u8* __restrict out = line + start / 8;
    if (bits <= 8) {
        alignas(64) u8 narrow[tile];
        low_bytes(codes, n, narrow);
        pack(narrow, n, bits, line, first);
    } else if (bits == 16) {
        for (i64 i = 0; i < n; ++i) {
            const u16 half = static_cast<u16>(codes[i]);
            __builtin_memcpy(out + 2 * i, &half, sizeof half);
        }
    } else if (bits == 32) {
        __builtin_memcpy(out, codes, static_cast<u64>(n) * 4);
    } else {
        pack_each(codes, n, bits, line, start);
    }
}

// The codes of pack(). `end` is where the readable bytes end.
inline void unpack(const u8* __restrict line, i64 first, i32 bits, i64 n, i32* __restrict codes, const u8* end) {
    const i64 start = first * bits;
    const u8* __restrict in = line + start / 8;
    i64 i = 0;
    if (start % 8 == 0) {
        if (bits == 8) {
            for (; i < n; ++i) codes[i] = in[i];
            return;
        }
        if (bits == 4) {
            const i64 pairs = n / 2;
            for (i64 j = 0; j < pairs; ++j) {
                codes[2 * j] = in[j] & 15;
                codes[2 * j + 1] = in[j] >> 4;
            }
            i = 2 * pairs;
        } else if (bits < 8) {
            const i64 eights = n / 8;
            alignas(64) u64 words[tile / 8];
            const u64 mask = (u64{1} << 8 * bits) - 1;
            for (i64 j = 0; j < eights; ++j) {
                u64 word = 0;
                const u8* from = in + j * bits;
                // Eight bytes are read at once where the part has so many; the mask drops those of other codes.
                __builtin_memcpy(&word, from, end - from >= 8 ? 8 : static_cast<u64>(bits));
                words[j] = word & mask;
            }
            split_eights(words, eights, bits, codes);
            i = 8 * eights;
        } else if (bits == 16) {
            for (; i < n; ++i) codes[i] = in[2 * i] | in[2 * i + 1] << 8;
            return;
        } else if (bits == 32) {
            __builtin_memcpy(codes, in, static_cast<u64>(n) * 4);
            return;
        }
    }
    // Codes that start anywhere, or the rest: a code of at most 32 bits that starts within a byte spans at most five.
    const u64 mask = bits == 32 ? 0xffffffffu : (1u << bits) - 1;
    for (; i < n; ++i) {
        const i64 bit = start + i * bits;
        const u8* from = line + bit / 8;
        u64 word = 0;
        const i64 have = least(8, end - from);
        for (i64 j = 0; j < have && j * 8 < bits + 7; ++j) word |= static_cast<u64>(from[j]) << 8 * j;
        codes[i] = static_cast<i32>(word >> bit % 8 & mask);
    }
}

}  // namespace memory
