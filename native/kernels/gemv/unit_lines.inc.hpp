// Lines times one to four vectors with AVX2 or AVX-512, four lines at a time: bytes, and other codes whose magnitudes are those of
// float16. Elements are widened to float32 and no more: the sum of a block takes its scale, and what a unit of the elements is
// worth goes into x or into the sum of the line. Every other format is decoded value by value, decoded_lines.
#pragma once

#include "kernels/dequantize/decode_sixteen.inc.hpp"
#include "kernels/dequantize/decode_vectors.inc.hpp"
#include "kernels/dequantize/packed.inc.hpp"
#include "kernels/gemv/decoded_lines.inc.hpp"
#include "kernels/gemv/few_rows.inc.hpp"
#include "kernels/values/memory.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/rounding.inc.hpp"
#include "kernels/values/vectors.inc.hpp"

namespace unit_lines {

using packed::DecodeBuffers, packed::PreparedDequantize, packed::decode_scales;

#if defined(__AVX2__)

using decode_sixteen::CodeDecoder, decode_sixteen::Decoder, decode_sixteen::bytes_of, decode_sixteen::code_decoder_of,
    decode_sixteen::fits_half, decode_sixteen::halves_of, decode_sixteen::parts, decode_sixteen::set_halves, decode_sixteen::widened;
using decoded_lines::dot_decoded, decoded_lines::total;
using few_rows::FewRows, few_rows::with_lines;
using numbers::Reals, numbers::bits_of, numbers::infinity_bits, numbers::is_power_of_two, numbers::larger, numbers::least, numbers::log2_of,
    numbers::magnitude_mask, numbers::power_of_two, numbers::smaller, numbers::vector;
using rounding::is_fixed;
using vectors::broadcast, vectors::multiply_add, vectors::read;

// What codes are: integers of a byte; float16 from a byte, of which a magnitude of all ones may be NaN; float16 from fewer bits.
// Those of pairs are halved where the pair is shifted.
enum class Codes : i32 { none, integers, bytes, bytes_or_nan, fewer, pairs_of_bytes, pairs_of_fewer };
inline constexpr bool is_paired(Codes c) { return c == Codes::pairs_of_bytes || c == Codes::pairs_of_fewer; }

// What the lines of one job share.
struct Units {
    Codes codes;
    CodeDecoder decoder;
    float before, after;  // what x is multiplied by, and the sum of a line, together what a unit of the decoder is worth
    i64 log_size;         // values that share a scale
};

namespace {  // of this file alone

// Values that are multiplied before the sum takes a scale; scales of so many values are decoded ahead of them.
constexpr i64 group = 32, scaled_together = 4096, most_scales = scaled_together / 16;
constexpr i64 bytes_ahead = 2048;  // as in nibbles

inline Codes codes_of(const Format& f) {
    const Grid& g = f.grid;
    const bool blocks = !has_blocks(f) || (f.block >= 16 && is_power_of_two(f.block)), pairs = f.scales == Scales::shifted;
    if (f.tabled || !blocks || !decode_vectors::decodes_in_registers(f)) return Codes::none;
    if (g.sign == Sign::twos_complement) return g.bits == 8 && !pairs ? Codes::integers : Codes::none;
    // More bits, or fields that a float16 does not have.
    if (g.bits > 8 || !fits_half(g)) return Codes::none;
    // Halving a fixed-point number is a shift of its float16, in which the place below its last bit is free.
    if (pairs && f.shift_bits) return !is_fixed(g) || g.m > 9 ? Codes::none : g.bits == 8 ? Codes::pairs_of_bytes : Codes::pairs_of_fewer;
    if (g.bits < 8) return g.has_nan ? Codes::none : Codes::fewer;
    if (!g.has_nan || g.inf != 0) return Codes::bytes;  // a float16 has infinity and NaN where E5M2 has
    return g.sign == Sign::bit && g.limit_above == 0x7e ? Codes::bytes_or_nan : Codes::none;
}

}  // namespace

inline bool takes_units(const Format& f) { return codes_of(f) != Codes::none; }

inline Units units_of(const Format& f) {
    Units u{};
    u.codes = codes_of(f);
    u.decoder = code_decoder_of(f.grid);
    if (u.codes != Codes::integers) set_halves(f.grid, u.decoder);
    // Codes come as float16, of whose last place, or half of it, they are multiples: with x times so much products are whole
    // multiples of x, and nothing is lost below the normal numbers. What a step of the elements is worth comes first where it
    // makes numbers larger, and last where it makes them smaller; what becomes too large is seen in the sum.
    const i32 half = is_paired(u.codes) ? 1 : 0, step = f.grid.emin - f.grid.m - half;
    const i32 places = u.codes == Codes::integers ? 0 : 14 + f.grid.m + half;
    u.before = power_of_two(places + larger(step, 0));
    u.after = power_of_two(smaller(step, 0));
    u.log_size = has_blocks(f) ? log2_of(f.block) : 62;
    return u;
}

// Values that are multiplied before the sum takes a scale.
constexpr i64 units_at_once = group;

// n values of x times their part of the unit, in their own order; where that is infinite, so is a sum, which is then computed
// otherwise.
inline void multiply_by_unit(const Format& f, const float* __restrict x, i64 n, float* __restrict out) {
    const float unit = units_of(f).before;
    for (i64 i = 0; i < n; ++i) out[i] = x[i] * unit;
}

namespace {  // of this file alone

// Sixteen float16 of pairs, a bit of `shifts` for each pair: ten instructions with those of halves_of.
inline __m256i halved(__m256i halves, u8 shifts) {
    const __m256i bit = _mm256_setr_epi16(1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 32, 64, 64, 128, 128);
    const __m256i shifted = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi8(static_cast<char>(shifts)), bit), bit);
    const __m256i half = _mm256_and_si256(_mm256_srli_epi16(halves, 1), _mm256_set1_epi16(0x3fff));  // the sign moved down too
    return _mm256_sub_epi16(halves, _mm256_and_si256(half, shifted));
}

constexpr i64 vectors_in_group = group / vector;

// Thirty-two elements in their order, each a whole number of units.
template <Codes codes>
__attribute__((always_inline)) inline void decode_group(const CodeDecoder& s, const u8* in, [[maybe_unused]] const u8* shifts, Reals* w) {
#if defined(__AVX512F__)
    if constexpr (codes == Codes::bytes || codes == Codes::bytes_or_nan) {
        // As in halves_of, twice as many at once: eight instructions.
        const __m512i words = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in)));
        const __m512i halves = _mm512_and_si512(_mm512_sll_epi16(words, _mm_cvtsi32_si128(s.shift)), _mm512_set1_epi16(static_cast<short>(s.fields)));
        w[0] = widened(_mm512_castsi512_si256(halves), 0), w[1] = widened(_mm512_extracti64x4_epi64(halves, 1), 0);
        return;
    }
#endif
    // By sixteens: for integers two instructions a vector, for others besides widening three or five, and seven where pairs
    // are shifted.
#pragma GCC unroll 2
    for (i64 i = 0; i < 2; ++i, in += 2 * s.bits, w += parts) {
        if constexpr (codes == Codes::integers) {
            for (i64 h = 0; h < parts; ++h) w[h] = bytes_of(in, h);
        } else {
            constexpr bool fewer = codes == Codes::fewer || codes == Codes::pairs_of_fewer;
            __m256i halves = halves_of<fewer ? Decoder::half : Decoder::byte_half>(s, in);
            if constexpr (is_paired(codes)) halves = halved(halves, shifts[i]);
            for (i64 h = 0; h < parts; ++h) w[h] = widened(halves, h);
        }
    }
}

// Adds the products of a group with its scales, one or two, to the sum of each row; `seen` becomes the largest of all bytes
// whatever their signs.
template <Codes codes, bool sixteens, i64 rows>
__attribute__((always_inline)) inline void add_group(const CodeDecoder& s, const u8* in, const u8* shifts, const float* x, const float* scales,
                      Reals* sums, [[maybe_unused]] __m256i& seen) {
    if constexpr (codes == Codes::bytes_or_nan) {
        const __m256i signs = _mm256_set1_epi8(-128);
        seen = _mm256_max_epu8(seen, _mm256_or_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in)), signs));
    }
    Reals w[vectors_in_group];
    decode_group<codes>(s, in, shifts, w);
    // Products in a row wait for each other, but those of other rows, lines and groups do not.
    constexpr i64 scaled = sixteens ? vectors_in_group / 2 : vectors_in_group;
#pragma GCC unroll 4
    for (i64 r = 0; r < rows; ++r) {
        Reals products{};
#pragma GCC unroll 4
        for (i64 i = 0; i < vectors_in_group; ++i) {
            const Reals of_x = read<Reals>(x + r * group + i * vector);
            products = i % scaled == 0 ? w[i] * of_x : multiply_add(w[i], of_x, products);
            if (i % scaled == scaled - 1) sums[r] = multiply_add(products, broadcast(scales[i / scaled]), sums[r]);
        }
    }
}

// Whether one of n bytes is a NaN.
inline bool has_nan(const u8* codes, i64 n) {
    bool found = false;
    for (i64 i = 0; i < n; ++i) found |= (codes[i] & 0x7f) == 0x7f;
    return found;
}

// Writes to y the products of `lines` lines from `line` on with their first n values, whole groups of them, and `rows` rows of x.
template <Codes codes, bool sixteens, i64 lines, i64 rows>
inline void products_of_lines(const Gemv& job, const Units& u, const PreparedDequantize& p, const FewRows& x, DecodeBuffers& t, i64 line, i64 n) {
    const CodeDecoder s = u.decoder;
    const i64 log_size = u.log_size, bits = s.bits;
    const bool blocks = has_blocks(p.f);
    // A line of values has up to 256 scales at a time, in float32; without blocks one of its own, or one for all.
    alignas(64) float scales[lines][most_scales + 16];  // and room for a register
    for (i64 l = 0; l < lines && !blocks; ++l) {
        scales[l][0] = 1.0f;
        if (one_scale(p.f)) decode_scales(p, t, line + l, 0, 1, scales[l]);
    }
    Reals sums[lines][rows];
    __m256i seen = _mm256_setzero_si256();
    for (i64 l = 0; l < lines; ++l)
        for (i64 r = 0; r < rows; ++r) sums[l][r] = broadcast(0.0f);
    const u8 *const of_codes = job.codes + line * p.bytes.codes, *const of_shifts = is_paired(codes) ? job.shifts + line * p.bytes.shifts : nullptr;
    for (i64 start = 0; start < n; start += scaled_together) {
        const i64 end = least(start + scaled_together, n), first = start >> log_size, count = ((end - 1) >> log_size) - first + 1;
        for (i64 l = 0; l < lines && blocks; ++l) {
            decode_scales(p, t, line + l, first, count, scales[l]);
            const u8* next = p.job.scales + (line + l) * p.bytes.scales + bytes_for(first + count, p.f.scale_bits);
            __builtin_prefetch(next);
            __builtin_prefetch(next + 64);
        }
        const auto scale_of = [&](i64 l, i64 g) { return scales[l] + (blocks ? (g >> log_size) - first : 0); };
        for (i64 g = start; g < least(end, n - group); g += group) {
            // Ahead in the line, and from its end in the one that comes after these.
            const i64 at = g / 8 * bits, ahead = at + bytes_ahead, next = ahead < p.bytes.codes ? ahead : ahead + (lines - 1) * p.bytes.codes;
#pragma GCC unroll 4
            for (i64 l = 0; l < lines; ++l) {
                const u8* in = of_codes + l * p.bytes.codes;
                memory::prefetch(in + next, 1);
                add_group<codes, sixteens, rows>(s, in + at, of_shifts + l * p.bytes.shifts + g / 16, x.values + g * x.step, scale_of(l, g), sums[l], seen);
            }
        }
        for (i64 l = 0; l < lines && end == n; ++l) {
            // More is loaded than the codes of a group: nothing behind those of the last one is read.
            u8 in[48] = {};
            const i64 g = n - group;
            __builtin_memcpy(in, of_codes + l * p.bytes.codes + g / 8 * bits, static_cast<u64>(group / 8 * bits));
            add_group<codes, sixteens, rows>(s, in, of_shifts + l * p.bytes.shifts + g / 16, x.values + g * x.step, scale_of(l, g), sums[l], seen);
        }
    }
    const bool nan_seen = _mm256_movemask_epi8(_mm256_cmpeq_epi8(seen, _mm256_set1_epi8(-1))) != 0;
    for (i64 l = 0; l < lines; ++l)
        for (i64 r = 0; r < rows; ++r) {
            const float y = total(sums[l][r]) * u.after;
            // Rare: a NaN, an infinity, or a number that was too large on the way. Each value by itself says what becomes of it.
            const bool finite = (bits_of(y) & magnitude_mask) < infinity_bits && !(nan_seen && has_nan(of_codes + l * p.bytes.codes, n));
            job.y[(x.first + r) * job.stride + line + l] =
                finite ? y : dot_decoded(p, code_decoder_of(p.f.grid), t, line + l, job.x + (x.first + r) * job.n, n);
        }
}

template <Codes codes, bool sixteens>
inline void products_by(const Gemv& job, const Units& u, const PreparedDequantize& p, const FewRows& x, DecodeBuffers& t, i64 first, i64 last, i64 n) {
    with_lines(x, group, first, last, [&](auto lines, auto rows, const FewRows& some, i64 line) {
        products_of_lines<codes, sixteens, lines(), rows()>(job, u, p, some, t, line, n);
    });
}

template <Codes codes>
inline void products_by(const Gemv& job, const Units& u, const PreparedDequantize& p, const FewRows& x, DecodeBuffers& t, i64 first, i64 last, i64 n) {
    if (u.log_size == 4) products_by<codes, true>(job, u, p, x, t, first, last, n);
    else products_by<codes, false>(job, u, p, x, t, first, last, n);
}

}  // namespace

// The products with few rows of x, which are times their part of the unit; returns how many values of a line are covered.
inline i64 gemv_units(const Gemv& job, const PreparedDequantize& p, const FewRows& x, DecodeBuffers& t, i64 first, i64 last) {
    const Units u = units_of(job.format);
    const i64 n = job.n / group * group;
    switch (u.codes) {
        case Codes::none: return 0;
        case Codes::integers: products_by<Codes::integers>(job, u, p, x, t, first, last, n); break;
        case Codes::bytes: products_by<Codes::bytes>(job, u, p, x, t, first, last, n); break;
        case Codes::bytes_or_nan: products_by<Codes::bytes_or_nan>(job, u, p, x, t, first, last, n); break;
        case Codes::fewer: products_by<Codes::fewer>(job, u, p, x, t, first, last, n); break;
        case Codes::pairs_of_bytes: products_by<Codes::pairs_of_bytes>(job, u, p, x, t, first, last, n); break;
        case Codes::pairs_of_fewer: products_by<Codes::pairs_of_fewer>(job, u, p, x, t, first, last, n); break;
    }
    return n;
}

#else

constexpr i64 units_at_once = 1;
inline bool takes_units(const Format&) { return false; }
inline void multiply_by_unit(const Format&, const float*, i64, float*) {}
inline i64 gemv_units(const Gemv&, const PreparedDequantize&, const few_rows::FewRows&, DecodeBuffers&, i64, i64) { return 0; }

#endif

}  // namespace unit_lines
