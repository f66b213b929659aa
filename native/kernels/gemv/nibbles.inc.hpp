// Lines of four-bit codes times vectors of float32; with AVX2 also of three bits whose pairs have shifts. Codes are looked up
// where they lie in a register, so values come apart in an order that fits the register, and vectors are put into that order once.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/gemv/decoded_lines.inc.hpp"
#include "kernels/gemv/few_rows.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/rounding.inc.hpp"

namespace nibbles {

using decode_sixteen::code_decoder_of;
using decoded_lines::dot_decoded;
using few_rows::FewRows, few_rows::with_lines, few_rows::with_rows;
using packed::DecodeBuffers, packed::PreparedDequantize, packed::decode_scales;
using numbers::bits_of, numbers::infinity_bits, numbers::is_power_of_two, numbers::least, numbers::log2_of,
    numbers::magnitude_mask, numbers::power_of_two;
using rounding::constants_of, rounding::decode_all;

#if defined(__AVX2__)

// Scales are decoded ahead of their products, those of 4,096 values at a time. Lines go four at a time, because the
// vector is seldom in the nearest cache whole and would be read again for each.
constexpr i64 scaled_together = 4096, most_scales = scaled_together / 8;

// Bytes that codes are asked for ahead of their use, to the second cache: with 1 KiB a memory that answers late kept the CPU
// waiting, and from a nearest cache of 32 KiB x drives them out before they are read.
constexpr i64 prefetched = 2048;

#if defined(__AVX512F__)
constexpr i64 nibbles_at_once = 128;
#else
constexpr i64 nibbles_at_once = 64, lines_in_turn = 32;
#endif

#if !defined(__AVX512F__)
// Values that share a scale: 8, 16, half a group of 64, or whole groups.
enum class Sharing : i32 { eights, sixteens, halves, groups };
#endif

// What the lines of one job share.
struct Nibbles {
#if defined(__AVX512F__)
    __m512 table;  // of the 16 codes
    __m512i narrow;  // the same as bfloat16, twice
    __m512i pick;  // which scale of a group each lane takes
#else
    __m256i low, high;  // bits 16 to 23 and 24 to 31 of the 16 codes, in both halves: the other bits are zero
    __m256i pick[2];    // which scale of a group the lanes of either half of it take
#endif
    float unit;    // what one of the table is worth
    i64 log_size;  // of blocks; no division in the loop: one takes longer than a group
    i64 covered;   // values of a line in whole groups
};

// Whether values come apart in this order: four-bit codes, a scale for at least eight values.
inline bool comes_in_nibbles(const Format& f) {
    const bool blocks = !has_blocks(f) || (f.block >= 8 && is_power_of_two(f.block));
    // No value of four bits has more significant bits than three: AVX2 keeps the upper halves of their float32.
    return !f.tabled && f.grid.bits == 4 && blocks && f.scales != Scales::shifted;
}

// Whether codes become nibbles: with the shift of its pair a code of three bits is one of sixteen values.
inline bool comes_in_threes([[maybe_unused]] const Format& f) {
#if defined(__AVX512F__)
    return false;  // looked_up_lines takes them
#else
    const bool shifts = f.scales == Scales::shifted && f.shift_bits == 1 && f.sub_block == 2;
    return !f.tabled && f.grid.bits == 3 && !f.grid.has_nan && shifts && f.block >= 16 && is_power_of_two(f.block);
#endif
}

// Whether few rows are multiplied here.
inline bool takes_nibbles(const Format& f) { return comes_in_nibbles(f) || comes_in_threes(f); }

// With `in_units` the table has whole numbers: products of a subnormal with them lose nothing, with a half they could.
inline Nibbles nibbles_of(const Gemv& job, bool in_units) {
    const Format& f = job.format;
    const i64 size = has_blocks(f) ? f.block : nibbles_at_once;
    const bool threes = comes_in_threes(f);
    Nibbles k{};
    k.log_size = has_blocks(f) ? log2_of(size) : 62;  // without blocks every value has the first scale
    k.covered = job.n / nibbles_at_once * nibbles_at_once;
    alignas(64) i32 codes[16];
    alignas(64) float ones[16], table[16] = {};
    // All codes, and the scale of values that have none.
    for (i32 i = 0; i < 16; ++i) {
        codes[i] = threes ? i % 8 : i;
        ones[i] = threes && i >= 8 ? 0.5f : 1.0f;  // the fourth bit is the shift
    }
    // The table comes from the same function that decodes everything else.
    if (!f.tabled && (f.grid.bits == 4 || threes)) decode_all(constants_of(f.grid, Overflow::saturate), f.grid.has_nan, codes, ones, table, 16);
    // A unit above one stays in the values.
    k.unit = in_units ? power_of_two(numbers::clamp(f.grid.emin - f.grid.m - (threes ? 1 : 0), -126, 0)) : 1.0f;
    for (float& v : table) v /= k.unit;
#if defined(__AVX512F__)
    k.table = _mm512_load_ps(table);
    alignas(64) u16 narrow[32];
    for (i32 i = 0; i < 32; ++i) narrow[i] = static_cast<u16>(static_cast<u32>(bits_of(table[i % 16])) >> 16);  // three bits of significand
    k.narrow = _mm512_load_si512(narrow);
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

// Whether products are of bfloat16: every value of x is one, and with eight bits a value no product or sum is subnormal, which
// the instruction would take for zero; Gemv::narrow.
inline bool is_narrow([[maybe_unused]] const Gemv& job) {
#if defined(__AVX512BF16__)
    return job.narrow;
#else
    return false;
#endif
}

// The same in that order of nibbles: vector j of four holds the values 4 i + j, nibble j of each 16-bit lane.
inline void permute_for_narrow_nibbles(const float* __restrict x, i64 n, u16* __restrict out) {
    for (i64 g = 0; g + nibbles_at_once <= n; g += nibbles_at_once)
        for (i64 j = 0; j < 4; ++j)
            for (i64 i = 0; i < nibbles_at_once / 4; ++i)
                out[g + nibbles_at_once / 4 * j + i] = static_cast<u16>(static_cast<u32>(bits_of(x[g + 4 * i + j])) >> 16);
}

namespace {  // of this file alone

#if defined(__AVX512F__)

using Sum = __m512;

inline Sum zero() { return _mm512_setzero_ps(); }
inline float total(Sum s) { return _mm512_reduce_add_ps(s); }

// Adds 128 products for each line and row. A register has eight codes in each 32-bit lane, of which a permutation looks at the
// low four bits: a shift and a permutation give 16 values. The scale of a lane's eight codes is applied once. Per line 27
// instructions for 128 values of a row, and eight loads of x for all lines; a further row takes nine instructions of a line.
template <i64 lines, i64 rows>
inline void add_group(const Nibbles& k, const u8* const* codes, const float* x, const float* const* scales, Sum (*sums)[rows]) {
    __m512i c[lines];
    __m512 group[lines][rows];
    // One load a line: bytes further into it would cross a cache line three times of four.
#pragma GCC unroll 4
    for (i64 l = 0; l < lines; ++l) c[l] = _mm512_loadu_si512(codes[l]);
#pragma GCC unroll 8
    for (i32 j = 0; j < 8; ++j) {
        // The values of code j of all lanes.
        __m512 v[rows];
#pragma GCC unroll 4
        for (i64 r = 0; r < rows; ++r) v[r] = _mm512_loadu_ps(x + nibbles_at_once * r + 16 * j);
#pragma GCC unroll 4
        for (i64 l = 0; l < lines; ++l) {
            const __m512 w = _mm512_permutexvar_ps(_mm512_srli_epi32(c[l], static_cast<u32>(4 * j)), k.table);
#pragma GCC unroll 4
            for (i64 r = 0; r < rows; ++r) group[l][r] = j == 0 ? _mm512_mul_ps(w, v[r]) : _mm512_fmadd_ps(w, v[r], group[l][r]);
        }
    }
#pragma GCC unroll 4
    for (i64 l = 0; l < lines; ++l) {
        const __m512 scale = _mm512_permutexvar_ps(k.pick, _mm512_loadu_ps(scales[l]));
#pragma GCC unroll 4
        for (i64 r = 0; r < rows; ++r) sums[l][r] = _mm512_fmadd_ps(group[l][r], scale, sums[l][r]);
    }
}

// The same with x in bfloat16, half as many instructions: a permutation of words looks at five bits, the table is there twice,
// and a lane adds the products of eight neighbours as before.
template <i64 lines, i64 rows>
inline void add_group([[maybe_unused]] const Nibbles& k, [[maybe_unused]] const u8* const* codes, [[maybe_unused]] const u16* x,
                      [[maybe_unused]] const float* const* scales, [[maybe_unused]] Sum (*sums)[rows]) {
#if defined(__AVX512BF16__)
    __m512i v[rows][4];
#pragma GCC unroll 4
    for (i64 r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (i32 j = 0; j < 4; ++j) v[r][j] = _mm512_loadu_si512(x + nibbles_at_once * r + 32 * j);
#pragma GCC unroll 4
    for (i64 l = 0; l < lines; ++l) {
        const __m512i c = _mm512_loadu_si512(codes[l]);
        __m512 group[rows];
#pragma GCC unroll 4
        for (i64 r = 0; r < rows; ++r) group[r] = zero();
#pragma GCC unroll 4
        for (i32 j = 0; j < 4; ++j) {
            const __m512i w = _mm512_permutexvar_epi16(_mm512_srli_epi16(c, static_cast<u32>(4 * j)), k.narrow);
#pragma GCC unroll 4
            for (i64 r = 0; r < rows; ++r) group[r] = _mm512_dpbf16_ps(group[r], (__m512bh)w, (__m512bh)v[r][j]);
        }
        const __m512 scale = _mm512_permutexvar_ps(k.pick, _mm512_loadu_ps(scales[l]));
#pragma GCC unroll 4
        for (i64 r = 0; r < rows; ++r) sums[l][r] = _mm512_fmadd_ps(group[r], scale, sums[l][r]);
    }
#endif
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
        // As in add_run below.
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

#endif

// The product of a line, or what each value by itself says becomes of it: where there is a NaN, an infinity, or a number that was
// too large on the way, all of them rare.
inline void write_product(const Gemv& job, const PreparedDequantize& p, const Nibbles& k, DecodeBuffers& t, i64 line, i64 row, float sum) {
    const float y = sum * k.unit;
    const bool finite = (bits_of(y) & magnitude_mask) < infinity_bits;
    job.y[row * job.stride + line] = finite ? y : dot_decoded(p, code_decoder_of(p.f.grid), t, line, job.x + row * job.n, k.covered);
}

#if defined(__AVX512F__)

// Writes to y the products of the whole groups of `lines` lines and `rows` rows; `x` is permuted, its values of type X.
template <class X, i64 lines, i64 rows>
inline void nibble_products(const Gemv& job, const PreparedDequantize& p, const Nibbles& given, const FewRows& x, DecodeBuffers& t, i64 line) {
    const Nibbles k = given;
    const Format& f = p.f;
    const bool blocks = has_blocks(f);
    alignas(64) float scales[lines][most_scales + 16];  // read a register at once: a masked load takes longer
    // Without blocks one scale, or none, serves the line.
    for (i64 l = 0; l < lines && !blocks; ++l) {
        scales[l][0] = 1.0f;
        if (one_scale(f)) decode_scales(p, t, line + l, 0, 1, scales[l]);
    }
    Sum sums[lines][rows];
    for (i64 l = 0; l < lines; ++l)
        for (i64 r = 0; r < rows; ++r) sums[l][r] = zero();
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
                memory::prefetch(codes + l * p.bytes.codes + next, 1);
            }
            // Of many rows two lines at a time: the sums of a group are registers.
            constexpr i64 together = lines * rows > 8 ? 2 : lines;
#pragma GCC unroll 2
            for (i64 l = 0; l < lines; l += together)
                add_group<together, rows>(k, from + l, reinterpret_cast<const X*>(x.values) + g * x.step, of + l, sums + l);
        }
    }
    for (i64 l = 0; l < lines; ++l)
        for (i64 r = 0; r < rows; ++r) write_product(job, p, k, t, line + l, x.first + r, total(sums[l][r]));
}

#else

// Scales in the lanes of sums of a group: lanes of each half of the register have values of one half of the group.
template <Sharing sharing>
inline __m256 scales_in_lanes(const Nibbles& k, const float* scales, i64 u) {
    if constexpr (sharing == Sharing::eights) return _mm256_permutevar8x32_ps(_mm256_loadu_ps(scales), k.pick[u]);
    if constexpr (sharing == Sharing::groups) return _mm256_broadcast_ss(scales);
    // Two loads that repeat a number and a blend, which every pipe takes; a permutation is two instructions of few pipes.
    const i64 first = sharing == Sharing::sixteens ? u : 0, second = sharing == Sharing::sixteens ? u + 2 : 1;
    return _mm256_blend_ps(_mm256_broadcast_ss(scales + first), _mm256_broadcast_ss(scales + second), 0xf0);
}

// Packed codes of a group, two in a byte, of which 32 are read.
inline __m256i nibbles_at(const u8* codes) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)); }

// The same from codes of three bits, of which 28 bytes are read, and a bit for each pair: a pair is a byte and the bit becomes the
// fourth of both. Fourteen instructions.
inline __m256i nibbles_of_threes(const u8* codes, const u8* shifts) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 12));
    // Eight codes are three bytes; of these each word of a lane has two. The first four codes and the last four then lie in
    // the upper twelve bits of the words, nothing below them once they are moved down.
    const __m256i spread = _mm256_setr_epi8(0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10, 10, 11, 0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10, 10, 11);
    const __m256i words = _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1), spread);
    const __m256i four = _mm256_srli_epi16(_mm256_mullo_epi16(words, _mm256_set1_epi32(0x00010010)), 4);
    // Two codes go from bits 6 to 11 to a byte of their own: four times their bits are three times those and themselves.
    const __m256i upper = _mm256_and_si256(four, _mm256_set1_epi16(0xfc0));
    const __m256i two = _mm256_add_epi16(four, _mm256_add_epi16(upper, _mm256_add_epi16(upper, upper)));
    // And the second of a byte one place up: twice its bits are those and themselves.
    const __m256i nibbles = _mm256_add_epi8(two, _mm256_and_si256(two, _mm256_set1_epi8(0x38)));
    i32 bits;
    __builtin_memcpy(&bits, shifts, 4);
    const __m256i of_eight = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x(static_cast<i64>(0x8040201008040201u));
    const __m256i shifted = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), of_eight), bit), bit);
    return _mm256_or_si256(nibbles, _mm256_and_si256(shifted, _mm256_set1_epi8(static_cast<char>(0x88))));
}

// Where some lines are read from a value on.
template <i64 lines>
struct Run {
    const u8 *codes[lines], *shifts[lines];  // no shifts where codes are nibbles
    const float* scales[lines];
};

// Adds the products of n values of `lines` lines, whole groups, and of `rows` rows. Two byte shuffles look up the upper two bytes
// of 32 values, unpacking joins them, a shift and a mask part neighbours: per line 30 instructions for 64 values of a row, and
// eight loads of x for all lines; a further row takes ten instructions of a line. Codes are asked for `ahead` bytes further on.
template <i64 lines, i64 rows, bool threes, Sharing sharing>
inline void add_run(const Nibbles& given, const Run<lines>& run, const float* x, i64 step, i64 n, i64 ahead, Sum (*sums)[rows]) {
    const Nibbles k = given;
    const __m256i nibble = _mm256_set1_epi8(15);
    constexpr bool halves = sharing == Sharing::eights || sharing == Sharing::sixteens;
    Sum sum[lines][rows];
    for (i64 l = 0; l < lines; ++l)
        for (i64 r = 0; r < rows; ++r) sum[l][r] = sums[l][r];
    for (i64 g = 0; g < n; g += nibbles_at_once) {
        __m256i c[lines];
        __m256 group[2][lines][rows];  // of its halves, where sums have less to wait for than in one, whatever scales there are
#pragma GCC unroll 4
        for (i64 l = 0; l < lines; ++l) {
            const u8* codes = run.codes[l] + g / 8 * (threes ? 3 : 4);
            memory::prefetch(codes + ahead, 1);
            c[l] = threes ? nibbles_of_threes(codes, run.shifts[l] + g / 16) : nibbles_at(codes);
        }
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
#pragma GCC unroll 4
                for (i64 r = 0; r < rows; ++r) {
                    const float* from = x + g * step + r * nibbles_at_once + 32 * h + 16 * u;
                    const __m256 first = _mm256_loadu_ps(from), second = _mm256_loadu_ps(from + 8);
#pragma GCC unroll 4
                    for (i64 l = 0; l < lines; ++l) {
                        __m256& products = group[u][l][r];
                        products = h == 0 ? _mm256_mul_ps(low_values(pairs[u][l]), first) : _mm256_fmadd_ps(low_values(pairs[u][l]), first, products);
                        products = _mm256_fmadd_ps(high_values(pairs[u][l]), second, products);
                    }
                }
            }
        }
        const i64 block = g >> k.log_size;
#pragma GCC unroll 4
        for (i64 l = 0; l < lines; ++l)
#pragma GCC unroll 2
            for (i64 u = 0; u < (halves ? 2 : 1); ++u) {
                const __m256 scale = scales_in_lanes<sharing>(k, run.scales[l] + block, u);
#pragma GCC unroll 4
                for (i64 r = 0; r < rows; ++r)
                    sum[l][r] = _mm256_fmadd_ps(halves ? group[u][l][r] : _mm256_add_ps(group[0][l][r], group[1][l][r]), scale, sum[l][r]);
            }
    }
    for (i64 l = 0; l < lines; ++l)
        for (i64 r = 0; r < rows; ++r) sums[l][r] = sum[l][r];
}

// What lines are multiplied with: the values of x from one on, and where the lines of a job are that take turns with it.
struct Turn {
    const FewRows& x;
    i64 start, n, begin, end;  // values, and lines
};

// Adds to the sums of `lines` lines the products of one turn.
template <i64 lines, i64 rows, bool threes, Sharing sharing>
inline void add_turn(const PreparedDequantize& p, const Nibbles& k, DecodeBuffers& t, const Turn& turn, i64 line, Sum (*sums)[rows]) {
    const Format& f = p.f;
    alignas(64) float scales[lines][most_scales + 16];
    alignas(32) u8 last[lines][32];
    Run<lines> run;
    const i64 first = turn.start >> k.log_size, count = ((turn.start + turn.n - 1) >> k.log_size) - first + 1, bits = threes ? 3 : 4;
    for (i64 l = 0; l < lines; ++l) {
        run.codes[l] = p.job.codes + (line + l) * p.bytes.codes + turn.start / 8 * bits;
        run.shifts[l] = threes ? p.job.shifts + (line + l) * p.bytes.shifts + turn.start / 16 : nullptr;
        run.scales[l] = scales[l];
        scales[l][0] = 1.0f;
        if (has_blocks(f)) decode_scales(p, t, line + l, first, count, scales[l]);
        else if (one_scale(f)) decode_scales(p, t, line + l, 0, 1, scales[l]);
        // Those of the next lines; of the usual formats they lie in few cache lines.
        const u8* next = p.job.scales + (line + l + lines) * p.bytes.scales + bytes_for(first, f.scale_bits);
        for (i64 i = 0; has_blocks(f) && i < bytes_for(count, f.scale_bits); i += 64) __builtin_prefetch(next + i);
        if (threes) __builtin_prefetch(run.shifts[l] + lines * p.bytes.shifts), __builtin_prefetch(run.shifts[l] + lines * p.bytes.shifts + 64);
    }
    // What is read next: where a line is longer than a turn, of other lines, or of the first ones further on; else what
    // lies behind all of these, not of the next one of them.
    const bool whole = turn.n == k.covered, others = turn.end - line > lines;
    const i64 next = lines * p.bytes.codes, beyond = next < prefetched ? prefetched : next;
    const i64 ahead = whole ? beyond : others ? next : (turn.begin - line) * p.bytes.codes + turn.n / 8 * bits;
    // More is read than the codes of a group of three bits: nothing behind those of the last one.
    const i64 rest = threes && turn.start + turn.n == k.covered ? nibbles_at_once : 0, n = turn.n - rest, step = turn.x.step;
    const float* x = turn.x.values + turn.start * step;
    add_run<lines, rows, threes, sharing>(k, run, x, step, n, ahead, sums);
    if (rest == 0) return;
    for (i64 l = 0; l < lines; ++l) {
        __builtin_memcpy(last[l], run.codes[l] + n / 8 * 3, nibbles_at_once / 8 * 3);
        run.codes[l] = last[l];
        run.shifts[l] += n / 16;
        run.scales[l] += n >> k.log_size;
    }
    add_run<lines, rows, threes, sharing>(k, run, x + n * step, step, rest, 0, sums);
}

// Writes to y the products of the whole groups of few lines and `rows` rows. Lines take turns, so that what each needs of x stays
// in the nearest caches; a line has the same sum whatever lines there are.
template <bool threes, Sharing sharing, i64 rows>
inline void nibble_products(const Gemv& job, const PreparedDequantize& p, const Nibbles& k, const FewRows& x, DecodeBuffers& t, i64 begin, i64 end) {
    // Codes of three bits keep the CPU busy enough for four streams from memory; of more rows one line has enough sums.
    constexpr i64 lines_at_once = rows > 1 ? 1 : threes ? 4 : 2, values_in_turn = scaled_together / (rows > 2 ? 4 : rows);
    Sum sums[lines_in_turn][rows];
    for (auto& of_line : sums)
        for (Sum& sum : of_line) sum = zero();
    for (i64 start = 0; start < k.covered; start += values_in_turn) {
        const Turn turn{x, start, least(values_in_turn, k.covered - start), begin, end};
        i64 line = begin;
        for (; line + lines_at_once <= end; line += lines_at_once)
            add_turn<lines_at_once, rows, threes, sharing>(p, k, t, turn, line, sums + line - begin);
        for (; line < end; ++line) add_turn<1, rows, threes, sharing>(p, k, t, turn, line, sums + line - begin);
    }
    for (i64 line = begin; line < end; ++line)
        for (i64 r = 0; r < rows; ++r) write_product(job, p, k, t, line, x.first + r, total(sums[line - begin][r]));
}

// By what shares a scale; a block of codes of three bits has sixteen values at least.
template <i64 rows>
inline void nibble_products(const Gemv& job, const PreparedDequantize& p, const Nibbles& k, const FewRows& x, DecodeBuffers& t, i64 begin, i64 end) {
    const bool threes = comes_in_threes(p.f);
    const auto by = k.log_size == 3   ? nibble_products<false, Sharing::eights, rows>
                    : k.log_size == 4 ? (threes ? nibble_products<true, Sharing::sixteens, rows> : nibble_products<false, Sharing::sixteens, rows>)
                    : k.log_size == 5 ? (threes ? nibble_products<true, Sharing::halves, rows> : nibble_products<false, Sharing::halves, rows>)
                                      : (threes ? nibble_products<true, Sharing::groups, rows> : nibble_products<false, Sharing::groups, rows>);
    by(job, p, k, x, t, begin, end);
}

#endif

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

// The products with few rows of many lines; returns how many values of a line are covered.
inline i64 gemv_nibbles(const Gemv& job, const PreparedDequantize& p, const FewRows& x, DecodeBuffers& t, i64 first, i64 last) {
    const Nibbles k = nibbles_of(job, true);
#if defined(__AVX512F__)
    const auto all = [&]<class X>(X) {
        constexpr i64 floats = nibbles_at_once * i64{sizeof(X)} / 4;
        with_lines(x, floats, first, last, [&](auto lines, auto rows, const FewRows& some, i64 line) {
            nibble_products<X, lines(), rows()>(job, p, k, some, t, line);
        });
    };
    if (is_narrow(job)) all(u16{});
    else all(0.0f);
#else
    with_rows(x.count, [&](auto rows) {
        for (i64 line = first; line < last; line += lines_in_turn)
            nibble_products<rows()>(job, p, k, x, t, line, least(line + lines_in_turn, last));
    });
#endif
    return k.covered;
}

#else

struct Nibbles {};
constexpr i64 nibbles_at_once = 1;
inline bool comes_in_nibbles(const Format&) { return false; }
inline bool takes_nibbles(const Format&) { return false; }
inline Nibbles nibbles_of(const Gemv&, bool) { return {}; }
inline i64 decode_nibbles(const PreparedDequantize&, const Nibbles&, DecodeBuffers&, i64, i64, i64, float*) { return 0; }
inline void permute_for_nibbles(const float*, i64, float*) {}
inline void permute_for_narrow_nibbles(const float*, i64, u16*) {}
inline bool is_narrow(const Gemv&) { return false; }
inline i64 gemv_nibbles(const Gemv&, const PreparedDequantize&, const FewRows&, DecodeBuffers&, i64, i64) { return 0; }

#endif

}  // namespace nibbles
