// Lines times one to four vectors with AVX-512, four lines at a time: codes of three, five and six bits, which a permutation of a register
// looks up, and bytes whose pairs have shifts. A lane holds four or eight neighbours, so x is permuted to that order once, and
// a lane's products take one scale together: for 128 values of MX4 40 instructions, for 64 of six bits 23, of MX6 22.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/dequantize/decode_vectors.inc.hpp"
#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/gemv/decoded_lines.inc.hpp"
#include "kernels/gemv/few_rows.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/rounding.inc.hpp"

namespace looked_up_lines {

using packed::DecodeBuffers, packed::PreparedDequantize, packed::decode_scales;

#if defined(__AVX512F__)

using decode_sixteen::code_decoder_of;
using decoded_lines::dot_decoded;
using few_rows::FewRows, few_rows::with_lines;
using numbers::bits_of, numbers::infinity_bits, numbers::is_power_of_two, numbers::least, numbers::log2_of, numbers::magnitude_mask, numbers::power_of_two;
using rounding::constants_of, rounding::decode_all, rounding::is_fixed;

// What codes are: three bits with shifts of pairs; five, with or without; six, a sign and a magnitude; bytes, a sign and an
// integer, with shifts.
enum class Codes : i32 { none, threes_in_pairs, fives, fives_in_pairs, sixes, bytes_in_pairs };

namespace {  // of this file alone

constexpr bool is_paired(Codes c) { return c == Codes::threes_in_pairs || c == Codes::fives_in_pairs || c == Codes::bytes_in_pairs; }
constexpr i32 width_of(Codes c) {
    return c == Codes::threes_in_pairs ? 3 : c == Codes::sixes ? 6 : c == Codes::bytes_in_pairs ? 8 : 5;
}
// Neighbours in a lane: as many as 32 bits hold of them, where a scale serves eight.
constexpr i64 in_lane(Codes c) { return c == Codes::threes_in_pairs ? 8 : 4; }

// Scales of so many values are decoded ahead of them; codes are asked for so many bytes ahead, to the nearest cache:
// looking them up takes so long that waiting for the second would count, and x passes more slowly.
constexpr i64 scaled_together = 4096, most_scales = scaled_together / 8, bytes_ahead = 2048;

}  // namespace

// What the lines of one job share.
struct LookedUp {
    __m512 low, high;         // the values of the codes in units, of six bits those of the magnitudes
    __m512i words, bytes;     // which words of 64 bytes a quarter of a register needs, and which bytes of them each lane
    __m512i down;             // where a lane's first code begins in its bytes
    __m512i pick;             // which scale of a group each lane takes
    float unit;               // of products: of the elements, at most one, or half of that where pairs are halved
    i64 log_size;             // values that share a scale
};

inline Codes codes_of(const Format& f) {
    const Grid& g = f.grid;
    // A scale serves all of a lane; its number comes from a shift.
    const bool blocks = !has_blocks(f) || (f.block >= 8 && is_power_of_two(f.block)), pairs = f.scales == Scales::shifted && f.shift_bits;
    if (f.tabled || !blocks || g.has_nan || !decode_vectors::decodes_in_registers(f)) return Codes::none;
    if (g.bits == 3) return pairs ? Codes::threes_in_pairs : Codes::none;
    if (g.bits == 5) return pairs ? Codes::fives_in_pairs : Codes::fives;
    if (g.bits == 6) return g.sign == Sign::bit && !pairs ? Codes::sixes : Codes::none;
    return g.bits == 8 && g.sign == Sign::bit && is_fixed(g) && g.emin <= g.m && pairs ? Codes::bytes_in_pairs : Codes::none;
}

inline bool takes_lookups(const Format& f) { return codes_of(f) != Codes::none; }

// Values of a group.
inline i64 lookups_at_once(const Format& f) { return 16 * in_lane(codes_of(f)); }

inline LookedUp looked_up_of(const Format& f) {
    const Codes codes = codes_of(f);
    const i32 width = width_of(codes);
    LookedUp k{};
    // The values of 32 codes, from the function that decodes everything else; those of three bits four times.
    alignas(64) i32 all[32];
    alignas(64) float ones[32], values[32];
    for (i32 i = 0; i < 32; ++i) {
        all[i] = width == 3 ? i % 8 : i;
        ones[i] = 1.0f;
    }
    decode_all(constants_of(f.grid, Overflow::saturate), false, all, ones, values, 32);
    // In whole units no product with x is lost below the normal numbers; a unit above one stays in the values.
    const float unit = power_of_two(numbers::clamp(f.grid.emin - f.grid.m, -126, 0));
    for (float& v : values) v /= unit;
    k.unit = is_paired(codes) ? unit / 2 : unit;
    k.low = _mm512_load_ps(values);
    k.high = _mm512_load_ps(values + 16);
    // A quarter of a register has the codes of four lanes: from a word on, at most four words.
    alignas(64) i32 words[16], down[16], pick[16];
    alignas(64) u8 bytes[64];
    const i64 bits = in_lane(codes) * width;
    k.log_size = has_blocks(f) ? log2_of(f.block) : 62;
    for (i64 i = 0; i < 16; ++i) {
        const i64 word = i / 4 * bits / 8, byte = i * bits / 8 - word * 4;
        words[i] = static_cast<i32>(word + i % 4);
        for (i64 j = 0; j < 4; ++j) bytes[4 * i + j] = static_cast<u8>(byte + j);
        down[i] = static_cast<i32>(i * bits % 8);
        pick[i] = static_cast<i32>((in_lane(codes) * i) >> k.log_size);
    }
    k.words = _mm512_load_si512(words);
    k.bytes = _mm512_load_si512(bytes);
    k.down = _mm512_load_si512(down);
    k.pick = _mm512_load_si512(pick);
    return k;
}

// n values of x in the order in which codes come apart: vector j of a group has value j of each lane.
inline void permute_for_lookups(const Format& f, const float* __restrict x, i64 n, float* __restrict out) {
    const i64 lane = in_lane(codes_of(f)), group = 16 * lane;
    for (i64 g = 0; g + group <= n; g += group)
        for (i64 j = 0; j < lane; ++j)
            for (i64 i = 0; i < 16; ++i) out[g + 16 * j + i] = x[g + lane * i + j];
}

namespace {  // of this file alone

// The codes of a group, those of a lane from its lowest bit on; others, or none, above them. 64 bytes are read.
template <Codes codes>
inline __m512i codes_in_lanes(const LookedUp& k, const u8* in) {
    const __m512i all = _mm512_loadu_si512(in);
    if constexpr (codes == Codes::bytes_in_pairs) {
        // Signs become two's complement, all bytes at once.
        const __m512i magnitudes = _mm512_and_si512(all, _mm512_set1_epi8(0x7f));
        return _mm512_mask_sub_epi8(magnitudes, _mm512_movepi8_mask(all), _mm512_setzero_si512(), magnitudes);
    }
    const __m512i lanes = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(k.words, all), k.bytes);
    return width_of(codes) == 5 ? _mm512_srlv_epi32(lanes, k.down) : lanes;  // of the others each lane begins a byte
}

// Value j of each lane, in units.
template <Codes codes>
inline __m512 value_of(const LookedUp& k, __m512i lanes, i32 j) {
    constexpr i32 width = width_of(codes);
    if constexpr (codes == Codes::bytes_in_pairs)
        return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(lanes, static_cast<u32>(24 - 8 * j)), 24));
    // A permutation looks at four bits of an index or, of two registers, at five.
    const __m512i code = _mm512_srli_epi32(lanes, static_cast<u32>(width * j));
    if constexpr (width == 3) return _mm512_permutexvar_ps(code, k.low);  // whose halves are equal: the fourth bit counts nothing
    const __m512 value = _mm512_permutex2var_ps(k.low, code, k.high);
    if constexpr (width == 5) return value;
    // a | (b & c): the sixth bit is the sign.
    const __m512i top = _mm512_slli_epi32(lanes, static_cast<u32>(26 - width * j));
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(value), top, _mm512_set1_epi32(numbers::sign_bit), 0xf8));
}

// The shifts of a group: of lane i the bits (pairs in a lane) i and on of 32, and of 64 the second half for lanes from eight on.
template <Codes codes>
inline __m512i shifts_of(const u8* shifts) {
    i32 first, second;
    __builtin_memcpy(&first, shifts, 4);
    if constexpr (in_lane(codes) == 4) return _mm512_set1_epi32(first);
    __builtin_memcpy(&second, shifts + 4, 4);
    return _mm512_mask_set1_epi32(_mm512_set1_epi32(first), 0xff00, second);
}

// Adds the products of a group of one line, with its scales, to the sum of each row. Values of a lane are added first, in the
// order of the lane; then the scale multiplies their sum once, and each lane adds to a sum of its own.
template <Codes codes, i64 rows>
__attribute__((always_inline)) inline void add_group(const LookedUp& k, const u8* in, [[maybe_unused]] const u8* shifts, const float* x,
                                                     const float* scales, __m512* sums) {
    constexpr i64 group = 16 * in_lane(codes);
    const __m512i lanes = codes_in_lanes<codes>(k, in);
    __m512 products[rows]{};
    if constexpr (is_paired(codes)) {
        const __m512i shifted = shifts_of<codes>(shifts);
        constexpr i32 pairs = in_lane(codes) / 2;
        // Bit j of a lane's own is that of its pair j: with two pairs a lane has every other bit of 32, with four every fourth.
        const __m512i of_two = _mm512_setr_epi32(1, 1 << 2, 1 << 4, 1 << 6, 1 << 8, 1 << 10, 1 << 12, 1 << 14,
                                                 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30);
        const __m512i of_four = _mm512_setr_epi32(1, 1 << 4, 1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28,
                                                  1, 1 << 4, 1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28);
        const __m512i first = pairs == 2 ? of_two : of_four;
#pragma GCC unroll 4
        for (i32 j = 0; j < pairs; ++j) {
            const __m512 left = value_of<codes>(k, lanes, 2 * j), right = value_of<codes>(k, lanes, 2 * j + 1);
            const __mmask16 not_halved = _mm512_testn_epi32_mask(shifted, _mm512_slli_epi32(first, static_cast<u32>(j)));
#pragma GCC unroll 4
            for (i64 r = 0; r < rows; ++r) {
                // Both products of a pair, then twice them where it is not shifted: half a subnormal may be none.
                const float* of_row = x + r * group + 32 * j;
                const __m512 both = _mm512_fmadd_ps(right, _mm512_loadu_ps(of_row + 16), _mm512_mul_ps(left, _mm512_loadu_ps(of_row)));
                const __m512 pair = _mm512_mask_add_ps(both, not_halved, both, both);
                products[r] = j == 0 ? pair : _mm512_add_ps(products[r], pair);
            }
        }
    } else {
        // Four values of a lane, one after the other.
        static_assert(in_lane(codes) == 4);
#pragma GCC unroll 4
        for (i32 j = 0; j < 4; ++j) {
            const __m512 value = value_of<codes>(k, lanes, j);
#pragma GCC unroll 4
            for (i64 r = 0; r < rows; ++r) {
                const __m512 of_x = _mm512_loadu_ps(x + r * group + 16 * j);
                products[r] = j == 0 ? _mm512_mul_ps(value, of_x) : _mm512_fmadd_ps(value, of_x, products[r]);
            }
        }
    }
    const __m512 scale = _mm512_permutexvar_ps(k.pick, _mm512_loadu_ps(scales));
#pragma GCC unroll 4
    for (i64 r = 0; r < rows; ++r) sums[r] = _mm512_fmadd_ps(products[r], scale, sums[r]);
}

// Writes to y the products of `lines` lines from `line` on with their first n values, whole groups of them, and `rows` rows of x,
// which is permuted.
template <Codes codes, i64 lines, i64 rows>
inline void products_of_lines(const Gemv& job, const LookedUp& given, const PreparedDequantize& p, const FewRows& x, DecodeBuffers& t, i64 line, i64 n) {
    const LookedUp k = given;
    constexpr i64 group = 16 * in_lane(codes), group_bytes = group / 8 * width_of(codes);
    const bool blocks = has_blocks(p.f);
    // Without blocks one scale, or none, serves the line.
    alignas(64) float scales[lines][most_scales + 16];  // read a register at once
    for (i64 l = 0; l < lines && !blocks; ++l) {
        scales[l][0] = 1.0f;
        if (one_scale(p.f)) decode_scales(p, t, line + l, 0, 1, scales[l]);
    }
    // One sum a line and row: those of four lines hide the time of an addition from each other.
    __m512 sums[lines][rows];
    for (i64 l = 0; l < lines; ++l)
        for (i64 r = 0; r < rows; ++r) sums[l][r] = _mm512_setzero_ps();
    const u8 *const of_codes = job.codes + line * p.bytes.codes, *const of_shifts = is_paired(codes) ? job.shifts + line * p.bytes.shifts : nullptr;
    for (i64 start = 0; start < n; start += scaled_together) {
        const i64 end = least(start + scaled_together, n), first = start >> k.log_size, count = ((end - 1) >> k.log_size) - first + 1;
        for (i64 l = 0; l < lines && blocks; ++l) {
            decode_scales(p, t, line + l, first, count, scales[l]);
            const u8* next = p.job.scales + (line + l) * p.bytes.scales + bytes_for(first + count, p.f.scale_bits);
            for (i64 ahead = 0; ahead < 256; ahead += 64) {
                __builtin_prefetch(next + ahead);
                if constexpr (is_paired(codes)) __builtin_prefetch(of_shifts + l * p.bytes.shifts + end / 16 + ahead);
            }
        }
        // The first scale of a group, which begins a block or lies within one; a byte of shifts has those of sixteen values.
        const auto scale_of = [&](i64 l, i64 g) { return scales[l] + (blocks ? (g >> k.log_size) - first : 0); };
        const auto shifts_at = [&](i64 l, i64 g) { return is_paired(codes) ? of_shifts + l * p.bytes.shifts + g / 16 : nullptr; };
        for (i64 g = start; g < least(end, n - group); g += group) {
            // Ahead in the line, and from its end in the one that comes after these.
            const i64 at = g / group * group_bytes, ahead = at + bytes_ahead, next = ahead < p.bytes.codes ? ahead : ahead + (lines - 1) * p.bytes.codes;
#pragma GCC unroll 4
            for (i64 l = 0; l < lines; ++l) {
                const u8* in = of_codes + l * p.bytes.codes;
                __builtin_prefetch(in + next);
                add_group<codes, rows>(k, in + at, shifts_at(l, g), x.values + g * x.step, scale_of(l, g), sums[l]);
            }
        }
        for (i64 l = 0; l < lines && end == n; ++l) {
            // More is read than the codes of a group: nothing behind those of the last one.
            u8 in[64] = {};
            const i64 g = n - group;
            __builtin_memcpy(in, of_codes + l * p.bytes.codes + g / group * group_bytes, static_cast<u64>(group_bytes));
            add_group<codes, rows>(k, in, shifts_at(l, g), x.values + g * x.step, scale_of(l, g), sums[l]);
        }
    }
    for (i64 l = 0; l < lines; ++l)
        for (i64 r = 0; r < rows; ++r) {
            const float y = _mm512_reduce_add_ps(sums[l][r]) * k.unit;
            // Rare: a NaN, an infinity, or a number that was too large on the way. Each value by itself says what becomes of it.
            const bool finite = (bits_of(y) & magnitude_mask) < infinity_bits;
            job.y[(x.first + r) * job.stride + line + l] =
                finite ? y : dot_decoded(p, code_decoder_of(p.f.grid), t, line + l, job.x + (x.first + r) * job.n, n);
        }
}

template <Codes codes>
inline void products_by(const Gemv& job, const LookedUp& k, const PreparedDequantize& p, const FewRows& x, DecodeBuffers& t, i64 first, i64 last, i64 n) {
    with_lines(x, 16 * in_lane(codes), first, last, [&](auto lines, auto rows, const FewRows& some, i64 line) {
        products_of_lines<codes, lines(), rows()>(job, k, p, some, t, line, n);
    });
}

}  // namespace

// The products with few rows of x, which is permuted; returns how many values of a line are covered.
inline i64 gemv_lookups(const Gemv& job, const PreparedDequantize& p, const FewRows& x, DecodeBuffers& t, i64 first, i64 last) {
    const Codes codes = codes_of(job.format);
    const LookedUp k = looked_up_of(job.format);
    const i64 group = lookups_at_once(job.format), n = job.n / group * group;
    switch (codes) {
        case Codes::none: return 0;
        case Codes::threes_in_pairs: products_by<Codes::threes_in_pairs>(job, k, p, x, t, first, last, n); break;
        case Codes::fives: products_by<Codes::fives>(job, k, p, x, t, first, last, n); break;
        case Codes::fives_in_pairs: products_by<Codes::fives_in_pairs>(job, k, p, x, t, first, last, n); break;
        case Codes::sixes: products_by<Codes::sixes>(job, k, p, x, t, first, last, n); break;
        case Codes::bytes_in_pairs: products_by<Codes::bytes_in_pairs>(job, k, p, x, t, first, last, n); break;
    }
    return n;
}

#else

inline bool takes_lookups(const Format&) { return false; }
inline i64 lookups_at_once(const Format&) { return 1; }
inline void permute_for_lookups(const Format&, const float*, i64, float*) {}
inline i64 gemv_lookups(const Gemv&, const PreparedDequantize&, const few_rows::FewRows&, DecodeBuffers&, i64, i64) { return 0; }

#endif

}  // namespace looked_up_lines
