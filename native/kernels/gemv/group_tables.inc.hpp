// How four neighbouring values become operands of a product: which kind of code, and its tables.
#pragma once

#include "kernels/gemv/nibbles.inc.hpp"
#include "kernels/values/numbers.inc.hpp"
#include "kernels/values/rounding.inc.hpp"

namespace group_tables {

using numbers::binade, numbers::bits_of, numbers::is_power_of_two, numbers::magnitude_mask;
using rounding::constants_of, rounding::decode_all;
#if defined(__AVX512F__)
using nibbles::Nibbles, nibbles::nibbles_of;

constexpr i64 group_block = 512;  // values whose codes are asked for together

// What the products of one job share. `kind` says how codes become operands: 16-bit floats as they are, eight bits through
// tables of bfloat16.
struct Groups {
    enum class Kind : i32 { none, bfloat16, half, bytes } kind;
    i64 segment;        // values that are worked on at once
    i64 n;              // values of a line in whole segments
    i64 in_block;       // bytes of the codes of group_block values
    const void* x;      // permuted
    Nibbles scales;     // of 128 values
    __m512i table[4];   // bytes: low and high bytes of the magnitudes
    __m512i even;       // the even ones of 64 pairs of bytes
    __mmask64 absolute; // bytes: two's complement
    __m512i lowest[2];  // bytes: those of -128, whose magnitude the tables have no place for; low, high
};

using Kind = Groups::Kind;

namespace {  // of this file alone

// Whether n values are zeros, NaN, or bfloat16 that are not subnormal; writes the bfloat16.
inline bool as_bfloat16(const float* values, i64 n, u16* out) {
    bool fits = true;
    for (i64 i = 0; i < n; ++i) {
        const i32 b = bits_of(values[i]), magnitude = b & magnitude_mask;
        fits &= (b & 0xffff) == 0 && (magnitude == 0 || magnitude >= binade);
        out[i] = static_cast<u16>(static_cast<u32>(b) >> 16);
    }
    return fits;
}

// Signs of NaN do not matter: the product is NaN.
inline bool is_nan(u16 bfloat16) { return (bfloat16 & 0x7fff) > 0x7f80; }

// bfloat16 and float16 themselves, without scales.
inline Kind sixteen_bits(const Format& f) {
    const Grid& g = f.grid;
    if (f.tabled || g.bits != 16 || g.sign != Sign::bit || f.scales != Scales::none || g.inf == 0) return Kind::none;
    return g.m == 7 && g.emin == -126 ? Kind::bfloat16 : g.m == 10 && g.emin == -14 ? Kind::half : Kind::none;
}

}  // namespace

#if defined(__AVX512BF16__)

namespace {  // of this file alone

// Tables of the elements as bfloat16; Kind::none where they cannot be.
inline Kind tables_of(const Format& f, Groups& q) {
    const Grid& g = f.grid;
    // A scale must serve a whole group of eight codes, and block numbers come from shifts.
    const bool blocks = !has_blocks(f) || (f.block >= 8 && is_power_of_two(f.block));
    if (f.tabled || !blocks || f.scales == Scales::shifted || g.bits != 8) return Kind::none;
    alignas(64) i32 codes[256];
    alignas(64) float ones[256], values[256];
    alignas(64) u16 wide[256];
    for (i64 i = 0; i < 256; ++i) {
        codes[i] = static_cast<i32>(i);
        ones[i] = 1.0f;
    }
    // All codes are decoded by the definition's function; a format whose values are not all bfloat16 is refused.
    decode_all(constants_of(g, Overflow::saturate), g.has_nan, codes, ones, values, 256);
    if (!as_bfloat16(values, 256, wide)) return Kind::none;
    if (g.sign == Sign::none) return Kind::none;  // the sign is the highest bit of a code
    // Two's complement needs the magnitude first; with a sign bit the magnitude is what the lookup reads.
    q.absolute = g.sign == Sign::twos_complement ? ~u64{0} : 0;
    q.lowest[0] = _mm512_set1_epi8(static_cast<char>(wide[128] & 0xff));
    q.lowest[1] = _mm512_set1_epi8(static_cast<char>(wide[128] >> 8));
    for (i64 i = g.sign == Sign::bit ? 0 : 1; i < 128; ++i)
        if (u16 other = wide[g.sign == Sign::bit ? i + 128 : 256 - i]; (wide[i] ^ 0x8000) != other && (wide[i] != other || !is_nan(other)))
            return Kind::none;
    // Eight bits: 128 magnitudes, their bfloat16 cut into low and high bytes. VPERMI2B looks up 64 codes in two
    // registers.
    alignas(64) u8 low[128], high[128];
    for (i64 i = 0; i < 128; ++i) {
        low[i] = static_cast<u8>(wide[i]);
        high[i] = static_cast<u8>(wide[i] >> 8);
    }
    for (i64 i = 0; i < 2; ++i) {
        q.table[i] = _mm512_load_si512(low + 64 * i);
        q.table[2 + i] = _mm512_load_si512(high + 64 * i);
    }
    return Kind::bytes;
}

}  // namespace

#else
inline Kind tables_of(const Format&, Groups&) { return Kind::none; }
#endif

// Everything about a job that its lines share; Kind::none where groups of four do not know the format.
inline Groups groups_of(const Gemv& job, const Format& f) {
    Groups q{};
    if (job.batch != 1) return q;
    q.kind = sixteen_bits(f);
    if (q.kind == Kind::none && job.narrow) q.kind = tables_of(f, q);
    if (q.kind == Kind::none) return q;
    // 16 groups of 16-bit codes, or 32 groups of bfloat16, are what one step multiplies.
    q.segment = sixteen_bits(f) == Kind::none ? 128 : 64;
    q.n = job.n / q.segment * q.segment;
    const i32 bits = bits_of_element(f);
    q.in_block = group_block * bits / 8;
    q.scales = nibbles_of(job, false);
    alignas(64) u16 even[32];
    // Two registers hold 64 pairs of codes; the even pairs are positions 0 and 1 of each group, the odd ones 2 and 3.
    for (i32 i = 0; i < 32; ++i) even[i] = static_cast<u16>(2 * i);
    q.even = _mm512_load_si512(even);
    return q;
}

#endif

}  // namespace group_tables
