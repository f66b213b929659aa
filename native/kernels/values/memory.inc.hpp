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

// Asks for the cache lines of an array, as far as the second level of the caches, where there is time until they are read, or
// the nearest; to be `written` too, or not. Always inlined: of a function that only prefetches GCC says that it has no effect,
// and drops its calls.
constexpr int second = 2, nearest = 3;
template <int level = second, bool written = false>
[[gnu::always_inline]] inline void prefetch(const void* from, i64 bytes) {
    for (i64 i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const u8*>(from) + i, written, level);
}

// Asks for one line of each page that `bytes` from here on lie in, a few pages later: hardware prefetches up to the end of a page only,
// and to look up where a page of 4 KiB lies takes half as long as to read it.
constexpr i64 page = 4096, pages_ahead = 4;
[[gnu::always_inline]] inline void open_pages(const void* from, i64 bytes) {
    for (i64 i = 0; i < bytes; i += page) __builtin_prefetch(static_cast<const u8*>(from) + pages_ahead * page + i, 0, second);
}

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
    // Here too side by side is a loop of vectors for each type.
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
    // Apart: one value at a time.
    for (i64 i = 0; i < n; ++i) {
        if (type == Real::f32)
            f[i * step] = in[i];
        else
            h[i * step] = type == Real::bf16 ? to_bf16(in[i]) : to_f16(in[i]);
    }
}

namespace {  // of this file alone

// Eight codes of one word apart in three steps, each a loop over twice as many and half as wide integers.
// Within a loop all lanes are shifted alike.
inline void split_eights(const u64* __restrict words, i64 eights, i32 bits, i32* __restrict codes) {
    // First the halves of each word, then their halves, then those: what stands above is cut off at the end.
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

// n codes of `bits` bits, at most a tile, from a bit stream that packing::pack wrote, from code number `first` on. `end` is
// where the readable bytes end.
inline void unpack(const u8* __restrict line, i64 first, i32 bits, i64 n, i32* __restrict codes, const u8* end) {
    const i64 start = first * bits;
    const u8* __restrict in = line + start / 8;
    i64 i = 0;
    if (start % 8 == 0) {
        // Whole bytes only widen.
        if (bits == 8) {
            for (; i < n; ++i) codes[i] = in[i];
            return;
        }
        // Two codes in each byte.
        if (bits == 4) {
            const i64 pairs = n / 2;
            for (i64 j = 0; j < pairs; ++j) {
                codes[2 * j] = in[j] & 15;
                codes[2 * j + 1] = in[j] >> 4;
            }
            i = 2 * pairs;
        } else if (bits < 8) {
            // Eight codes fill `bits` bytes.
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
