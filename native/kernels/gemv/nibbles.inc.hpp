// Lines of four-bit codes times vectors of float32. Codes are looked up where they lie in a register, so values come apart in
// an order that fits the register, and vectors are put into that order once.
#pragma once

#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/rounding.inc.hpp"

namespace nibbles {

using packed::DecodeBuffers, packed::PreparedDequantize, packed::decode_scales;
using numbers::bits_of, numbers::is_power_of_two, numbers::least, numbers::log2_of;
using rounding::constants_of, rounding::decode_all;

#if defined(__AVX2__)

// Scales are decoded ahead of their products, those of 4,096 values at a time. Lines go four at a time, because the
// vector is seldom in the nearest cache whole and would be read again for each.
constexpr i64 scaled_together = 4096, most_scales = scaled_together / 8, lines_at_once = 4;

// Bytes that codes are asked for ahead of their use: with 1 KiB a memory that answers late kept the CPU waiting.
constexpr i64 prefetched = 2048;

#if defined(__AVX512F__)
constexpr i64 nibbles_at_once = 128;
#else
constexpr i64 nibbles_at_once = 64;
#endif

// What the lines of one job share.
struct Nibbles {
#if defined(__AVX512F__)
    __m512 table;  // of the 16 codes
    __m512i pick;  // which scale of a group each lane takes
#else
    __m256i low, high;  // bits 16 to 23 and 24 to 31 of the 16 codes, in both halves: the other bits are zero
    __m256i pick[2];    // which scale of a group the lanes of either half of it take
    bool halves;        // whether these differ
#endif
    i64 log_size;  // of blocks; no division in the loop: one takes longer than a group
    i64 covered;   // values of a line in whole groups
};

// Whether values come apart in this order: four-bit codes, a scale for at least eight values.
inline bool comes_in_nibbles(const Format& f) {
    const bool blocks = !has_blocks(f) || (f.block >= 8 && is_power_of_two(f.block));
    // No value of four bits has more significant bits than three: AVX2 keeps the upper halves of their float32.
    return !f.tabled && f.grid.bits == 4 && blocks && f.scales != Scales::shifted;
}

// Whether one vector is multiplied here.
inline bool takes_nibbles(const Gemv& job) { return job.batch == 1 && comes_in_nibbles(job.format); }

inline Nibbles nibbles_of(const Gemv& job) {
    const Format& f = job.format;
    const i64 size = has_blocks(f) ? f.block : nibbles_at_once;
    Nibbles k{};
    k.log_size = log2_of(size);
    k.covered = job.n / nibbles_at_once * nibbles_at_once;
    alignas(64) i32 codes[16];
    alignas(64) float ones[16], table[16] = {};
    // All codes, and the scale of values that have none.
    for (i32 i = 0; i < 16; ++i) {
        codes[i] = i;
        ones[i] = 1.0f;
    }
    // The table comes from the same function that decodes everything else.
    if (!f.tabled && f.grid.bits == 4) decode_all(constants_of(f.grid, Overflow::saturate), f.grid.has_nan, codes, ones, table, 16);
#if defined(__AVX512F__)
    k.table = _mm512_load_ps(table);
    // Lane i holds the values 8 i to 8 i + 7 of 128: its scale is that of their block.
    alignas(64) i32 lanes_of_scales[16];
    for (i64 i = 0; i < 16; ++i) lanes_of_scales[i] = static_cast<i32>(8 * i / size);
    k.pick = _mm512_load_si512(lanes_of_scales);
#else
    // A byte shuffle looks up within each half of a register: both have the whole table.
    alignas(32) u8 low[32], high[32];
    for (i32 i = 0; i < 32; ++i) {
        low[i] = static_cast<u8>(bits_of(table[i % 16]) >> 16);
        high[i] = static_cast<u8>(static_cast<u32>(bits_of(table[i % 16])) >> 24);
    }
    k.low = _mm256_load_si256(reinterpret_cast<const __m256i*>(low));
    k.high = _mm256_load_si256(reinterpret_cast<const __m256i*>(high));
    k.halves = size < 32;
    // Lane 4 q + m of half u holds four values from 32 q + 16 u + 4 m on.
    alignas(32) i32 lanes_of_scales[8];
    for (i64 u = 0; u < 2; ++u) {
        for (i64 i = 0; i < 8; ++i) lanes_of_scales[i] = static_cast<i32>((32 * (i / 4) + 16 * u + 4 * (i % 4)) / size);
        k.pick[u] = _mm256_load_si256(reinterpret_cast<const __m256i*>(lanes_of_scales));
    }
#endif
    return k;
}

// A vector in the order in which codes come apart; `out` holds the whole groups of n values.
inline void permute_for_nibbles(const float* __restrict x, i64 n, float* __restrict out) {
    for (i64 g = 0; g + nibbles_at_once <= n; g += nibbles_at_once) {
#if defined(__AVX512F__)
        // Vector j of eight holds the values 8 i + j: nibble j of each 32-bit lane.
        for (i64 j = 0; j < 8; ++j)
            for (i64 i = 0; i < 16; ++i) out[g + 16 * j + i] = x[g + 8 * i + j];
#else
        // Nibble h of each byte; unpacking takes bytes from half u of each 16, and leaves two values in each lane, v.
        for (i64 h = 0; h < 2; ++h)
            for (i64 u = 0; u < 2; ++u)
                for (i64 v = 0; v < 2; ++v)
                    for (i64 q = 0; q < 2; ++q)
                        for (i64 m = 0; m < 4; ++m)
                            out[g + 32 * h + 16 * u + 8 * v + 4 * q + m] = x[g + 32 * q + 16 * u + 4 * m + 2 * v + h];
#endif
    }
}

namespace {  // of this file alone

#if defined(__AVX512F__)

using Sum = __m512;

inline Sum zero() { return _mm512_setzero_ps(); }
inline float total(Sum s) { return _mm512_reduce_add_ps(s); }

// Adds 128 products for each line. A register has eight codes in each 32-bit lane, of which a permutation looks at the
// low four bits: a shift and a permutation give 16 values. The scale of a lane's eight codes is applied once. Per line 27
// instructions for 128 values, and eight loads of x for all lines.
template <i64 lines>
inline void add_group(const Nibbles& k, const u8* const* codes, const float* x, const float* const* scales, Sum* sums) {
    __m512i c[lines];
    __m512 group[lines];
    // One load a line: bytes further into it would cross a cache line three times of four.
#pragma GCC unroll 4
    for (i64 l = 0; l < lines; ++l) c[l] = _mm512_loadu_si512(codes[l]);
#pragma GCC unroll 8
    for (i32 j = 0; j < 8; ++j) {
        // The values of code j of all lanes.
        const __m512 v = _mm512_loadu_ps(x + 16 * j);
#pragma GCC unroll 4
        for (i64 l = 0; l < lines; ++l) {
            const __m512 w = _mm512_permutexvar_ps(_mm512_srli_epi32(c[l], static_cast<u32>(4 * j)), k.table);
            group[l] = j == 0 ? _mm512_mul_ps(w, v) : _mm512_fmadd_ps(w, v, group[l]);
        }
    }
#pragma GCC unroll 4
    for (i64 l = 0; l < lines; ++l) sums[l] = _mm512_fmadd_ps(group[l], _mm512_permutexvar_ps(k.pick, _mm512_loadu_ps(scales[l])), sums[l]);
}

// The values of a group, scaled.
inline void decode_group(const Nibbles& k, const u8* codes, const float* scales, float* out) {
    const __m512i c = _mm512_loadu_si512(codes);
    const __m512 scale = _mm512_permutexvar_ps(k.pick, _mm512_loadu_ps(scales));
#pragma GCC unroll 8
    for (i32 j = 0; j < 8; ++j)
        _mm512_storeu_ps(out + 16 * j, _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(c, static_cast<u32>(4 * j)), k.table), scale));
}

#else

using Sum = __m256;

inline Sum zero() { return _mm256_setzero_ps(); }

// Halves are added to each other: 8, 4, 2, 1.
inline float total(Sum s) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// The lower and the upper 16 bits of each lane as the upper half of a float32.
inline __m256 low_values(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline __m256 high_values(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<i32>(0xffff0000u))));
}

// The values of a group, scaled.
inline void decode_group(const Nibbles& k, const u8* codes, const float* scales, float* out) {
    const __m256i nibble = _mm256_set1_epi8(15), c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    const __m256 of_blocks = _mm256_loadu_ps(scales);
    const __m256 scale[2] = {_mm256_permutevar8x32_ps(of_blocks, k.pick[0]), _mm256_permutevar8x32_ps(of_blocks, k.pick[1])};
#pragma GCC unroll 2
    for (i32 h = 0; h < 2; ++h) {
        // As in add_group below.
        const __m256i codes_in_bytes = _mm256_and_si256(h == 0 ? c : _mm256_srli_epi16(c, 4), nibble);
        const __m256i low = _mm256_shuffle_epi8(k.low, codes_in_bytes), high = _mm256_shuffle_epi8(k.high, codes_in_bytes);
        const __m256i pairs[2] = {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
#pragma GCC unroll 2
        for (i64 u = 0; u < 2; ++u) {
            _mm256_storeu_ps(out + 32 * h + 16 * u, _mm256_mul_ps(low_values(pairs[u]), scale[u]));
            _mm256_storeu_ps(out + 32 * h + 16 * u + 8, _mm256_mul_ps(high_values(pairs[u]), scale[u]));
        }
    }
}

// Adds 64 products for each line. Two byte shuffles look up the upper two bytes of 32 values, unpacking joins them, a
// shift and a mask part neighbours: per line 28 instructions for 64 values, and eight loads of x for all lines.
template <i64 lines, bool halves>
inline void add_group(const Nibbles& k, const u8* const* codes, const float* x, const float* const* scales, Sum* sums) {
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i c[lines];
    __m256 group[2][lines];  // the second where the halves of a group have scales of their own
#pragma GCC unroll 4
    for (i64 l = 0; l < lines; ++l) c[l] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes[l]));
#pragma GCC unroll 2
    for (i32 h = 0; h < 2; ++h) {
        // Low nibbles are the even values, high ones the odd; each lane of `pairs` has two, as bfloat16.
        __m256i pairs[2][lines];
#pragma GCC unroll 4
        for (i64 l = 0; l < lines; ++l) {
            const __m256i codes_in_bytes = _mm256_and_si256(h == 0 ? c[l] : _mm256_srli_epi16(c[l], 4), nibble);
            const __m256i low = _mm256_shuffle_epi8(k.low, codes_in_bytes), high = _mm256_shuffle_epi8(k.high, codes_in_bytes);
            pairs[0][l] = _mm256_unpacklo_epi8(low, high);
            pairs[1][l] = _mm256_unpackhi_epi8(low, high);
        }
#pragma GCC unroll 2
        for (i64 u = 0; u < 2; ++u) {
            const float* from = x + 32 * h + 16 * u;
            const __m256 first = _mm256_loadu_ps(from), second = _mm256_loadu_ps(from + 8);
            const i64 half = halves ? u : 0;
            const bool begins = h == 0 && (halves || u == 0);
#pragma GCC unroll 4
            for (i64 l = 0; l < lines; ++l) {
                __m256& sum = group[half][l];
                sum = begins ? _mm256_mul_ps(low_values(pairs[u][l]), first) : _mm256_fmadd_ps(low_values(pairs[u][l]), first, sum);
                sum = _mm256_fmadd_ps(high_values(pairs[u][l]), second, sum);
            }
        }
    }
#pragma GCC unroll 4
    for (i64 l = 0; l < lines; ++l) {
        // The scales of the group in one register, then each to its lanes.
        const __m256 of_blocks = _mm256_loadu_ps(scales[l]);
#pragma GCC unroll 2
        for (i64 u = 0; u < (halves ? 2 : 1); ++u)
            sums[l] = _mm256_fmadd_ps(group[u][l], _mm256_permutevar8x32_ps(of_blocks, k.pick[u]), sums[l]);
    }
}

// Chosen outside of the loop by the compiler: `halves` is the same for the whole job.
template <i64 lines>
inline void add_group(const Nibbles& k, const u8* const* codes, const float* x, const float* const* scales, Sum* sums) {
    if (k.halves) add_group<lines, true>(k, codes, x, scales, sums);
    else add_group<lines, false>(k, codes, x, scales, sums);
}

#endif

// Writes to y the products of the whole groups of `lines` lines; `x` is permuted.
template <i64 lines>
inline void nibble_products(const Gemv& job, const PreparedDequantize& p, const Nibbles& given, const float* x, DecodeBuffers& t, i64 line) {
    const Nibbles k = given;
    const Format& f = p.f;
    const bool blocks = has_blocks(f);
    alignas(64) float scales[lines][most_scales + 16];  // read a register at once: a masked load takes longer
    // Without blocks one scale, or none, serves the line.
    for (i64 l = 0; l < lines && !blocks; ++l) {
        scales[l][0] = 1.0f;
        if (one_scale(f)) decode_scales(p, t, line + l, 0, 1, scales[l]);
    }
    Sum sums[lines];
    for (i64 l = 0; l < lines; ++l) sums[l] = zero();
    const u8* const codes = p.job.codes + line * p.bytes.codes;
    for (i64 start = 0; start < k.covered; start += scaled_together) {
        const i64 n = least(scaled_together, k.covered - start), first = start >> k.log_size;
        const i64 count = ((start + n - 1) >> k.log_size) - first + 1;
        for (i64 l = 0; l < lines && blocks; ++l) {
            decode_scales(p, t, line + l, first, count, scales[l]);
            // The next 4,096 values have at most 512 scales; those of the usual formats lie in two cache lines.
            const u8* next = p.job.scales + (line + l) * p.bytes.scales + bytes_for(first + count, f.scale_bits);
            __builtin_prefetch(next);
            __builtin_prefetch(next + 64);
        }
        for (i64 g = start; g < start + n; g += nibbles_at_once) {
            // Ahead in the line, and from its end in the one that comes after these: four lines further.
            const i64 ahead = g / 2 + prefetched, next = ahead < p.bytes.codes ? ahead : ahead + (lines - 1) * p.bytes.codes;
            const u8* from[lines];
            const float* of[lines];
#pragma GCC unroll 4
            for (i64 l = 0; l < lines; ++l) {
                from[l] = codes + l * p.bytes.codes + g / 2;
                of[l] = scales[l] + (blocks ? (g - start) >> k.log_size : 0);
                __builtin_prefetch(codes + l * p.bytes.codes + next);
            }
            add_group<lines>(k, from, x + g, of, sums);
        }
    }
    for (i64 l = 0; l < lines; ++l) job.y[line + l] = total(sums[l]);
}

}  // namespace

// Decodes the whole groups among n values of a line into `out`; returns how many values these are.
inline i64 decode_nibbles(const PreparedDequantize& p, const Nibbles& given, DecodeBuffers& t, i64 line, i64 start, i64 n, float* out) {
    const Nibbles k = given;
    const Format& f = p.f;
    const bool blocks = has_blocks(f);
    const i64 covered = n / nibbles_at_once * nibbles_at_once, first = blocks ? start >> k.log_size : 0;
    if (covered == 0) return 0;
    t.scale[0] = 1.0f;
    if (f.scales != Scales::none) decode_scales(p, t, line, first, blocks ? ((start + covered - 1) >> k.log_size) - first + 1 : 1, t.scale);
    const u8* codes = p.job.codes + line * p.bytes.codes + start / 2;
    for (i64 g = 0; g < covered; g += nibbles_at_once)
        decode_group(k, codes + g / 2, t.scale + (blocks ? ((start + g) >> k.log_size) - first : 0), out + g);
    return covered;
}

// The products with one vector of many lines; returns how many values of a line are covered.
inline i64 gemv_nibbles(const Gemv& job, const PreparedDequantize& p, const float* x, DecodeBuffers& t, i64 first, i64 last) {
    const Nibbles k = nibbles_of(job);
    i64 line = first;
    for (; line + lines_at_once <= last; line += lines_at_once) nibble_products<lines_at_once>(job, p, k, x, t, line);
    for (; line < last; ++line) nibble_products<1>(job, p, k, x, t, line);
    return k.covered;
}

#else

struct Nibbles {};
constexpr i64 nibbles_at_once = 1;
inline bool comes_in_nibbles(const Format&) { return false; }
inline bool takes_nibbles(const Gemv&) { return false; }
inline Nibbles nibbles_of(const Gemv&) { return {}; }
inline i64 decode_nibbles(const PreparedDequantize&, const Nibbles&, DecodeBuffers&, i64, i64, i64, float*) { return 0; }
inline void permute_for_nibbles(const float*, i64, float*) {}
inline i64 gemv_nibbles(const Gemv&, const PreparedDequantize&, const float*, DecodeBuffers&, i64, i64) { return 0; }

#endif

}  // namespace nibbles
